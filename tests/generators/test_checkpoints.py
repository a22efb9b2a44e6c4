"""Our descriptions of published models against public facts about their checkpoints (tests/data/checkpoints)."""

import hashlib
import json
import re
from pathlib import Path

import pytest
import torch
import transformers
from diffusers.loaders import single_file_utils
from safetensors.torch import save_file

from local_bench.generators.architecture import build
from local_bench.generators.flux import adapter_layers
from local_bench.models.cards import card, cards
from local_bench.models.vet import Listing, vet
from tests.generators import checkpoints as known

ROOT = Path(__file__).resolve().parents[2]
UNPROVEN = "nothing"
PARTS = [(name, part) for name in known.published() for part in known.components(name)]
PROVEN = ("fingerprint", "original", "dtype", "parameters", "config")
"""What makes a component's entry a proof of something."""


def of(key):
    return [(name, part) for name, part in PARTS if key in known.components(name)[part]]


def rows():
    """name -> what benchmarks/checkpoints.md lists as established."""
    table = (ROOT / "benchmarks" / "checkpoints.md").read_text()
    return dict(re.findall(r"^\| `(\S+)` \| ([^|]+) \|", table, re.MULTILINE))


@pytest.mark.parametrize("name", known.published())
def test_every_card_is_proven_or_listed_as_unproven(name):
    facts = known.facts(name)
    proven = bool(facts.get("adapter")) or any(set(fact) & set(PROVEN) for fact in known.components(name).values())
    assert name in rows(), "add a row to benchmarks/checkpoints.md"
    assert proven == (rows()[name].strip() != UNPROVEN)
    if facts:
        assert facts["repo"] == cards()[name].source.repo
    for part, fact in known.components(name).items():
        assert part == "model" or part in cards()[name].architecture
        assert set(fact) & {*PROVEN, "weights"}


@pytest.mark.parametrize(("name", "part"), dict.fromkeys([*of("fingerprint"), *of("parameters"), *of("dtype")]))
def test_names_shapes_numbers_and_sizes_to_the_byte_are_those_of_the_checkpoint(name, part):
    fact = known.components(name)[part]
    dtype = getattr(torch, fact.get("dtype", "bfloat16"))
    tensors = known.saved(known.module(cards()[name], part, fact), fact.get("names"), dtype)
    if "fingerprint" in fact:
        ours = known.fingerprint({name: tuple(tensor.shape) for name, tensor in tensors.items()})
        assert ours == known.fingerprints()[fact["fingerprint"]]["md5"]
    if "parameters" in fact:
        assert sum(tensor.numel() for tensor in tensors.values()) == fact["parameters"]
    if "dtype" not in fact:
        return
    sizes = list(fact["weights"].values())
    if len(sizes) > 1 and "shard_gb" not in fact:  # split by other rules: the sum, but for one header each
        data = sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())
        assert 0 < sum(sizes) - data < 200 * len(tensors)
    elif "shard_gb" in fact:
        assert known.shard_bytes(tensors, fact["shard_gb"]) == sizes
    else:
        assert [known.file_bytes(tensors, fact.get("metadata", True))] == sizes


def test_another_shape_or_name_gives_another_fingerprint():
    tables = ({"a": (2, 3)}, {"a": (3, 2)}, {"b": (2, 3)}, {"a": (2, 3), "b": ()})
    assert len({known.fingerprint(table) for table in tables}) == 4


def test_the_size_of_a_file_is_what_safetensors_writes(tmp_path):
    tensors = {"b.weight": torch.zeros(3, 5), "a": torch.zeros(7).bfloat16(), "n": torch.zeros(()).long()}
    save_file(tensors, tmp_path / "file.safetensors", metadata={"format": "pt"})
    assert known.file_bytes(tensors) == (tmp_path / "file.safetensors").stat().st_size


CONVERTERS = {
    "FluxTransformer2DModel": single_file_utils.convert_flux_transformer_checkpoint_to_diffusers,
    "SD3Transformer2DModel": single_file_utils.convert_sd3_transformer_checkpoint_to_diffusers,
}


@pytest.mark.parametrize(("name", "part"), of("original"))
def test_the_authors_file_converts_to_our_model_completely(name, part):
    """Its table has the recorded fingerprint; diffusers' own conversion of it loads with strict=True."""
    original = known.components(name)[part]["original"]
    table = known.original(original)
    assert known.fingerprint(table) == known.fingerprints()[f"{original}-original"]["md5"]
    tensors = {name: torch.empty(shape, device="meta") for name, shape in table.items()}
    model = build(str(cards()[name].architecture[part]), "meta", torch.float32)
    of_model = {name: t for name, t in tensors.items() if not name.startswith(("first_stage_model.", "text_encoders."))}
    model.load_state_dict(CONVERTERS[type(model).__name__](of_model), strict=True, assign=True)


@pytest.mark.parametrize(("name", "part"), [(name, part) for name, part in of("config") if part != "model"])
def test_the_config_agrees_key_by_key(name, part):
    fact = known.components(name)[part]
    assert fact["config_from"]
    ours = known.our_config(cards()[name], part)
    for key, value in fact["config"].items():
        if key == "_class_name":
            assert known.class_name(cards()[name], part) == value
        elif not key.startswith("_"):
            assert json.dumps(ours[key]) == json.dumps(value), key
    content = (json.dumps(dict(sorted(fact["config"].items())), indent=2) + "\n").encode()
    if "config_sha256" in fact:
        assert hashlib.sha256(content).hexdigest() == fact["config_sha256"]
    if "config_blob" in fact:  # as `git hash-object` names it
        assert hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest() == fact["config_blob"]


@pytest.mark.parametrize("name", [name for name, part in of("class") if cards()[name].role == "judge"])
def test_a_judge_has_the_cards_patch_and_size(name):
    fact, judge = known.components(name)["model"], card(name, "judge")
    vision = fact["config"]["vision_config"]
    assert vision["patch_size"] * vision["spatial_merge_size"] == judge.patch
    tensors = known.module(judge, "model", fact).state_dict()
    tied = set() if not fact["config"]["tie_word_embeddings"] else {"lm_head.weight"}
    total = sum(tensor.numel() for key, tensor in tensors.items() if key not in tied)
    assert total / 1e9 == pytest.approx(judge.parameters_b, rel=0.02)


NAMES = {"tiny-clip-text": "clip", "tiny-t5": None, "tiny-qwen3": None, "tiny-qwen25-vl": "qwen2-vl"}


@pytest.mark.parametrize(("small", "names"), [*NAMES.items(), ("tiny-mistral3", "mistral3")])
def test_published_names_are_mapped_to_ours_when_they_are_loaded(tmp_path, small, names):
    """`from_pretrained` of the installed release reads the names under which fingerprints and sizes agree."""
    model = build(small, "cpu", torch.float32)
    model.config.save_pretrained(tmp_path)
    ours = [tensor.clone() for key, tensor in model.state_dict().items() if key not in model.all_tied_weights_keys]
    published = dict(zip(known.saved(model, names, torch.float32), ours, strict=True))
    save_file(published, tmp_path / "model.safetensors", metadata={"format": "pt"})
    transformers.logging.set_verbosity_error()
    loaded, info = type(model).from_pretrained(tmp_path, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    assert all(torch.equal(tensor, model.state_dict()[key]) for key, tensor in loaded.state_dict().items())


def test_the_published_adapter_has_our_names_and_shapes():
    """diffusers' `load_ip_adapter` loads them strictly; tests/generators/test_families.py runs it on a small one."""
    transformer = build(str(cards()["flux1-dev-ip-adapter"].architecture["transformer"]), "meta", torch.bfloat16)
    text = transformer.config.joint_attention_dim
    ours = {f"ip_adapter_proj_model.norm.{kind}": (text,) for kind in ("weight", "bias")}
    for name, (rows_, columns) in adapter_layers(transformer).items():
        ours |= {f"{name}.weight": (rows_, columns), f"{name}.bias": (rows_,)}
    assert ours == known.expanded(known.facts("flux1-dev-ip-adapter")["adapter"])


@pytest.mark.parametrize("name", [name for name in known.published() if known.facts(name).get("files")])
def test_the_vetting_accepts_the_repository_and_loads_each_tensor_once(name):
    facts, described = known.facts(name), cards()[name]
    weights = {file for fact in known.components(name).values() for file in fact.get("weights", {})}
    names = frozenset({"model_index.json", *facts["files"], *weights})
    ours = {"AutoencoderKL", "FlowMatchEulerDiscreteScheduler"}
    index = {"_class_name": facts["pipeline"]}
    for part, kind in facts["index"].items():
        assert part in described.architecture
        library = "transformers" if hasattr(transformers, kind) and kind not in ours else "diffusers"
        index[part] = [library, kind]
        if known.class_name(described, part):
            assert known.class_name(described, part) == kind

    def read(file):
        if file == "model_index.json":
            return json.dumps(index).encode()
        shards = [w for w in weights if w.startswith(file.split("/")[0] + "/")]
        return json.dumps({"weight_map": {str(i): Path(w).name for i, w in enumerate(sorted(shards))}}).encode()

    listing = Listing(facts["repo"], names, read)
    vet(listing)
    assert {file for file in listing.loaded if file.endswith(".safetensors")} == weights
    assert [file for file in listing.loaded if Path(file).suffix in (".bin", ".ckpt", ".pt", ".pth")] == []
    if "index_sha256" in facts:
        content = json.dumps(dict(sorted((index | facts["index_rest"]).items())), indent=2) + "\n"
        assert hashlib.sha256(content.encode()).hexdigest() == facts["index_sha256"]
