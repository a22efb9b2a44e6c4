"""The GPU check on a CPU: its loop, its rows, and each GPU-only call, compared with the library's signature."""

import json
import math
import os
import subprocess
import sys
import time
from dataclasses import replace
from unittest.mock import create_autospec

import pynvml
import pytest
import torch
from diffusers.models import attention_dispatch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn.attention import SDPBackend, sdpa_kernel

from local_bench.core.errors import ConfigError
from local_bench.generators import device as placement
from local_bench.generators.architecture import architecture_digest, piece
from local_bench.generators.flux import Flux
from local_bench.generators.numerics import set_determinism
from local_bench.generators.operations import count
from local_bench.generators.registry import FAMILIES
from local_bench.generators.staged import Staged
from local_bench.models.cards import cards
from local_bench.models.gpus import gpu
from local_bench.runs import meter
from local_bench.runs.gpu_check import checks, generation, main, models
from local_bench.runs.gpu_check.checks import (
    MEMORY_GB,
    Check,
    CheckFailed,
    CheckPassed,
    CheckSkipped,
    Session,
    chosen,
    run_checks,
)
from local_bench.runs.worker import Worker

from ..conftest import ROOT
from ..test_packaging import installed

LOAD = Staged.load_denoiser
GPU = torch.device("cuda", 0)
TOTAL = 143_000_000_000
"""An H200's bytes."""


@pytest.fixture
def session(tmp_path):
    set_determinism(1)
    return Session(torch.device("cpu"), tmp_path, minutes=10)


@pytest.fixture
def on_gpu(tmp_path, monkeypatch):
    """A session on a simulated GPU: each call has the signature of the real one."""
    nothing = ("synchronize", "empty_cache", "reset_peak_memory_stats", "set_per_process_memory_fraction")
    values = {"memory_reserved": 6 * 10**9, "mem_get_info": (TOTAL - 10**9, TOTAL), "get_device_name": "NVIDIA H200"}
    for name, value in (dict.fromkeys((*nothing, "current_stream")) | values).items():
        monkeypatch.setattr(torch.cuda, name, create_autospec(getattr(torch.cuda, name), return_value=value))
    return Session(GPU, tmp_path, minutes=10)


# ---- the loop


def fails(_):
    raise CheckFailed("it does not hold", {"n": 1})


def breaks(_):
    raise RuntimeError("CUDA error: an illegal memory access was encountered\nsecond line")


def skips(_):
    raise CheckSkipped("not installed")


CHECKS = [Check(name, "tried", run) for name, run in (("a:1", fails), ("a:2", breaks), ("b", skips))]
CHECKS.append(Check("c", "tried", lambda _: CheckPassed("it holds", {"n": 2})))


def test_a_failed_check_is_a_row_and_the_others_run(session):
    rows = run_checks(CHECKS, session, lambda _: None)
    assert [(row.check, row.status, row.figures, row.in_time) for row in rows] == [
        ("a:1", "failed", {"n": 1}, True),
        ("a:2", "failed", {}, True),
        ("b", "skipped", {}, True),
        ("c", "passed", {"n": 2}, True),
    ]
    assert rows[0].detail == "it does not hold"
    assert rows[1].detail.startswith("RuntimeError: CUDA error: an illegal memory access was encountered second line (")
    assert "test_gpu_check.py:" in rows[1].detail


def test_a_check_that_would_end_after_the_limit_is_not_begun(session):
    session.started = time.monotonic() - 500
    rows = run_checks([replace(CHECKS[3], needs_s=120), CHECKS[3]], session, lambda _: None)
    assert [(row.status, row.in_time) for row in rows] == [("skipped", False), ("passed", True)]
    assert rows[0].detail == "not begun: it takes about 120 s, and the limit is 10 minutes"


def slow(session):
    time.sleep(session.left_s + 0.01)
    raise subprocess.TimeoutExpired("vllm", 5)


@pytest.mark.parametrize("more", [[], CHECKS[3:], CHECKS[:1]])
def test_a_slow_check_makes_the_result_incomplete(monkeypatch, capsys, more):
    quick = [replace(check, needs_s=0) for check in more]
    monkeypatch.setattr(
        main, "all_checks", lambda: [*quick, Check("slow", "tried", slow, 0), replace(CHECKS[3], name="d")]
    )
    failed = more == CHECKS[:1]
    assert main.run("the command", "cpu", minutes=0.002, as_json=True) == (1 if failed else 3)
    captured = capsys.readouterr()
    result = json.loads(captured.out)
    assert (result["ok"], result["complete"]) == (not failed, False)
    assert [row["in_time"] for row in result["checks"][-2:]] == [False, False]
    assert result["checks"][-2]["detail"].startswith("the time limit was reached: subprocess.TimeoutExpired")
    assert "incomplete: not every check ends in 0.002 minutes; give more with --minutes" in captured.err


def test_a_fault_of_the_worker_is_a_failed_check(monkeypatch, capsys):
    """Case B01: the worker could not compile, and the check went round it."""
    usual = Worker._compile

    def breaks_when_compiled(self, item, size):
        usual(self, item, size)
        raise TypeError("Object of type Sampler is not JSON serializable")

    monkeypatch.setattr(Worker, "_compile", breaks_when_compiled)
    assert main.run("the command", "cpu", only="family:flux,streamed", as_json=True) == 1
    rows = json.loads(capsys.readouterr().out)["checks"]
    assert [row["status"] for row in rows] == ["failed", "failed"]
    assert "Sampler is not JSON serializable" in rows[0]["detail"]


@pytest.mark.parametrize(("only", "names"), [("a", ["a:1", "a:2"]), ("c, a:2", ["a:2", "c"]), (None, list("aabc"))])
def test_checks_are_chosen_by_name_or_kind(only, names):
    found = [check.name for check in chosen(CHECKS, only)]
    assert found == names or [name[0] for name in found] == names
    with pytest.raises(ConfigError, match="there is no check 'd': use a, b, c"):
        chosen(CHECKS, "a,d")


@pytest.mark.parametrize(("only", "status"), [("b,c", 0), ("a", 1)])
def test_the_exit_status_and_the_file(monkeypatch, tmp_path, capsys, only, status):
    monkeypatch.setattr(main, "all_checks", lambda: CHECKS)
    assert main.run("the command", "cpu", only=only, out=tmp_path, as_json=True) == status
    printed, written = json.loads(capsys.readouterr().out), json.loads((tmp_path / "cpu.json").read_text())
    assert printed == written
    assert (written["ok"], written["complete"], written["command"]) == (status == 0, True, "the command")
    assert checks.save({"device": "NVIDIA H200 (SXM)"}, tmp_path).name == "nvidia-h200-sxm.json"
    assert checks.save({"device": "cpu"}, tmp_path / "x.json") == tmp_path / "x.json"


def test_without_a_gpu_the_planned_checks_are_shown(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr(main, "unusable_gpu", lambda: None)
    assert main.main([]) == 0
    captured = capsys.readouterr()
    assert all(f"family:{name} " in captured.out for name in FAMILIES)
    assert "no GPU on this machine" in captured.err
    assert main.main(["--minutes", "0"]) == 2


def test_a_gpu_that_torch_cannot_use_is_a_failed_check(monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    for module in (main, checks):
        monkeypatch.setattr(module, "unusable_gpu", lambda: "update the driver")
    monkeypatch.setattr("local_bench.generators.numerics.unusable_gpu", lambda: "update the driver")
    for given in ([], ["--only", "family"]):
        assert main.main(given) == 1
        assert "update the driver" in capsys.readouterr().out


# ---- models


def test_only_depth_is_reduced():
    reduced, less = models.reduced_card("sd3", small=False)
    assert "transformer num_layers 6 of 38" in less
    config = piece(reduced.architecture["transformer"]).config
    assert config["num_layers"] == 6
    assert config | {"num_layers": 38} == piece("sd35-large-transformer").config
    usual, _ = models.reduced_card("sd3", small=True)
    assert architecture_digest(reduced) != architecture_digest(usual)


def test_every_family_has_real_models_that_fit_the_planned_memory():
    for name in FAMILIES:
        of_family = [card for card in cards().values() if card.family == name]
        assert sum(card.reduced is not None for card in of_family) == sum(card.source.random for card in of_family) == 1
        card, _ = models.reduced_card(name, small=False)
        assert card.family == models.reduced_card(name, small=True)[0].family == name
        assert generation.plan(card, models.sampler_of(card, small=False)).peak_gb < MEMORY_GB / 2


# ---- attention


class Attention(torch.nn.Module):
    def forward(self, x, kernel):
        with sdpa_kernel(kernel):
            return torch.nn.functional.scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize(("kernel", "name"), [(SDPBackend.FLASH_ATTENTION, "flash (CPU)"), (SDPBackend.MATH, "math")])
def test_the_kernels_that_ran_in_the_denoiser_are_counted(kernel, name):
    denoiser, other, x = Attention(), Attention(), torch.ones(1, 2, 8, 16)
    models.mark(denoiser)
    with models.KernelCounter() as counter:
        denoiser(x, kernel)
        counter.start()
        other(x, SDPBackend.MATH)
        for _ in range(3):
            denoiser(x, kernel)
        counter.stop()
        denoiser(x, kernel)
        assert Staged.load_denoiser is not LOAD
    assert counter.counts == {name: 3}
    assert Staged.load_denoiser is LOAD


def test_names_of_kernels_exist_in_aten_and_in_the_package():
    for name in models.OPERATIONS:
        assert hasattr(torch.ops.aten, name.removeprefix("aten::")), name
    assert set(models.PINNED) == set(placement._KERNELS)


def test_a_pinned_kernel_that_did_not_run_fails(session, monkeypatch):
    monkeypatch.setitem(models.PINNED, "native", "cudnn")
    with pytest.raises(CheckFailed, match=r"native is pinned, but the attention kernels that ran are: flash \(CPU\)"):
        generation.check_family("flux", session)


@pytest.mark.parametrize(
    "fault", ["batches of 2 change output bytes", "1 of 3 outputs are not finite", "1 allocations"]
)
def test_a_faulty_family_fails(session, monkeypatch, fault):
    usual = Flux.denoise

    def denoise(self, items):
        latents, seeds = usual(self, items), {item.seed for item in items}
        if "bytes" in fault:
            return latents + len(seeds)
        return latents * math.nan if "finite" in fault and seeds == {2} else latents

    if "allocations" in fault:
        counts = iter([3, 4])
        monkeypatch.setattr(generation, "failed_allocations", lambda device: next(counts))
    monkeypatch.setattr(Flux, "denoise", denoise)
    with pytest.raises(CheckFailed, match=fault):
        generation.check_family("flux", session)


def test_streamed_weights_that_change_bytes_fail(session, monkeypatch):
    """Without that it passes: `test_all_checks_run_on_a_cpu`."""
    usual = Flux.denoise
    monkeypatch.setattr(Flux, "denoise", lambda self, items: usual(self, items) * (0.9 if self.machine.offload else 1))
    with pytest.raises(CheckFailed, match="streamed weights give other bytes"):
        generation.check_streamed(session)


def test_the_plain_loop_does_not_use_the_kernel_of_another_check(session, monkeypatch):
    registry = attention_dispatch._AttentionBackendRegistry
    left = attention_dispatch.AttentionBackendName._NATIVE_CUDNN  # not on a CPU, nor under determinism
    monkeypatch.setattr(registry, "_active_backend", left)
    card, _ = models.reduced_card("flux", small=True)
    assert generation._plain_s(session, card, models.sampler_of(card, small=True), 1) > 0
    assert registry._active_backend is left


@pytest.mark.parametrize(("tflops", "warned"), [(1.1, False), (1.2, True)])
def test_a_speed_above_the_table_is_a_warning(session, monkeypatch, tflops, warned):
    monkeypatch.setattr(generation, "gpu_of", lambda name: gpu("h200"))
    monkeypatch.setattr(generation, "matmul_flops", lambda session: tflops * gpu("h200").peak_tflops * 1e12)
    assert ("warning: 790 TFLOPS are the most expected" in generation.check_speed(session).detail) == warned


@pytest.mark.parametrize("name", ["flux", "pixart_sigma"])
def test_a_gpu_compiles_as_a_run_does(on_gpu, monkeypatch, name):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    card, _ = models.reduced_card(name, small=False)
    order = models.order_of(on_gpu, card)
    assert (order.compile, order.card.dtype) == (True, card.dtype)
    assert order.attention == ("_native_efficient" if name == "pixart_sigma" else "_native_cudnn")
    assert not models.order_of(on_gpu, card, offload=("denoise",)).compile


@pytest.fixture
def three_gpus(session, monkeypatch):
    """Results of the four processes of the check, two on the first GPU; the caches that they were given."""
    results = [generation.ChildResult(["p", "q"], 2.0, "_native_cudnn", {"cudnn": 6}) for _ in range(4)]
    caches = []
    others = [torch.device("cuda", 1), torch.device("cuda", 2)]
    monkeypatch.setattr(generation, "toolchain", lambda: (True, ""))
    monkeypatch.setattr(generation, "like_gpus", lambda device: [device, *others])
    monkeypatch.setattr(generation, "_run_child", lambda session, cache, device: caches.append(cache) or results.pop(0))
    return results, caches


def test_processes_with_equal_results_pass(session, three_gpus):
    passed = generation.check_processes(session)
    assert passed.figures["kernels"] == [{"cudnn": 6}] * 4
    assert passed.figures["devices"][2:] == ["cuda:1", "cuda:2"]
    assert passed.detail.startswith("4 processes on 3 GPUs generated equal bytes")
    assert len(set(three_gpus[1])) == 3  # the second process has the first one's


@pytest.mark.parametrize("other", [1, 3], ids=["the same GPU", "another GPU"])
@pytest.mark.parametrize(
    ("changes", "message"),
    [({"pixels_sha256": ["p", "other"]}, "differ"), ({"kernels": {"math": 6}}, "_native_cudnn is pinned")],
)
def test_processes_with_different_results_fail(session, three_gpus, changes, message, other):
    results, _ = three_gpus
    results[other] = replace(results[other], **changes)
    with pytest.raises(CheckFailed, match=message):
        generation.check_processes(session)


# ---- GPU only


def test_memory_is_limited(on_gpu):
    generation.limit_memory(GPU)
    (fraction, device), _ = torch.cuda.set_per_process_memory_fraction.call_args
    assert isinstance(fraction, float)
    assert fraction == pytest.approx(MEMORY_GB * 1e9 / TOTAL)
    assert device.index is not None  # the real one takes no device without an index


def test_a_device_with_memory_used_by_another_process_fails(on_gpu, monkeypatch):
    for free_gb in (100, 60):
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device, gb=free_gb: (gb * 10**9, TOTAL))
        monkeypatch.setattr(checks, "device_memory_gb", lambda device, gb=free_gb: float(gb))
        if free_gb == 100:
            assert checks.check_device_memory(on_gpu).figures["free_gb"] == 100
    with pytest.raises(CheckFailed, match=r"60\.0 of 143\.0 GB free"):
        checks.check_device_memory(on_gpu)


@pytest.mark.parametrize(
    ("mode", "detail"), [([0, 0], "off"), (pynvml.NVMLError_NotSupported(), "does not support MIG")]
)
def test_mig_is_read_from_nvml(on_gpu, monkeypatch, mode, detail):
    read = create_autospec(pynvml.nvmlDeviceGetMigMode, side_effect=mode if isinstance(mode, Exception) else [mode])
    monkeypatch.setattr(checks, "nvml_handle", lambda index: "handle")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetMigMode", read)
    assert detail in checks.check_mig(on_gpu).detail


def test_memory_above_the_plan_fails(on_gpu):
    on_gpu.peaks.update(flux=(6.5, 6.0), sd3=(4.0, 5.0))
    assert "flux allocated 6.50 GB, 6.00 GB were planned" in generation.check_memory(on_gpu).detail
    on_gpu.peaks.update(flux=(9.0, 6.0))
    with pytest.raises(CheckFailed, match="more than planned by flux"):
        generation.check_memory(on_gpu)


def test_a_matrix_product_is_timed_by_events(on_gpu, monkeypatch):
    event = create_autospec(torch.cuda.Event, instance=True)
    event.elapsed_time.return_value = 20.0  # milliseconds of ten products
    monkeypatch.setattr(torch.cuda, "Event", create_autospec(torch.cuda.Event, return_value=event))
    with FakeTensorMode():
        assert generation.matmul_flops(on_gpu) == pytest.approx(2 * 8192**3 * 10 / 20e-3)
    assert torch.cuda.Event.call_args.kwargs == {"enable_timing": True}
    assert event.record.call_count == 2 * generation._REPEATS


def test_energy_is_joules_over_seconds(on_gpu, monkeypatch):
    readings = iter([0, 20_000, 40_000])  # millijoules, the last two around a 0.05 s stretch: 400 W

    def read(handle):
        assert handle == "handle"
        try:
            return next(readings)
        except StopIteration:
            raise pynvml.NVMLError_NotSupported from None

    monkeypatch.setattr(meter, "nvml_handle", lambda index: "handle")
    monkeypatch.setattr(pynvml, "nvmlDeviceGetTotalEnergyConsumption", read)
    monkeypatch.setattr(generation, "_ENERGY_S", 0.05)
    with FakeTensorMode():
        figures = generation.check_energy(on_gpu).figures
        assert figures["joules"] == 20
        assert figures["watts"] == pytest.approx(20 / figures["seconds"], rel=0.02)
        with pytest.raises(CheckSkipped, match="no energy counter"):
            generation.check_energy(on_gpu)


def test_the_chosen_batch_does_not_fit_and_one_image_does():
    card, _ = models.reduced_card("flux", small=True)
    counted = count(card, models.sampler_of(card, small=True))
    counted = replace(counted, forward_live_bytes=500_000_000, decode_live_bytes=2_000_000_000)
    free = generation.free_bytes(counted)
    assert free == 4_000_000_000
    assert generation.too_large(counted, free) == 16
    assert generation.ballast_bytes(TOTAL, 34e9, free) == 30_000_000_000
    assert generation.ballast_bytes(10_000_000_000, 34e9, free) == 6_000_000_000
    with pytest.raises(CheckSkipped, match="too little"):
        generation.ballast_bytes(3_000_000_000, 34e9, free)


def test_generation_recovers_from_a_failed_allocation(session, monkeypatch):
    usual, full = Flux.denoise, []

    def denoise(self, items):
        if full and len(items) > 2:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return usual(self, items)

    monkeypatch.setattr(Flux, "denoise", denoise)
    card, _ = models.reduced_card("flux", small=True)
    order = models.order_of(session, card, 8)
    jobs = models.jobs_of(order, [models.sampler_of(card, small=True)] * generation.N_JOBS)
    with pytest.raises(CheckFailed, match="a batch of 8 did not run out of memory"):
        generation.recovered(order, jobs, lambda: None)
    figures = generation.recovered(order, jobs, lambda: full.append(1)).figures
    assert (figures["batch_sizes"], figures["made"]) == ([2], 4)


# ---- complete


SKIPPED = ("device-memory", "mig", "memory", "energy", "out-of-memory")
MADE = [f"family:{name}" for name in ("flux", "flux_kontext", "sd3", "pixart_sigma", "omnigen")]
"""Text alone, an image, guidance, masks and both; tests/generators has the other families."""
PASSED = ("compiler", "disk", "host-memory", *MADE, "streamed", "speed", "processes", "network", "judge:local")


def rows_of(printed, status):
    rows = {row["check"]: row for row in json.loads(printed)["checks"]}
    assert status == any(row["status"] == "failed" for row in rows.values())
    return rows


@pytest.fixture
def checked(monkeypatch, capsys):
    """Runs checks on a CPU; `test_the_script_needs_few_packages` runs the script itself."""
    monkeypatch.setenv("TORCHINDUCTOR_VEC_ISA_OK", "1")  # compiles no trial of the processor

    def run(*only):
        status = main.main(["--device", "cpu", "--json", "--only", ",".join(only)])
        return rows_of(capsys.readouterr().out, status)

    return run


@pytest.mark.compiler
@pytest.mark.slow
def test_all_checks_run_on_a_cpu(checked):
    rows = checked(*PASSED, *SKIPPED)
    statuses = dict.fromkeys(PASSED, "passed") | dict.fromkeys(SKIPPED, "skipped")
    assert {name: row["status"] for name, row in rows.items()} == statuses, rows
    assert set(rows["family:sd3"]["figures"]["kernels"]) == {"flash (CPU)"}
    assert rows["family:flux"]["figures"]["batch_sizes"] == [2, 2]
    assert {rows[name]["figures"]["failed_allocations"] for name in MADE} == {0}
    digests = rows["processes"]["figures"]
    first, second = digests["pixels_sha256"]
    assert first == second
    assert len(set(first)) == 2
    assert digests["kernels"] == [{"flash (CPU)": 6}] * 2  # also in compiled blocks
    assert digests["warm_compile_s"] < digests["cold_compile_s"]


@pytest.mark.server
def test_judges_by_vllm(checked):
    """The check of the served engine differs in the transport, which tests/judges/test_server.py covers."""
    assert {name: row["status"] for name, row in checked("judge:embedded").items()} == {"judge:embedded": "passed"}


ALLOWED = ("torch", "diffusers", "transformers", "pydantic", "PyYAML", "safetensors", "Pillow", "numpy", "nvidia-ml-py")


@pytest.mark.compiler
def test_the_script_needs_few_packages(tmp_path):
    """In an environment of links to what these packages require, click left out: nothing else can be imported."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name, distribution in installed(ALLOWED).items():
        for top in {file.parts[0] for file in distribution.files or []} - {"..", "__pycache__"}:
            if name != "click" and not (packages / top).exists():
                (packages / top).symlink_to(distribution.locate_file(top))
    env = {k: v for k, v in os.environ.items() if k != "LOCAL_BENCH_CACHE"} | {"PYTHONPATH": str(packages)}
    absent = [sys.executable, "-S", "-c", "import click"]
    assert subprocess.run(absent, env=env, capture_output=True, check=False).returncode == 1
    command = [sys.executable, "-S", ROOT / "scripts/gpu_check", "--device", "cpu", "--json", "--only"]
    command.append("driver,compiler,family:flux,network,judge")
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=900, check=False)
    assert done.stdout, done.stderr
    rows = rows_of(done.stdout, done.returncode)
    assert {row["status"] for row in rows.values()} == {"passed", "skipped"}
    assert rows["family:flux"]["status"] == rows["network"]["status"] == "passed"
    for transport in ("local", "embedded", "served"):
        judge = rows[f"judge:{transport}"]
        assert (judge["status"], judge["detail"]) == ("skipped", "jsonschema is not installed")
