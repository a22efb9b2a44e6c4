"""Check that processes generate equal bytes: one with an empty compile cache, one with the first one's cache, and
one with an empty cache on each other GPU of the same model, like the workers of a run.

`python -m local_bench.runs.gpu_check.processes FAMILY DEVICE SIDE FOLDER` is such a process: it generates images with
compiled code and prints a line of JSON with their digests and the compile time in seconds."""

import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from local_bench.core.environment import quiet_libraries, toolchain
from local_bench.generators.numerics import choose_device, like_gpus, set_determinism
from local_bench.runs.gpu_check.attention import KernelCounter, kernel_summary, pinning_fault
from local_bench.runs.gpu_check.checks import MEMORY_GB, CheckFailed, CheckPassed, CheckSkipped, Session
from local_bench.runs.gpu_check.models import jobs_of, make, narrower, order_of, reduced_card, sampler_of

FAMILY = "flux"
SIDE = 1008
SMALL_SIDE = 80
"""63 x 63 and 5 x 5 image tokens and 512 text tokens: not a multiple of 8, so inductor may pad the matrices."""


@dataclass(frozen=True)
class ChildResult:
    """The result of a process."""

    pixels_sha256: list[str | None]
    compile_s: float
    attention: str
    """The pinned backend."""
    kernels: dict[str, int]
    """Attention kernels that ran in the compiled transformer."""


def generate(name: str, device: torch.device, side: int, folder: Path) -> ChildResult:
    """Generate an image of `side` x `side` and a narrower one with the family's compiled model."""
    session = Session(device, folder, minutes=10)
    described, _ = reduced_card(name, not session.on_gpu)
    sampler = sampler_of(described, not session.on_gpu, side)
    order = order_of(session, described, compiled=True)
    with KernelCounter() as counter:
        images = make(order, jobs_of(order, [sampler, narrower(sampler)]), counter)
    return ChildResult([*images.pixels.values()], images.seconds["warm-up"], order.attention, images.kernels)


def limit_memory(device: torch.device) -> None:
    """Limit this process to `MEMORY_GB` of GPU memory."""
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, MEMORY_GB * 1e9 / total), device)


def main(argv: list[str]) -> int:
    name, device_name, side, folder = argv
    quiet_libraries()
    set_determinism(1)
    device = choose_device(device_name)
    limit_memory(device)
    print(json.dumps(asdict(generate(name, device, int(side), Path(folder)))), flush=True)  # noqa: T201  # the result
    return 0


def check_processes(session: Session) -> CheckPassed:
    """Check that all new processes give the same digests."""
    available, text = toolchain()
    if not available:
        raise CheckSkipped(text)
    caches = [session.scratch / "process", session.scratch / "process"]
    others = [gpu for gpu in like_gpus(session.device) if gpu != session.device]
    cold, warm = (_run_child(session, cache, session.device) for cache in caches)
    caches = [session.scratch / f"process-{i}" for i in range(len(others))]
    with ThreadPoolExecutor(max(1, len(others))) as pool:
        other_results = list(pool.map(lambda cache, device: _run_child(session, cache, device), caches, others))
    results = [cold, warm, *other_results]
    figures = {
        "family": FAMILY,
        "side": SIDE if session.on_gpu else SMALL_SIDE,
        "cold_compile_s": round(cold.compile_s, 2),
        "warm_compile_s": round(warm.compile_s, 2),
        "attention": cold.attention,
        "kernels": [result.kernels for result in results],
        "devices": [str(device) for device in (session.device, session.device, *others)],
        "pixels_sha256": [result.pixels_sha256 for result in results],
    }
    wrong = next(filter(None, (pinning_fault(result.attention, result.kernels) for result in results)), None)
    times = f"compiled in {cold.compile_s:.1f} s, with a warm cache in {warm.compile_s:.1f} s"
    n = f"{len(results)} processes" + (f" on {1 + len(others)} GPUs" if others else "")
    if any(result.pixels_sha256 != cold.pixels_sha256 for result in results):
        raise CheckFailed(f"pixels of {n} differ; {times}", figures)
    if wrong:
        raise CheckFailed(f"compiled: {wrong}; {times}", figures)
    return CheckPassed(f"{n} generated equal bytes ({kernel_summary(warm.kernels)}); {times}", figures)


def _run_child(session: Session, cache: Path, device: torch.device) -> ChildResult:
    side = SIDE if session.on_gpu else SMALL_SIDE
    cache.mkdir(exist_ok=True)
    env = {**os.environ, "LOCAL_BENCH_CACHE": str(cache)}
    env.pop("TRITON_CACHE_DIR", None)  # Triton's cache is then inside inductor's
    command = [sys.executable, "-m", "local_bench.runs.gpu_check.processes", FAMILY, str(device), str(side), str(cache)]
    done = subprocess.run(
        command, env=env, capture_output=True, text=True, timeout=max(1.0, session.left_s), check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckFailed(f"a process ended with status {done.returncode}: {last[:500]}")
    return ChildResult(**json.loads(done.stdout.strip().splitlines()[-1]))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
