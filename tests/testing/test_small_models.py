"""The small trained models in `weights/`: all present, each file once, unchanged, and as their cards describe them."""

import hashlib
import json
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from local_bench.core.files import weights_dir
from local_bench.generators.architecture import components
from local_bench.models import shipped
from local_bench.models.cards import SHIPPED, cards
from local_bench.models.weights import resolve

MODELS = {name: card for name, card in cards().items() if card.source.build == SHIPPED}
MOST_MB = 15


def index():
    return json.loads((weights_dir() / shipped.INDEX).read_text())


def parameters(folder: Path) -> dict[str, int]:
    """By the folder of each file."""
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        with safe_open(path, "numpy") as file:
            found[path.parent.name] = sum(file.get_tensor(key).size for key in file.keys())  # noqa: SIM118
    return found


def test_every_shipped_file_is_present_once_and_no_other():
    entries = [entry for files in index().values() for entry in files.values()]
    by_file = {entry["file"]: entry["sha256"] for entry in entries}
    assert len(set(by_file.values())) == len(by_file)
    shipped_files = {p.relative_to(weights_dir()).as_posix() for p in weights_dir().rglob("*") if p.is_file()}
    assert shipped_files - {shipped.INDEX, "README.md"} == set(by_file)
    for file, sha256 in by_file.items():
        assert hashlib.sha256((weights_dir() / file).read_bytes()).hexdigest() == sha256, file
    assert sum(p.stat().st_size for p in weights_dir().rglob("*.safetensors")) < MOST_MB * 10**6


def test_every_model_has_a_card_and_every_card_a_model():
    assert set(index()) == set(MODELS)
    roles = {name: card.role for name, card in MODELS.items()}
    assert sorted(roles.values()) == ["generator"] * 4 + ["judge"] + ["metric"] * 2


@pytest.mark.parametrize("name", [name for name, card in MODELS.items() if card.role == "generator"])
def test_counted_parameters_equal_the_shipped_ones(name):
    """`plan` counts on the card's architecture; the weights are its."""
    card = MODELS[name]
    built = components(card, "meta", torch.float32)
    counted = {
        part: sum(p.numel() for p in module.parameters())
        for part, module in built.items()
        if isinstance(module, torch.nn.Module)
    }
    in_files = parameters(resolve(card))
    assert {part: n for part, n in counted.items() if part in in_files} == pytest.approx(
        in_files, rel=0.01
    )  # files hold buffers too
    assert card.parameters_b == pytest.approx(sum(in_files.values()) / 1e9, rel=0.01)
