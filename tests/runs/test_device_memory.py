"""Device memory: what a plan decides does not follow what is free, and what runs out is recovered from."""

import gc
import threading
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from local_bench.core.errors import ConfigError, LocalBenchError
from local_bench.core.types import Message
from local_bench.generators import capacity
from local_bench.generators.memory import OTHERS_GB
from local_bench.generators.numerics import set_determinism
from local_bench.generators.registry import Sampler
from local_bench.models.cards import cards
from local_bench.models.gpus import gpus
from local_bench.runs import generate as orders
from local_bench.runs import worker as workers
from local_bench.runs.config import EngineConfig, ModelConfig
from local_bench.runs.executors.base import WorkerDevice
from local_bench.runs.generate import placement_of, work_order
from local_bench.runs.store import Candidate
from local_bench.runs.work import BatchSizeChosen, ImagesFinished, ModelPlan, WorkOrder
from local_bench.runs.worker import Worker
from tests.generators.conftest import PROMPTS, small

from . import job, plain_order

OUT_OF_MEMORY = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
NO_ENGINE = RuntimeError("GET was unable to find an engine to execute this computation")


@pytest.fixture
def gpu_with(monkeypatch):
    """Makes cuda:0 a GPU of `configs/gpus.yaml` with some free memory."""

    def change(known, free_gb, total_gb=None):
        total = total_gb or known.memory_gb + 0.1
        major, minor = divmod(int(known.gpu_class.removeprefix("sm")), 10)
        name = f"NVIDIA {known.matches[0]}"
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (int(free_gb * 1e9), int(total * 1e9)))
        monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: 0)
        monkeypatch.setattr(torch.cuda, "get_device_name", lambda device=None: name)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(name=name))
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (major, minor))
        monkeypatch.setattr(orders, "host_memory_gb", lambda: 256.0)

    return change


def work_order_of(card, placement=(), **engine):
    sampler = {name: value for name, value in card.sampler.model_dump().items() if value is not None}
    model = ModelPlan(ModelConfig(card=card.name), card, weights_sha256="x", sampler=sampler)
    largest = job("a", "p", 0, Sampler(**sampler))
    device, folder = WorkerDevice("cuda:0", 1), Path("/nowhere")
    return work_order(device, model, EngineConfig(**engine), folder, largest, 1, {}, dict(placement))


@pytest.mark.parametrize("known", gpus().values(), ids=lambda known: known.name)
@pytest.mark.parametrize("name", ["qwen-image", "flux2-dev"])
def test_a_work_order_is_the_same_for_all_free_memory_or_refused(gpu_with, known, name):
    orders_made, refusals = set(), []
    for free_gb in (*(known.memory_gb + 0.1 - less for less in (0, 0.5, 1, 2, 5)), 1):
        gpu_with(known, free_gb)
        try:
            orders_made.add(repr(work_order_of(cards()[name])))
        except ConfigError as e:
            refusals.append(str(e))
    assert len(orders_made) <= 1
    assert refusals
    if orders_made:
        assert "GB are free: end other processes that use it" in refusals[-1]


def test_a_desktop_may_use_some_memory(gpu_with):
    """The CUDA context and a desktop take 0.5 GB each."""
    for known in gpus().values():
        gpu_with(known, known.memory_gb + 0.1 - 0.5 - OTHERS_GB)
        work_order_of(cards()["flux1-dev" if known.memory_gb > 30 else "sd3-medium"])


def test_the_first_sessions_decision_holds_for_all_later_ones(gpu_with):
    """A run that grows by larger images, or one that continues with smaller ones."""
    card = cards()["qwen-image"]
    gpu_with(gpus()["a100-40"], 42)
    streamed, _ = work_order_of(card)
    assert placement_of(streamed) == {"offload": ["denoise"], "compile": False}
    gpu_with(gpus()["h100"], 85)
    resident, _ = work_order_of(card)
    assert placement_of(resident) == {"offload": [], "compile": True}
    for first in (streamed, resident):
        later, _ = work_order_of(card, placement_of(first))
        assert placement_of(later) == placement_of(first)
    with pytest.raises(ConfigError, match=r"engine.offload=always runs uncompiled, and this run's images are"):
        work_order_of(card, placement_of(resident), offload="always")
    gpu_with(gpus()["a100-40"], 42)
    assert work_order_of(card, placement_of(streamed), offload="always")[0].offload


# ---- memory that runs out


def order_of(folder: Path, name: str = "flux", **changes) -> tuple[WorkOrder, list[Candidate]]:
    card, sampler = small(name)
    jobs = [job(f"{i}", PROMPTS[i % len(PROMPTS)], i, sampler) for i in range(8)]
    return plain_order(card, folder, **{"batch_size": 4, "attempts": 4} | changes), jobs


def worker_of(folder: Path, **changes) -> tuple[Worker, list[Candidate]]:
    work, jobs = order_of(folder, **changes)
    return Worker(work), jobs


def broken(worker: Worker, stage: str, when, error: Exception, held: list | None = None) -> list[int]:
    """Makes a stage of the worker's generator raise `error` in the calls for which `when(number, argument)` holds."""
    real, calls = getattr(worker._generator, stage), []

    def run(*arguments):
        if held:
            gc.collect()
            assert held[0]() is None, "tensors of the failed call are alive"
        calls.append(len(calls))
        if when(len(calls), arguments[0]):
            activations = torch.zeros(1000, 1000)  # what a forward pass holds
            if held is not None:
                held.append(weakref.ref(activations))
            raise type(error)(*error.args)
        return real(*arguments)

    setattr(worker._generator, stage, run)
    return calls


def images(events) -> dict[str, str]:
    return {r.work_id: r.pixels_sha256 for e in events if isinstance(e, ImagesFinished) for r in e.results}


def sizes(events) -> list[int]:
    return [e.batch_size for e in events if isinstance(e, BatchSizeChosen)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory, cache):
    worker, jobs = worker_of(tmp_path_factory.mktemp("undisturbed"), batch_size=2)
    return images(worker.make(jobs))


@pytest.mark.parametrize(("stage", "error"), [("denoise", OUT_OF_MEMORY), ("pixels", NO_ENGINE)])
def test_the_next_call_begins_after_the_failed_tensors_are_released(tmp_path, undisturbed, stage, error):
    worker, jobs = worker_of(tmp_path)
    held: list = []
    broken(worker, stage, lambda call, batch: len(batch) == 4 and call > 3, error, held)  # three of the probe
    events = list(worker.make(jobs))
    assert len(held) == 1
    assert sizes(events) == [4, 2]
    assert images(events) == undisturbed


def test_a_workspace_that_did_not_fit_counts_as_running_out_of_memory(tmp_path, undisturbed, monkeypatch):
    """torch catches the failure, and the batch ends with another algorithm's values and without an error."""
    worker, jobs = worker_of(tmp_path)
    n, threads, decode = 0, [], worker._generator.pixels

    def pixels(latents, sampler):
        nonlocal n
        threads.append(threading.current_thread().name)
        n += len(threads) == 4  # the first batch after the probe
        return decode(latents, sampler).roll(1) if len(threads) == 4 else decode(latents, sampler)

    monkeypatch.setattr(workers, "failed_allocations", lambda device: n)
    worker._generator.pixels = pixels
    events = list(worker.make(jobs))
    assert sizes(events) == [4, 2]
    assert images(events) == undisturbed
    assert set(threads[:4]) == {"MainThread"}
    assert "MainThread" not in threads[4:]  # torch keeps its choice of algorithms by thread


def test_a_new_thread_compiles_with_the_same_settings(tmp_path, monkeypatch):
    """Settings of torch's compiler hold for a context, and a new thread has an empty one."""
    set_determinism(1)
    counter, real = CompileCounterWithBackend("eager"), torch.compile
    monkeypatch.setattr(torch, "compile", lambda *a, **k: real(*a, **{**k, "backend": counter}))
    worker, jobs = worker_of(tmp_path, compile=True)
    settings, denoise = [], worker._generator.denoise

    def recorded(items):
        thread = threading.current_thread().name
        inductor, dynamo = torch._inductor.config, torch._dynamo.config
        values = (inductor.deterministic, dynamo.recompile_limit, dynamo.fail_on_recompile_limit_hit)
        duck, tag = torch.fx.experimental._config.use_duck_shape, torch.compiler.config.cache_key_tag
        settings.append((thread, (*values, duck, tag)))
        if len(items) == 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return denoise(items)

    worker._generator.denoise = recorded
    assert sizes(worker.make(jobs)) == [2]
    threads, values = zip(*settings, strict=True)
    assert len(set(threads)) == 2
    assert len(set(values)) == 1
    assert values[0][:4] == (True, 4096, True, False)
    assert values[0][4]


def test_failed_allocations_are_those_that_torch_counts(monkeypatch):
    monkeypatch.setattr(torch.cuda, "memory_stats", lambda device: {"num_ooms": 3, "allocation.all.current": 1})
    assert capacity.failed_allocations(torch.device("cuda", 0)) == 3
    assert capacity.failed_allocations(torch.device("cpu")) == 0


ONE_IMAGE = r"memory of cpu ran out with a batch of one image .*: end other processes"


@pytest.mark.parametrize(
    ("stage", "first", "error", "raised", "message"),
    [
        ("denoise", 1, OUT_OF_MEMORY, LocalBenchError, ONE_IMAGE),
        ("pixels", 1, NO_ENGINE, LocalBenchError, ONE_IMAGE),
        ("encode_text", 2, OUT_OF_MEMORY, LocalBenchError, r"ran out while a prompt was encoded .*GiB\): end other"),
        ("denoise", 5, RuntimeError("CUDA error: an illegal memory access"), RuntimeError, "illegal memory access"),
    ],
)
def test_what_no_smaller_batch_mends_is_one_sentence_and_other_errors_pass(
    tmp_path, stage, first, error, raised, message
):
    worker, jobs = worker_of(tmp_path)
    broken(worker, stage, lambda call, _: call >= first, error)
    with pytest.raises(raised, match=message):
        list(worker.make(jobs))


def test_running_out_while_encoding_continues_with_offloaded_encoders(tmp_path, undisturbed):
    worker, jobs = worker_of(tmp_path, batch_size=2)
    calls = broken(worker, "encode_text", lambda call, _: call == 2, OUT_OF_MEMORY)
    events = list(worker.make(jobs))
    assert len(calls) == len(PROMPTS) + 1
    (sentence,) = (event.sentence for event in events if isinstance(event, Message))
    assert sentence == "tiny-flux: out of memory, continuing with offloaded text encoders"
    assert images(events) == undisturbed


def test_one_image_with_non_finite_pixels_is_unscored_and_the_others_are_not(tmp_path, undisturbed):
    """The latents are finite: a VAE in half precision overflows."""
    worker, jobs = worker_of(tmp_path, batch_size=2)
    real, calls = worker._generator.latents_to_pixels, []

    def overflowing(latents, sampler):
        calls.append(1)
        decoded = real(latents, sampler)
        if len(calls) == 8:  # three batches of the probe, and the second image of the first batch
            decoded[0, 0, 5, 5] = float("inf")
        return decoded

    worker._generator.latents_to_pixels = overflowing
    made_images = images(worker.make(jobs))
    assert [key for key, sha in made_images.items() if sha is None] == ["1"]
    assert made_images == undisturbed | {"1": None}
