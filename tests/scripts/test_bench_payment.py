import sys

import pytest
import torch

from scripts import bench_payment
from tests.judges.payment import tiny
from tests.judges.payment.test_adapters import backbone


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
