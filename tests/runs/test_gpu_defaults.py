"""The defaults of a GPU that other tests leave off, in whole runs on a CPU (`docs/gpu-check.md` lists them)."""

import json
import os
import signal
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from PIL import Image
from torch._dynamo.utils import counters

from local_bench.generators.staged import Staged
from local_bench.models.weights import resolve
from local_bench.runs.config import RunConfig
from local_bench.runs.worker import Worker
from tests.fake_cuda import fake_cuda
from tests.generators.conftest import machine, small  # noqa: F401  # a fixture
from tests.orders import order, write_orders
from tests.small_references import small_references
from tests.stages import run_stages

from .child import at_call, kill_self
from .test_device_memory import images, order_of
from .test_generate import candidates, digest_of

GRAPHS = {"tiny-flux-kontext": 2, "tiny-qwen-image-edit-plus": 1}
"""Graphs, one for each kind of block, of models whose images are encoded before denoising, and while denoising, with
prompts of their own length. `test_gpu_path` counts those of every family."""


@pytest.fixture(scope="module")
def orders(tmp_path_factory):
    """Edits of a wide and of a tall image, whose rules require the same aspects of models without input images."""
    folder = tmp_path_factory.mktemp("orders")
    lines = []
    for name, size, ratio in (("wide", (128, 64), "2:1"), ("tall", (64, 96), "2:3")):
        Image.effect_noise(size, 50).convert("RGB").save(folder / f"{name}.png")
        rules = [{"visual_specs": {"aspect_ratio": ratio}}]
        lines.append(order(name, ["an image"], source_image=f"{name}.png", rules=rules))
    write_orders(folder / "tasks.jsonl", lines)
    return folder


def compiled_config(orders: Path, **suite) -> RunConfig:
    return RunConfig(
        name="t",
        suite={"name": "servimage", "path": str(orders / "tasks.jsonl"), "sizes_from_rules": True, **suite},
        models=[{"card": name, "height": 64, "width": 64, "num_inference_steps": 2} for name in GRAPHS],
        metrics=[],
        engine={"device": "cpu", "compile": True},
    )


class Event:
    """An event of a GPU that is always done."""

    def __init__(self, enable_timing):
        self.log = []

    def record(self, stream):
        EVENTS.append("recorded")

    def synchronize(self):
        EVENTS.append("waited for")

    def elapsed_time(self, later):
        return 1.0


EVENTS: list[str] = []


@pytest.mark.parametrize("name", ["flux", "flux_kontext"])
def test_a_worker_of_a_gpu_gives_the_images_of_a_cpu(tmp_path, monkeypatch, machine, name):  # noqa: F811
    """On tensors that track devices: what is encoded is kept on the host, images are copied to it behind events."""
    for folder in ("cpu", "gpu"):
        (tmp_path / folder).mkdir()
    weights = resolve(small(name)[0])
    on_cpu, jobs = order_of(tmp_path / "cpu", name, batch_size=2, weights=weights)
    expected = images(Worker(on_cpu).make(jobs[:3]))
    h100 = SimpleNamespace(name="NVIDIA H100 80GB HBM3", multi_processor_count=132, major=9, minor=0)
    results = dict.fromkeys(("set_device", "synchronize", "empty_cache", "current_stream"))
    results |= {"memory_stats": {"num_ooms": 0}, "get_device_name": h100.name, "get_device_properties": h100}
    for function, value in results.items():
        monkeypatch.setattr(torch.cuda, function, lambda device=None, value=value: value)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 92000)
    EVENTS.clear()
    on_gpu, _ = order_of(tmp_path / "gpu", name, batch_size=2, weights=weights, device="cuda:0")
    with fake_cuda():
        assert images(Worker(on_gpu).make(jobs[:3])) == expected
    assert EVENTS.count("recorded") == 1 + 2 * 2  # the clock's zero; the end of denoising and of decoding, twice
    assert EVENTS.index("waited for") < EVENTS.index("recorded", 1)


@pytest.mark.compiler
@pytest.mark.slow
def test_compiled_runs_give_equal_bytes_after_a_kill_and_one_graph_for_all_sizes(orders, tmp_path, monkeypatch):
    small_references(monkeypatch.setattr)
    monkeypatch.setattr(torch._inductor.config.cpp, "vec_isa_ok", True)  # compiles no trial of the processor
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")
    graphs = {}
    real = Staged.drop_denoiser

    def counted(self):
        graphs[self.card.name] = counters["stats"]["unique_graphs"] - sum(graphs.values())
        real(self)

    counters.clear()
    with monkeypatch.context() as patch:
        patch.setattr(Staged, "drop_denoiser", counted)
        run_stages(compiled_config(orders), tmp_path / "run", ("generate",))
    rows = candidates(tmp_path / "run")
    assert {row["state"] for row in rows} == {"done"}
    assert {row["batch_size"] for row in rows if row["model"] == "tiny-flux-kontext"} == {4}  # by the probe
    samplers = [(row["model"], json.loads(row["work"])["sampler"]) for row in rows]
    sizes = {(name, sampler["height"], sampler["width"]) for name, sampler in samplers}
    assert len(sizes) == 2 * len(GRAPHS)
    assert graphs == GRAPHS

    pid = os.fork()
    if pid == 0:
        torch._dynamo.reset()  # compiles again, from the cache
        at_call(Staged, "pixels", 6, kill_self)  # after a warm-up, three calls of the probe, and the first batch
        run_stages(compiled_config(orders), tmp_path / "killed", ("generate",))
        os._exit(1)  # not reached
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    made = [row for row in candidates(tmp_path / "killed") if row["state"] == "done"]
    assert 0 < len(made) < len(rows)
    run_stages(compiled_config(orders), tmp_path / "killed", ("generate",))
    assert digest_of(tmp_path / "killed") == digest_of(tmp_path / "run")
