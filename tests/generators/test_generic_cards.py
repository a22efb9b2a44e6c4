"""The cards of the family `diffusers`: the pipeline is installed and takes their settings, and their figures are those
of the components that tests/data/generic_models.yaml describes, built on the meta device."""

import inspect
import re
from functools import cache
from math import prod
from pathlib import Path
from typing import Any

import diffusers
import pytest
import torch
import transformers
import yaml

from local_bench.generators.any_pipeline import arguments_of
from local_bench.generators.architecture import build
from local_bench.models.cards import cards
from tests.generators.checkpoints import fingerprint, fingerprints

KNOWN = yaml.safe_load((Path(__file__).resolve().parents[1] / "data" / "generic_models.yaml").read_text())
CARDS = {name: card for name, card in cards().items() if card.family == "diffusers"}


@cache
def shapes(spec: str) -> dict[str, tuple[int, ...]]:
    """Names and shapes of a component's parameters: a piece of configs/architectures.yaml, or a class with a config."""
    described: Any = yaml.safe_load(spec)
    described = KNOWN["shared"].get(described, described) if isinstance(described, str) else described
    if isinstance(described, str):
        module = build(described, "meta", torch.bfloat16)
    else:
        ((name, config),) = described.items()
        with torch.device("meta"):
            own = getattr(diffusers, name, None)
            kind = own or getattr(transformers, name)
            module = kind(**config) if own else kind(kind.config_class(**config))
    return {name: tuple(tensor.shape) for name, tensor in module.named_parameters()}


def parameters(spec: Any) -> int:
    return sum(prod(shape) for shape in shapes(yaml.safe_dump(spec)).values())


def test_every_card_is_described_and_no_other():
    assert sorted(CARDS) == sorted(KNOWN["models"])
    assert len(CARDS) >= 18


@pytest.mark.parametrize("name", CARDS)
def test_the_pipeline_takes_the_cards_settings_and_has_these_components(name):
    card, facts = CARDS[name], KNOWN["models"][name]
    assert card.pipeline == facts["pipeline"]
    pipeline = getattr(diffusers, card.pipeline)
    assert bool(card.takes.pictures) == bool(arguments_of(pipeline, card).image)
    expected = inspect.signature(pipeline.__init__).parameters
    optional = {"safety_checker", "image_encoder", "siglip"}
    weighted = {n for n in expected if re.search(r"(encoder(_\d)?|transformer|unet|vae|pe)$", n)}
    assert weighted - optional == set(facts["components"])


@pytest.mark.parametrize("name", CARDS)
def test_parameters_and_memory_are_those_of_the_components(name):
    card, known = CARDS[name], KNOWN["models"][name]
    sizes = {part: parameters(spec) for part, spec in known["components"].items()}
    total, largest = sum(sizes.values()) / 1e9, max(sizes.values()) / 1e9
    gb = card.vram_by_phase_gb
    assert card.parameters_b == pytest.approx(total, rel=0.005)
    assert gb["denoise"] == pytest.approx(2 * total, rel=0.005)
    assert gb["component"] == pytest.approx(2 * largest, rel=0.005)
    assert gb["decode"] == card.vram_gb > gb["denoise"]
    assert card.pflop_per_image


@pytest.mark.parametrize("name", [name for name, known in KNOWN["models"].items() if "fingerprint" in known])
def test_names_and_shapes_of_the_denoiser_are_those_of_the_checkpoint(name):
    known = KNOWN["models"][name]
    denoiser = known["components"].get("transformer") or known["components"]["unet"]
    assert fingerprint(shapes(yaml.safe_dump(denoiser))) == fingerprints()[known["fingerprint"]]["md5"]


def test_a_card_names_its_source():
    for name, card in CARDS.items():
        assert card.source.repo.count("/") == 1, name
        assert card.licence
        assert card.gated == card.source.repo.startswith("krea/")
        lines = (Path(__file__).resolve().parents[2] / "configs" / "models" / f"{name}.yaml").read_text().splitlines()
        assert len(lines) <= 25
        assert bool(card.source.revision) != any("could not be verified" in line for line in lines)
