"""`models fetch` against a Hub on loopback: what it takes, refuses, checks, keeps, and mends; then no network."""

import errno
import importlib
import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from huggingface_hub import close_session
from safetensors.numpy import save

from local_bench.core.environment import variables
from local_bench.core.errors import StorageError, WeightsError
from local_bench.judges.metrics.pyiqa_store import COMMITS
from local_bench.models import fetch
from local_bench.models.cards import card
from local_bench.models.convert import read_converted
from local_bench.models.hub import for_model, hub_errors
from local_bench.models.weights import resolve

from ..conftest import ROOT
from .hub import Hub, Repo, commit_of
from .test_pull import TREE, checkpoint

COMMIT = commit_of("the first")
WEIGHTS = b"weights, or nearly" * 50
JUDGE = {"config.json": "{}", "tokenizer.json": "{}", "model.safetensors": WEIGHTS, "README.md": "words"}
INDEX = {
    "_class_name": "FluxPipeline",
    "transformer": ["diffusers", "FluxTransformer2DModel"],
    "boundary": [None, None],
}
PIPELINE = {
    "model_index.json": json.dumps(INDEX),
    "LICENSE.md": "a licence",
    "README.md": "words",
    "transformer/config.json": "{}",
    "transformer/diffusion_pytorch_model.safetensors": WEIGHTS,
    "transformer/diffusion_pytorch_model.fp16.safetensors": b"the same in half the bits",
    "transformer/diffusion_pytorch_model.bin": b"its pickled twin",
    "text_encoders/clip_l.safetensors": b"what no part of the pipeline loads",
    "flux1-dev.safetensors": b"all of it once more",
    "setup.py": "a script that nothing names",
}


class Lab:
    """A machine with a Hub: its cards, its cache, its environment."""

    def __init__(self, place: Path, run, monkeypatch) -> None:
        self.place, self._run, self._monkeypatch = place, run, monkeypatch
        self.hub = Hub({})
        shutil.copytree(ROOT / "configs", place / "configs", ignore=shutil.ignore_patterns("*-*.yaml", "*_*.yaml"))
        for name in ("flux1-dev", "flux1-schnell", "tiny-clip", "tiny-qwen3-vl"):
            shutil.copy(ROOT / "configs/models" / f"{name}.yaml", place / "configs/models")

    def serve(self, name: str, files: dict[str, str | bytes], **settings) -> Repo:
        folder = self.place / "served" / name
        for file, content in files.items():
            path = folder / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.hub.repos[f"lab/{name}"] = Repo(folder, COMMIT, **settings)
        return self.hub.repos[f"lab/{name}"]

    def card(self, like: str = "qwen3-vl-2b", name: str = "served", **changes) -> None:
        card = yaml.safe_load((ROOT / "configs/models" / f"{like}.yaml").read_text())
        card |= {"name": name, "source": {"repo": f"lab/{name}", "revision": COMMIT}, **changes}
        (self.place / "configs/models" / f"{name}.yaml").write_text(yaml.safe_dump(card))

    def write(self, name: str, config: dict) -> Path:
        (self.place / name).write_text(yaml.safe_dump(config))
        return self.place / name

    def run(self, *arguments, **env):
        """In this process, whose huggingface_hub has read its variables before."""
        constants = {
            "ENDPOINT": self.hub.url,
            "HUGGINGFACE_CO_URL_TEMPLATE": f"{self.hub.url}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
            "HF_HUB_OFFLINE": False,
            "HF_HUB_CACHE": str(self.place / "hf/hub"),
        }
        for name, value in constants.items():
            self._monkeypatch.setattr(f"huggingface_hub.constants.{name}", value)
        close_session()  # a connection of the command before
        return self._run(*arguments, **self.environment | env)

    def fetch(self, *arguments, **env):
        return self.run("models", "fetch", *(arguments or ("served",)), **env)

    def fetched(self, *arguments) -> dict:
        ended = self.fetch(*(arguments or ("served",)), "--json")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    def show(self, name: str = "served") -> dict:
        ended = self.run("models", "show", name, "--json")
        assert ended.returncode == 0, ended.stderr
        return json.loads(ended.stdout)

    @property
    def environment(self) -> dict[str, str]:
        return {
            "HF_ENDPOINT": self.hub.url,
            "HF_HOME": str(self.place / "hf"),
            "HF_TOKEN": "",
            "LOCAL_BENCH_CACHE": str(self.place / "cache"),
            "LOCAL_BENCH_CONFIGS": str(self.place / "configs"),
            "NO_PROXY": "127.0.0.1,localhost",
        }


@pytest.fixture
def lab(tmp_path, cli, monkeypatch):
    for name in variables():
        monkeypatch.setenv(name, "")  # set back afterwards
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _: None)  # between two tries
    place = Lab(tmp_path, cli, monkeypatch)
    with place.hub:
        yield place


def refused(ended, *messages: str) -> None:
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout
    sentence = ended.stderr.splitlines()[-1]
    for message in messages:
        assert message in sentence


def test_a_fetched_model_is_complete_with_a_manifest_and_works_offline(lab, cli_process):
    lab._run = cli_process
    lab.serve("served", JUDGE)
    lab.card()
    got = lab.fetched()["served"]
    manifest = got["manifest"]
    assert manifest == json.loads((lab.place / "cache/fetched/served.json").read_text())
    assert (manifest["repo"], manifest["revision"], manifest["gated"]) == ("lab/served", COMMIT, False)
    assert set(manifest["files"]) == {"config.json", "tokenizer.json", "model.safetensors"}
    assert manifest["files"]["model.safetensors"]["bytes"] == len(WEIGHTS)
    assert manifest["weights_sha256"] == got["weights_sha256"]
    lab.hub.__exit__()
    card = lab.show()
    assert (card["here"], card["revision"], card["revision_from"]) == (True, COMMIT, "the card")
    assert card["weights_sha256"] == got["weights_sha256"]
    assert card["bytes"] == len(WEIGHTS) + 4
    again = lab.fetch()
    assert again.returncode == 0, again.stderr
    assert "already on this machine" in again.stderr


def test_only_loaded_files_of_a_pipeline_are_fetched_and_its_parts_count_in_the_digest(lab):
    lab.serve("served", PIPELINE)
    lab.card("flux1-dev")
    ended = lab.fetch("served", "--json")
    assert ended.returncode == 0, ended.stderr
    assert set(json.loads(ended.stdout)["served"]["manifest"]["files"]) == {
        *("model_index.json", "LICENSE.md", "transformer/config.json"),
        "transformer/diffusion_pytorch_model.safetensors",
    }
    assert not [path for path in lab.hub.requests if "fp16" in path or path.endswith((".bin", ".py"))]
    assert "licence FLUX.1 [dev] Non-Commercial, 4 files, 0.00 GB" in ended.stderr
    lab.serve("adapter", {"ip_adapter.safetensors": b"an adapter", "workflow.py": "nothing names it"})
    lab.card("flux1-dev", parts={"adapter": {"repo": "lab/adapter", "revision": COMMIT}})
    got = lab.fetched()["served"]
    assert set(got["manifest"]["parts"]["adapter"]["files"]) == {"ip_adapter.safetensors"}
    lab.card("flux1-dev")
    assert lab.show()["weights_sha256"] != got["weights_sha256"]


def test_a_config_fetches_all_models_of_its_run(lab):
    lab.serve("served", PIPELINE)
    lab.card("flux1-dev")
    for like, name in (("qwen3-vl-2b", "eye"), ("clip-vit-l-14-336", "clip")):
        lab.serve(name, JUDGE)
        lab.card(like, name)
    others = [{"card": "flux1-dev", "load": "random"}, {"card": "flux1-schnell", "weights": "/elsewhere"}]
    config = {"name": "c", "models": [{"card": "served"}, *others], "metrics": ["piqe", "clip_cap:clip"]}
    for judge, expected in (
        ({"card": "eye"}, {"served", "eye", "clip"}),
        ({"card": "eye", "base_url": "http://127.0.0.1:1/v1"}, {"served", "clip"}),
    ):
        lab.write("c.yaml", config | {"judge": judge})
        assert set(lab.fetched("c.yaml")) == expected


def test_a_changed_byte_and_a_damaged_file_of_another_tool_are_detected_and_fetching_repairs_them(lab):
    lab.serve("served", JUDGE)
    lab.card()
    before = lab.fetched()["served"]
    weights = Path(before["folder"], "model.safetensors").resolve()
    flip(weights)
    changed = "lab/served: model.safetensors has changed since it was fetched: run `local-bench models fetch served`"
    assert changed in lab.run("models", "show", "served").stderr
    run = {"name": "r", "models": [{"card": "flux1-dev", "load": "random"}], "judge": {"card": "served"}}
    refused(lab.run("generate", lab.write("run.yaml", run)), "model.safetensors has changed since it was fetched")
    assert lab.fetched()["served"]["weights_sha256"] == before["weights_sha256"]
    assert lab.show()["here"]
    weights.unlink()
    assert "model.safetensors is missing" in lab.run("models", "show", "served").stderr
    assert lab.fetched()["served"]["here"]
    folder = Path(before["folder"])
    shutil.rmtree(lab.place / "cache")
    assert lab.show()["here"]
    flip((folder / "model.safetensors").resolve())
    (folder / "config.json").resolve().write_text("[]")
    (folder / "tokenizer.json").resolve().write_text("[]")
    assert "config.json is not a JSON object" in lab.run("models", "show", "served").stderr
    (folder / "config.json").resolve().write_text("{}")
    ended = lab.run("models", "show", "served", "--json")
    assert json.loads(ended.stdout)["here"] is False
    assert "model.safetensors is damaged" in ended.stderr
    assert lab.fetched()["served"]["here"]
    assert (folder / "tokenizer.json").read_text() == "{}"


@pytest.mark.parametrize(
    ("settings", "token", "message"),
    [
        ({"gated": True}, "", "lab/served is gated"),
        ({"gated": True}, "hf_of_someone_who_did_not_accept", "HF_TOKEN"),
        ({"refuses": (503, "busy")}, "", "the Hub returned HTTP 503 for lab/served: wait, and run"),
        ({"refuses": (401, "Invalid credentials in Authorization header")}, "", "rejects your HF_TOKEN for lab/served"),
        ({"declared_sha256": {"model.safetensors": "0" * 64}}, "", "does not match the digest declared by the Hub"),
    ],
)
def test_a_refusal_of_the_hub_and_files_that_differ_from_its_declaration_are_explained(lab, settings, token, message):
    lab.serve("served", JUDGE, **settings)
    lab.card()
    refused(lab.fetch(HF_TOKEN=token), message, *(["models fetch served"] if "rejects" not in message else []))
    assert not (lab.place / "cache/fetched/served.json").exists()
    assert not [p for p in (lab.place / "hf").rglob("*") if p.is_file() and p.read_bytes() == WEIGHTS]
    if "declared_sha256" in settings:
        assert "are incomplete (model.safetensors is missing)" in lab.run("models", "show", "served").stderr


@pytest.mark.parametrize(("revision", "has"), [(None, "no commit"), ("main", "only 'main'"), (COMMIT[:12], "only")])
def test_only_a_full_commit_of_a_repository_that_is_there_is_fetched(lab, revision, has):
    lab.card()
    refused(lab.fetch(), "no repository lab/served", "models fetch served")
    lab.serve("served", JUDGE)
    other = commit_of("another")
    refused(lab.fetch("served", "--revision", other), f"lab/served has no commit {other}", "--revision COMMIT")
    lab.card(source={"repo": "lab/served", "revision": revision})
    lab.hub.requests.clear()
    refused(lab.fetch(), f"lab/served has {has}", "models fetch served --revision COMMIT")
    assert not lab.hub.requests
    lab.card()
    lab.hub.__exit__()
    refused(lab.fetch(), "lab/served cannot be reached", "models fetch served")


def test_a_model_that_cannot_be_fetched_does_not_stop_those_after_it(lab):
    """Ten models are fetched overnight, and one is gated."""
    for name in ("first", "second"):
        lab.serve(name, JUDGE, gated=name == "first")
        lab.card(name=name)
    ended = lab.fetch("first", "second")
    refused(ended, "local-bench: lab/first is gated")
    assert "local-bench: first: lab/first is gated" in ended.stderr
    assert lab.show("second")["here"]


def test_a_full_disk_is_not_reported_as_a_network_error():
    with pytest.raises(
        StorageError, match=r"the disk is full while downloading lab/served.* `local-bench models fetch served` again"
    ):
        with hub_errors(for_model("served"), "lab/served", COMMIT):
            raise OSError(errno.ENOSPC, "No space left on device")


def test_lack_of_disk_space_is_reported_before_the_download(lab):
    lab.serve("served", JUDGE, declared_bytes={"model.safetensors": 10**18})
    lab.card()
    ended = lab.fetch()
    assert ended.returncode == 1
    assert "needs 1000000000.0 GB" in ended.stderr
    assert "HF_HOME" in ended.stderr
    assert not [path for path in lab.hub.requests if path.startswith("/cdn/")]


def test_a_commit_given_by_hand_is_pinned_on_this_machine(lab):
    lab.serve("served", JUDGE)
    lab.card(source={"repo": "lab/served"}, parts={"adapter": {"repo": "lab/adapter"}})
    lab.serve("adapter", {"ip_adapter.safetensors": b"an adapter"})
    refused(lab.fetch("served", "--revision", COMMIT), "lab/adapter has no commit", "--revision adapter=COMMIT")
    refused(lab.fetch("served", "--revision", "main"), "only 'main'")
    assert not (lab.place / "cache/pins").exists()
    assert lab.fetched("served", "--revision", COMMIT, "--revision", f"adapter={COMMIT}")["served"]["here"]
    card = lab.show()
    assert (card["here"], card["revision"], card["revision_from"]) == (True, COMMIT, "this machine")
    refused(lab.fetch("served", "--revision", f"encoder={COMMIT}"), "no part 'encoder'")
    refused(lab.fetch("served", "tiny-clip", "--revision", COMMIT), "give only that model")
    refused(lab.fetch("tiny-clip", "--revision", COMMIT), "tiny-clip is built on this machine")


INDEXED = '{"weight_map": {"a": "model.safetensors", "b": "gone.safetensors"}}'


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model.safetensors": None, "pytorch_model.bin": b"\x80"}, "only pickled weights (pytorch_model.bin)"),
        ({"config.json": '{"text": {"auto_map": {"AutoModel": "modeling.Mine"}}}', "modeling.py": ""}, "(auto_map)"),
        ({"tokenizer_config.json": '{"trust_remote_code": true}'}, "(trust_remote_code)"),
        ({"config.json": "[]"}, "config.json is not a JSON object"),
        ({"model.safetensors.index.json": INDEXED}, "gone.safetensors, which is missing"),
    ],
)
def test_a_model_that_is_never_loaded_is_not_downloaded_either(lab, changes, message):
    lab.serve("served", {name: data for name, data in (JUDGE | changes).items() if data is not None})
    lab.card()
    refused(lab.fetch(), "lab/served", message)
    assert not [path for path in lab.hub.requests if path.startswith("/cdn/")]


def test_a_fetched_generator_works_without_network(lab, flux_weights):
    lab.hub.repos["lab/served"] = Repo(flux_weights, COMMIT)
    lab.card("tiny-flux", source={"repo": "lab/served", "revision": COMMIT})
    digest = lab.fetched()["served"]["weights_sha256"]
    lab.hub.__exit__()
    config = {
        "name": "r",
        "suite": {"limit": 1},
        "models": [{"card": "served", "height": 64, "width": 64, "num_inference_steps": 1}],
        "judge": {"card": "tiny-qwen3-vl", "base_url": "http://127.0.0.1:1/v1"},
        "metrics": [],
    }
    ended = lab.run("generate", lab.write("run.yaml", config), "--run-dir", "run", "--json")
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout)["candidates"]["n_done"] == 1
    model = json.loads((lab.place / "run/provenance.json").read_text())["models"]["served"]
    assert (model["weights_sha256"], model["revision"]) == (digest, COMMIT)


def flip(path: Path) -> None:
    """Changes one byte and puts the times back."""
    stat = path.stat()
    data = bytearray(path.read_bytes())
    data[7] ^= 1
    path.write_bytes(data)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


def added(lab, name, files):
    lab.serve(name, files, branch="main")
    ended = lab.run("models", "add", f"lab/{name}", "--json")
    assert ended.returncode == 0, ended.stderr
    card = json.loads(ended.stdout)["card"]
    assert card["source"] == {"repo": f"lab/{name}", "revision": COMMIT}
    return card


def test_what_is_neither_a_folder_nor_on_the_hub_is_refused_as_both(lab):
    lab.serve("there", {"README.md": ""}, branch="main")
    ended = lab.run("models", "add", "lab/wrong")
    assert ended.returncode == 2
    assert "there is no folder lab/wrong, and the Hub has no repository lab/wrong" in ended.stderr


def test_a_pipeline_is_added_from_the_hub_by_its_headers(lab):
    """No weights are downloaded; the card's commit is fetched later."""
    index = {
        "_class_name": "PixArtAlphaPipeline",
        "transformer": ["diffusers", "PixArtTransformer2DModel"],
        "vae": ["diffusers", "AutoencoderKL"],
    }
    files = {
        "README.md": "---\nlicense: apache-2.0\n---\n# Ours\n",
        "model_index.json": json.dumps(index),
        "transformer/config.json": '{"sample_size": 64}',
        "transformer/diffusion_pytorch_model.safetensors": save({"a": np.ones((30, 100), np.float16)}),
        "vae/config.json": '{"block_out_channels": [8, 8, 8, 8]}',
        "vae/diffusion_pytorch_model.safetensors": save({"b": np.ones(1000, np.float32)}),
    }
    card = added(lab, "pipe", files)
    assert (card["licence"], card["dtype"], card["family"]) == ("apache-2.0", "float16", "diffusers")
    assert (card["sampler"]["height"], card["sampler"]["guidance_scale"]) == (512, 4.5)
    assert lab.fetched("pipe")["pipe"]["here"]


def test_a_judge_is_added_from_the_hub_by_its_headers(lab):
    config = {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3", "mm_tokens_per_image": 256}
    files = {
        "README.md": "---\nlicense: gemma\n---\n",
        "config.json": json.dumps(config | {"text_config": {"max_position_embeddings": 131072}}),
        "model.safetensors": save({"a": np.ones((1000, 2000), np.float16)}),
    }
    card = added(lab, "judge", files)
    assert (card["role"], card["parameters_b"], card["licence"]) == ("judge", 0.002, "gemma")
    assert (card["image_tokens"], card["context"], card["max_model_len"]) == (260, 131072, 8192)


@pytest.mark.parametrize(
    ("name", "role", "given"), [("flux1-dev", "generator", True), ("clip-vit-l-14-336", "metric", False)]
)
def test_missing_weights_name_the_configs_folder_where_it_can_replace_them(monkeypatch, tmp_path, name, role, given):
    """A metric and a part have no `weights` in a config."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    with pytest.raises(WeightsError, match=f"models fetch {name}` on a machine with network access") as missing:
        resolve(card(name, role))
    assert ("give `weights: FOLDER` in the config" in str(missing.value)) == given


def test_only_the_files_that_a_card_names_come_from_the_hub_and_pickled_ones_are_converted(lab):
    lab.serve(
        "served",
        {"a.pth": checkpoint(TREE), "b.onnx": b"a graph of a network", "c.pth": b"never", "modeling.py": "code"},
    )
    lab.card("tiny-clip", source={"repo": "lab/served", "revision": COMMIT, "files": ["b.onnx", "a.pth"]})
    missing = lab.run("models", "show", "served")
    assert "b.onnx of served is not on this machine; its source is lab/served" in missing.stderr
    assert "local-bench models fetch served" in missing.stderr
    got = lab.fetched()["served"]
    assert set(got["manifest"]["files"]) == {"a.safetensors", "b.onnx"}
    assert [(o["url"], o["checked_by"]) for o in got["manifest"]["origins"]] == [
        (f"lab/served@{COMMIT}/b.onnx", "the Hub"),
        (f"lab/served@{COMMIT}/a.pth", "the Hub"),
    ]
    assert not [path for path in lab.hub.requests if path.endswith(("c.pth", ".py"))]
    assert got["revision"] == COMMIT
    folder = Path(got["folder"])
    assert torch.equal(read_converted(folder / "a.safetensors")["params"]["a"], torch.ones(2))
    lab.hub.__exit__()
    assert lab.show()["weights_sha256"] == got["weights_sha256"]
    assert "already on this machine" in lab.fetch().stderr
    flip(folder / "a.safetensors")
    assert "a.safetensors has changed since it was fetched" in lab.run("models", "show", "served").stderr
    lab.hub = Hub(lab.hub.repos)
    with lab.hub:
        assert lab.fetched()["served"]["weights_sha256"] == got["weights_sha256"]


def test_of_two_fetches_of_a_model_the_second_keeps_the_files_of_the_first(lab, monkeypatch):
    lab.serve("served", {"b.onnx": b"a graph of a network"})
    lab.card("tiny-clip", source={"repo": "lab/served", "revision": COMMIT, "files": ["b.onnx"]})
    link, others = fetch.link, []

    def during(source, target):
        link(source, target)
        if target.parent.name == "files":
            monkeypatch.setattr(fetch, "link", link)
            others.append(lab.fetched()["served"])
            others.append(Path(others[0]["folder"]).stat().st_ino)

    monkeypatch.setattr(fetch, "link", during)
    got = lab.fetched()["served"]
    assert got["weights_sha256"] == others[0]["weights_sha256"]
    assert Path(got["folder"]).stat().st_ino == others[1]  # the first one's process may be reading them


def test_a_tokenizer_is_a_part_without_weights(lab):
    """As that of `image-reward`: its digest counts, and the model itself still needs weights."""
    lab.serve("served", {"a.onnx": b"a graph"})
    lab.serve("words", {"vocab.txt": "[PAD]\n[UNK]\n", "model.safetensors": b"never"})
    source = {"repo": "lab/served", "revision": COMMIT, "files": ["a.onnx"]}
    words = {"repo": "lab/words", "revision": COMMIT, "files": ["vocab.txt"]}
    lab.card("tiny-image-reward", source=source, parts={"tokenizer": words})
    got = lab.fetched()["served"]
    assert set(got["manifest"]["parts"]["tokenizer"]["files"]) == {"vocab.txt"}
    assert lab.show()["weights_sha256"] == got["weights_sha256"]
    assert not [path for path in lab.hub.requests if path.endswith("model.safetensors")]


def test_a_file_that_the_repository_lacks_and_one_of_another_digest_are_refused(lab):
    lab.serve("served", {"a.pth": checkpoint(TREE)})
    for change, message in (
        ({"files": ["b.pth"]}, "lab/served has no file b.pth"),
        ({"files": ["a.pth"], "sha256": {"a.pth": "0" * 64}}, "a.pth is not the file that served expects"),
    ):
        lab.card("tiny-clip", source={"repo": "lab/served", "revision": COMMIT} | change)
        refused(lab.fetch(), message)
    assert not lab.show()["here"]


def test_files_of_a_pyiqa_metric_are_fetched_converted_and_pinned(lab):
    """BRISQUE: one small pickled file in pyiqa's own repository."""
    for metric in ("brisque", "cnniqa"):  # their addresses are made at import, with the Hub that is set then
        importlib.import_module(f"pyiqa.archs.{metric}_arch")

    commit = COMMITS["chaofengc/IQA-PyTorch-Weights"]
    support = (torch.randn(8) * 100, torch.rand(8, 36))
    folder = lab.place / "weights"
    folder.mkdir()
    (folder / "brisque_svm_weights.pth").write_bytes(checkpoint(support))
    (folder / "CNNIQA_koniq10k-e6f14c91.pth").write_bytes(checkpoint({"params": TREE}))
    lab.hub.repos["chaofengc/IQA-PyTorch-Weights"] = Repo(folder, commit)
    refused(
        lab.fetch("pyiqa:brisque", "pyiqa:cnniqa"),
        "CNNIQA_koniq10k-e6f14c91.pth is not the file that pyiqa:cnniqa expects",
    )
    lab.hub.__exit__()
    got = lab.show("pyiqa:brisque")
    assert got["here"]
    (origin,) = got["manifest"]["origins"]
    assert origin["url"] == f"chaofengc/IQA-PyTorch-Weights@{commit}/brisque_svm_weights.pth"
    assert set(got["manifest"]["files"]) == {"brisque_svm_weights.safetensors", "pyiqa.json"}
    assert got["manifest"]["weights_sha256"] == got["weights_sha256"]
    back = read_converted(Path(got["folder"]) / "brisque_svm_weights.safetensors")
    assert all(torch.equal(a, b) for a, b in zip(back, support, strict=True))
