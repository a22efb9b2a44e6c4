"""The cards agree with the code that runs them and with each other."""

import re
from pathlib import Path

import pytest
import torch
import transformers

from local_bench.core.errors import ConfigError
from local_bench.core.files import configs_dir
from local_bench.core.yamlfile import check, read_yaml
from local_bench.generators.registry import FAMILIES
from local_bench.models.cards import ModelCard, cards
from local_bench.models.gpus import gpu

GENERATORS = {name: card for name, card in cards().items() if card.role == "generator" and card.family != "diffusers"}
"""Those with stages; tests/generators/test_generic_cards.py has the others."""
SMALL = {name: card for name, card in GENERATORS.items() if card.source.build}
REAL = {name: card for name, card in GENERATORS.items() if not card.source.build}
JUDGES = {name: card for name, card in cards().items() if card.role == "judge"}
REAL_JUDGES = {name: card for name, card in JUDGES.items() if not card.source.build}
SIZES = read_yaml(Path(__file__).resolve().parents[1] / "data" / "judge_sizes.yaml")[0]


def test_every_family_has_a_real_card_and_a_small_one_that_takes_the_same():
    real_of = {card.family: card for card in reversed(REAL.values())}
    assert set(real_of) == {card.family for card in SMALL.values()} == set(FAMILIES)
    for name, small in SMALL.items():
        real = real_of[small.family]
        settings = [{k for k, v in card.sampler.model_dump().items() if v is not None} for card in (small, real)]
        assert settings[0] == settings[1], name
        assert small.takes.text_alone == real.takes.text_alone, name
        assert bool(small.takes.pictures) == bool(real.takes.pictures), name


@pytest.mark.parametrize("name", GENERATORS)
def test_a_generator_names_its_pieces_source_requirements_and_guidance(name):
    described = GENERATORS[name]
    pieces = read_yaml(configs_dir() / "architectures.yaml")[0]["pieces"]
    referenced = [piece for piece in described.architecture.values() if isinstance(piece, str)]
    assert referenced
    assert set(referenced) <= set(pieces)
    assert {"vae", "scheduler"} <= set(described.architecture)
    weighty = [piece for part, piece in described.architecture.items() if part in ("vae", "text_encoder")]
    assert {piece.startswith(("tiny-", "mini-")) for piece in weighty} == {name in SMALL}
    assert set(described.vram_by_phase_gb) == {"encode", "denoise", "decode"}
    assert described.vram_gb == max(described.vram_by_phase_gb.values())
    assert described.pflop_per_image
    assert (described.dtype == "float32") == (name in SMALL)
    if name in REAL:
        assert described.source.repo.count("/") == 1
        assert described.licence
        gated = described.source.repo.startswith(("black-forest-labs/", "stabilityai/")) and not name.endswith("-4b")
        assert described.gated == gated
    sampler, takes = described.sampler, described.takes
    if sampler.true_cfg_scale is not None:
        assert sampler.negative_prompt, "without a negative prompt there would silently be no guidance"
        assert sampler.guidance_scale is None
    assert (sampler.image_guidance_scale is not None) == (described.family in ("instruct_pix2pix", "omnigen"))
    assert (sampler.adapter_scale is not None) == (described.family == "flux_ip_adapter")
    assert takes.text_alone or takes.pictures
    assert (takes.condition is not None) == (described.family == "flux_control")
    assert not takes.size_from_picture or takes.pictures
    assert sampler.height % takes.size_multiple == sampler.width % takes.size_multiple == 0


def test_a_judge_takes_an_image_and_answers():
    for name, judge in JUDGES.items():
        assert judge.judge_min_pixels <= judge.judge_max_pixels, name
        thought = judge.thinking.budget_tokens if judge.thinking else 0
        most = judge.tokens_of_image(judge.judge_max_pixels) + thought + 2048
        assert most <= judge.max_model_len <= judge.context, name
    pinned = [judge.source.revision for judge in REAL_JUDGES.values() if judge.source.revision]
    assert len(set(pinned)) == len(pinned)


@pytest.mark.parametrize("name", REAL_JUDGES)
def test_a_real_judge_names_its_source_is_pinned_and_fits_the_gpus_of_its_card(name):
    """Its weights in bfloat16 and a margin, within the part of 80 GB that the server may take."""
    judge = REAL_JUDGES[name]
    owner = judge.source.repo.partition("/")[0]
    comment = "".join(line for line in (configs_dir() / f"models/{name}.yaml").read_text().splitlines() if "#" in line)
    assert bool(re.fullmatch("[0-9a-f]{40}", judge.source.revision or "")) is ("needs --revision" not in comment)
    licences = {"CodeGoat24": "MIT", "zai-org": "MIT"} | {"google": "Gemma" if "gemma3" in name else "Apache-2.0"}
    assert judge.licence == ("Qwen License" if "qwen" in name and "72b" in name else licences.get(owner, "Apache-2.0"))
    assert judge.gated is (judge.licence == "Gemma")
    patches = {"qwen2-vl": 28, "qwen25-vl": 28, "glm4v": 28, "glm4v-moe": 28, "gemma4": 48, "internvl": 1, "gemma3": 1}
    assert judge.patch == patches.get(judge.family, 32)
    assert judge.patch > 1 or judge.image_tokens, "the context cannot be planned"
    assert judge.judge_max_pixels <= 1024 * 1024
    assert judge.judge_max_pixels % judge.patch**2 == 0, "a whole number of patches"
    part_gb = 0.92 * gpu("h100").memory_gb
    assert 1 < (judge.vram_gb - 2 * judge.parameters_b) / judge.tensor_parallel_size < 6
    assert judge.vram_gb / judge.tensor_parallel_size <= part_gb
    assert judge.tensor_parallel_size == 1 or judge.vram_gb > part_gb, "split without need"


@pytest.mark.parametrize("name", SIZES)
def test_a_judge_has_the_parameters_of_its_class_with_the_published_sizes(name):
    """On the meta device. Gemma ties its output to its embeddings; the others store both."""
    sizes = SIZES[name]
    kind, tied = sizes["class"], sizes["class"] == "Gemma3"
    parts = {key: sizes[key] for key in ("text_config", "vision_config")}
    parts["text_config"] = {**parts["text_config"], "tie_word_embeddings": tied}
    config = getattr(transformers, f"{kind}Config")(**parts, tie_word_embeddings=tied)
    with torch.device("meta"):
        model = getattr(transformers, f"{kind}ForConditionalGeneration")(config)
    total = sum(parameter.numel() for parameter in model.parameters())
    assert total / 1e9 == pytest.approx(REAL_JUDGES[name].parameters_b, rel=0.01)
    if merge := getattr(config.vision_config, "spatial_merge_size", None):
        assert config.vision_config.patch_size * merge == REAL_JUDGES[name].patch


def test_a_card_that_would_serve_more_than_the_model_takes_is_refused():
    data = JUDGES["qwen2-vl-7b"].model_dump() | {"max_model_len": 40_000}
    with pytest.raises(
        ConfigError, match=r"card\.yaml: .*max_model_len is 40000, more than the model's context of 32768"
    ):
        check(data, ModelCard, "card.yaml")
