"""Scripts, small: each can be imported, and what they measure or write."""

import importlib
import json
import sys

import pytest
import torch

from scripts import bench_payment, learning_curve
from scripts.write_reference import FOLDER, pages
from tests.judges.payment import tiny
from tests.judges.payment.test_adapters import backbone

from ..conftest import ROOT


def test_steps_are_measured_on_a_small_model():
    model = backbone("tiny-qwen3-vl")
    device = torch.device("cpu")
    batch, workload = bench_payment.synthetic_batch(model.config, 64, 2, device)
    assert workload.image_tokens == int(batch.image_tokens.sum()) == 2 * 4 * 4
    with torch.random.fork_rng():
        torch.manual_seed(0)
        found = bench_payment.measure(model, tiny.config(), batch, 2, device)
    assert len(found["seconds"]) == 2
    assert found["losses"][-1] < found["losses"][0]  # one example, learnt by heart
    assert found["trained_parameters"] > 0


def test_without_a_gpu_it_is_refused(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(sys, "argv", ["bench_payment.py"])
    with pytest.raises(SystemExit, match="needs a CUDA GPU"):
        bench_payment.main()


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
