"""Scripts, small: each can be imported, and what they measure or write."""

import importlib
import json

import pytest

from scripts import learning_curve
from scripts.write_reference import FOLDER, pages

from ..conftest import ROOT

SCRIPTS = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for folder in ("scripts", "examples")
    for path in (ROOT / folder).rglob("*.py")
    if path.stem != "__main__"
)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_can_be_imported(name):
    importlib.import_module(name)


def test_a_small_curve(monkeypatch):
    monkeypatch.setattr(learning_curve, "SIZES", (60,))
    made = learning_curve.images(40)
    assert len(made) == 160
    assert made == learning_curve.images(40), "seeded"
    found = learning_curve.curve(made, "strict", 2)
    assert [row["kind"] for row in found["rows"]] == ["rule", "logistic"]
    assert all(0.3 < row["accuracy"] <= 1 for row in found["rows"])
    assert found["client_without_noise"] > 0.75
    json.dumps(found, allow_nan=False)


@pytest.mark.parametrize("name", ["config.md", "task-files.md", "cards.md", "cli.md"])
def test_the_reference_is_up_to_date(name):
    assert (FOLDER / name).read_text() == pages()[name].rstrip() + "\n", "run scripts/write_reference.py"
