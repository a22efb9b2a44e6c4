"""Checks of generators: images of each family by the worker of a run, streamed weights, memory, and recovery from a
real failed allocation; of a metric's network; of speed and energy; and of equal bytes from several processes.

`python -m local_bench.runs.gpu_check.generation FAMILY DEVICE SIDE FOLDER` is such a process: it generates images with
compiled code and prints a line of JSON with their digests and the compile time in seconds.
"""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers.models.attention_dispatch import attention_backend

from local_bench.core.environment import quiet_libraries, toolchain
from local_bench.core.images import image_path, load_verified
from local_bench.generators.architecture import components
from local_bench.generators.capacity import failed_allocations
from local_bench.generators.memory import RESERVE_GB, MemoryPlan, plan_memory
from local_bench.generators.numerics import choose_device, device_name, like_gpus, set_determinism
from local_bench.generators.operations import Operations, count, usual_input_images
from local_bench.generators.registry import Sampler
from local_bench.generators.staged import family
from local_bench.judges.metrics.embeddings import DinoNetwork
from local_bench.judges.metrics.registry import Weights
from local_bench.models.cards import ModelCard, card
from local_bench.models.gpus import gpu_of
from local_bench.models.weights import resolve
from local_bench.runs.gpu_check.checks import MEMORY_GB, CheckFailed, CheckPassed, CheckSkipped, Session
from local_bench.runs.gpu_check.models import (
    PROMPTS,
    KernelCounter,
    jobs_of,
    kernel_summary,
    make,
    narrower,
    noise,
    order_of,
    pinning_fault,
    reduced_card,
    sampler_of,
)
from local_bench.runs.meter import EnergyCounter
from local_bench.runs.store import Candidate
from local_bench.runs.work import WorkOrder
from local_bench.runs.worker import DeviceClock

BATCH = 2
COMPILED = ("flux", "flux_kontext", "sd3", "qwen_image", "qwen_image_edit_plus", "pixart_sigma")
"""Families that are compiled as a run does on a GPU, one of each kind of attention and of image sizes; compilation of
all would take longer than the other checks together."""
STREAMED = RECOVERED = "flux"
N_JOBS = 4
_LARGEST = 64
_WORKSPACES = 1_000_000_000
"""Bytes reserved in addition to an image's tensors: cuBLAS and cuDNN workspaces, and fragmentation."""
NETWORK = "tiny-dinov2"
_TOLERANCE = 1e-4
"""Tolerance of the network's normalised output; batches round in a different order."""
_NETWORK_BATCH = 8


def check_family(name: str, session: Session) -> CheckPassed:
    """Generate a batch of one size and an image of another, and detect the attention kernels."""
    described, less = reduced_card(name, not session.on_gpu)
    sampler = sampler_of(described, not session.on_gpu)
    planned = plan(described, sampler)
    order = order_of(session, described, BATCH, None if name in COMPILED else False)
    jobs = jobs_of(order, [sampler] * BATCH + [narrower(sampler)])
    if session.on_gpu:
        torch.cuda.reset_peak_memory_stats(session.device)
    failed = failed_allocations(session.device)
    with KernelCounter() as counter:
        images = make(order, jobs, counter)
    failed = failed_allocations(session.device) - failed
    peak = torch.cuda.max_memory_allocated(session.device) / 1e9 if session.on_gpu else None
    session.peaks[name] = (peak, planned.peak_gb)
    figures = {
        "card": described.name,
        "reduced": less,
        "size": [sampler.height, sampler.width],
        "steps": sampler.num_inference_steps,
        "compiled": order.compile,
        "compile_s": round(images.seconds["warm-up"], 2),
        "attention": order.attention,
        "kernels": images.kernels,
        "batch_sizes": images.batch_sizes,
        "peak_gb": None if peak is None else round(peak, 2),
        "planned_gb": round(planned.peak_gb, 2),
        "failed_allocations": failed,
    }
    sizes = [load_verified(image_path(order.images, sha), sha).size for sha in images.pixels.values() if sha]
    expected = [(job.sampler.width, job.sampler.height) for job in jobs]
    wrong = pinning_fault(order.attention, images.kernels)
    if len(sizes) < len(jobs):
        raise CheckFailed(f"{described.name}: {len(jobs) - len(sizes)} of {len(jobs)} outputs are not finite", figures)
    if sizes != expected:
        raise CheckFailed(f"{described.name}: the images are {sizes}, not {expected}", figures)
    if failed:
        raise CheckFailed(f"{described.name}: {failed} allocations failed, {'; '.join(images.notes)}", figures)
    if wrong:
        raise CheckFailed(f"{described.name}: {wrong}", figures)
    if set(images.batch_sizes) != {planned.batch_size}:
        raise CheckFailed("; ".join(images.notes), figures)
    how = f"{'compiled' if order.compile else 'eager'}, {order.attention}: {kernel_summary(images.kernels)}"
    return CheckPassed(f"{described.name} {sampler.width}x{sampler.height}, {how}; {less or 'full depth'}", figures)


def check_streamed(session: Session) -> CheckPassed:
    """Compare images of a transformer whose weights are streamed from host memory with those of a resident one."""
    described, less = reduced_card(STREAMED, not session.on_gpu)
    orders = [order_of(session, described, compiled=False, offload=offload) for offload in ((), ("denoise",))]
    jobs = jobs_of(orders[0], [sampler_of(described, not session.on_gpu)])
    resident, streamed = (make(order, jobs) for order in orders)
    times = [images.seconds["denoise"] for images in (resident, streamed)]
    figures = {
        "card": described.name,
        "reduced": less,
        "resident_s": round(times[0], 3),
        "streamed_s": round(times[1], 3),
    }
    if resident.pixels != streamed.pixels or None in resident.pixels.values():
        raise CheckFailed(f"{described.name}: streamed weights give other bytes than resident ones", figures)
    return CheckPassed(f"{described.name}: equal bytes; {times[0]:.2f} s resident, {times[1]:.2f} s streamed", figures)


def check_memory(session: Session) -> CheckPassed:
    """Compare the families' peak memory with the planner's estimate."""
    if not session.on_gpu:
        raise CheckSkipped("the device is a CPU: torch counts no peak there")
    if not session.peaks:
        check_family("flux", session)
    measured = {name: (peak, planned) for name, (peak, planned) in session.peaks.items() if peak is not None}
    figures = {name: {"peak_gb": round(p, 2), "planned_gb": round(q, 2)} for name, (p, q) in measured.items()}
    over = [name for name, (peak, planned) in measured.items() if peak > planned + RESERVE_GB]
    worst = max(measured, key=lambda name: measured[name][0] - measured[name][1])
    peak, planned = measured[worst]
    text = f"{worst} allocated {peak:.2f} GB, {planned:.2f} GB were planned and {RESERVE_GB} GB are reserved"
    if over:
        raise CheckFailed(f"more than planned by {', '.join(over)}: {text}", figures)
    return CheckPassed(f"no family exceeded its estimate; closest: {text}", figures)


def plan(described: ModelCard, sampler: Sampler) -> MemoryPlan:
    """The planner's estimate for the batches of `check_family`."""
    return plan_memory(described, sampler, batch_size=BATCH, attempts=BATCH, input_images=usual_input_images(described))


def check_recovery(session: Session) -> CheckPassed:
    """Fill the memory until a batch does not fit; the worker must halve the batch and generate all images."""
    if not session.on_gpu:
        raise CheckSkipped("the device is a CPU, whose memory must not be filled")
    described, _ = reduced_card(RECOVERED, small=False)
    sampler = sampler_of(described, small=False)
    counted = count(described, sampler, usual_input_images(described))
    free_memory = free_bytes(counted)
    size = too_large(counted, free_memory)
    order = order_of(session, described, size)
    ballast: list[torch.Tensor] = []

    def fill() -> None:
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(session.device)[0]
        unused = MEMORY_GB * 1e9 - torch.cuda.memory_reserved(session.device)
        n = ballast_bytes(free, unused, free_memory)
        ballast.append(torch.empty(n, dtype=torch.uint8, device=session.device))

    try:
        return recovered(order, jobs_of(order, [sampler] * N_JOBS), fill)
    finally:
        ballast.clear()


def recovered(order: WorkOrder, jobs: list[Candidate], fill: Callable[[], None]) -> CheckPassed:
    """Generate `jobs`; `fill` allocates memory once the weights are loaded. CheckFailed unless memory ran out and all
    images were generated."""
    images, size = make(order, jobs, loaded=fill), order.model.config.batch_size
    n_made = sum(sha is not None for sha in images.pixels.values())
    figures: dict[str, Any] = {
        "asked_batch_size": size,
        "batch_sizes": images.batch_sizes,
        "notes": images.notes,
        "made": n_made,
    }
    if n_made != len(jobs):
        raise CheckFailed(f"{n_made} of {len(jobs)} images were generated", figures)
    if not any("out of memory" in note for note in images.notes):
        raise CheckFailed(f"a batch of {size} did not run out of memory", figures)
    return CheckPassed(f"a batch of {size} ran out of memory, batches of {images.batch_sizes[-1]} succeeded", figures)


def free_bytes(counted: Operations) -> int:
    """Memory to leave free: 1.5 times that of one image."""
    return int(1.5 * max(counted.forward_live_bytes, counted.decode_live_bytes)) + _WORKSPACES


def too_large(counted: Operations, free_memory: int) -> int:
    """The smallest power of two whose tensors take twice the free memory."""
    size = 2
    while size * counted.forward_live_bytes < 2 * free_memory and size < _LARGEST:
        size *= 2
    return size


def ballast_bytes(free: int, unused: float, free_memory: int) -> int:
    """Bytes to allocate so that `free_memory` is left of the device's free memory or of this process's limit."""
    n = int(min(free, unused)) - free_memory
    if n <= 0:
        raise CheckSkipped(f"{free / 1e9:.1f} GB are free, which is too little for this check")
    return n


def check_network(session: Session) -> CheckPassed:
    """Check that the network's output for an image is equal alone and in a batch."""
    described = card(NETWORK, "metric")
    network = DinoNetwork(Weights(described, resolve(described), {}))
    images = [network.prepare([noise(i, 96)], None) for i in range(_NETWORK_BATCH)]
    network.open(str(session.device))
    try:
        together = np.stack(network.run(images))
        alone = np.stack([network.run([image])[0] for image in images])
    finally:
        network.close()
    difference = float(np.abs(together - alone).max())
    spread = float(np.abs(together[0] - together[1:]).max())
    figures = {"card": NETWORK, "batch_size": _NETWORK_BATCH, "max_difference": difference}
    text = f"{NETWORK}: alone and in a batch of {_NETWORK_BATCH} differ by {difference:.1e}"
    if not np.isfinite(together).all() or difference > _TOLERANCE or spread <= _TOLERANCE:
        raise CheckFailed(f"{text}; at most {_TOLERANCE:g} is allowed, images differ by {spread:.1e}", figures)
    return CheckPassed(text, figures)


FAMILY = "flux"
SPEED_STEPS = 4
_SIDE, _SMALL_SIDE = 8192, 512
"""Side of the square matrices."""
_REPEATS, _PER_REPEAT = 5, 10
_IMAGES, _SMALL_IMAGES = 8, 2
ALLOWED = 1.15
"""Clocks above the data sheet's: a higher rate is reported."""
_ENERGY_S = 3.0
"""NVML updates its counter about every 0.1 s."""


def check_speed(session: Session) -> CheckPassed:
    """Measure compile time, images per second, and the fraction of the measured matrix-product rate."""
    described, less = reduced_card(FAMILY, not session.on_gpu)
    sampler = sampler_of(described, not session.on_gpu, steps=SPEED_STEPS)
    n = _IMAGES if session.on_gpu else _SMALL_IMAGES
    ceiling = matmul_flops(session)
    session.release()
    plain_s = _plain_s(session, described, sampler, n)
    session.release()
    order = order_of(session, described)
    images = make(order, jobs_of(order, [sampler] * n))
    compile_s, ours_s = images.seconds["warm-up"], images.seconds["denoise"] + images.seconds["decode"]
    counted = count(described, sampler, usual_input_images(described))
    mfu = n * (counted.denoise_flop + counted.decode_flop) / ours_s / ceiling
    figures = {
        "card": described.name,
        "reduced": less,
        "size": [sampler.height, sampler.width],
        "steps": SPEED_STEPS,
        "images": n,
        "compiled": order.compile,
        "compile_s": round(compile_s, 2),
        "images_per_s": round(n / ours_s, 3),
        "plain_images_per_s": round(n / plain_s, 3),
        "times_faster_than_plain": round(plain_s / ours_s, 3),
        "matmul_tflops": round(ceiling / 1e12, 2),
        "mfu_of_matmul": round(mfu, 4),
    }
    text = (
        f"{n / ours_s:.2f} images/s of {SPEED_STEPS} steps, {plain_s / ours_s:.2f} times a plain pipeline loop, "
        f"{100 * mfu:.0f} % of {ceiling / 1e12:.1f} TFLOPS of a matrix product; "
        f"{f'compiled in {compile_s:.1f} s' if order.compile else 'eager'}"
    )
    gpu = gpu_of(device_name(session.device))
    if gpu is not None and ceiling > ALLOWED * gpu.peak_tflops * 1e12:
        text += f"; warning: {gpu.peak_tflops:g} TFLOPS are the most expected of {gpu.title}"
    if mfu > 1:
        text += "; warning: faster than the matrix product"
    return CheckPassed(text, figures)


def check_energy(session: Session) -> CheckPassed:
    """Measure the energy of matrix products with NVML's counter."""
    if not session.on_gpu:
        raise CheckSkipped("the device is a CPU")
    counter = EnergyCounter(session.device.index)
    multiply, flop = _matmul(session)
    multiply()
    session.synchronize()
    counter.since_last()
    begun, n = time.perf_counter(), 0
    while time.perf_counter() - begun < _ENERGY_S:
        for _ in range(_PER_REPEAT):
            multiply()
        n += _PER_REPEAT
        seconds = session.synchronize() - begun
    used_mj = counter.since_last()
    if used_mj is None:
        raise CheckSkipped("this GPU has no energy counter")
    watts = used_mj / 1e3 / seconds
    figures = {"joules": used_mj / 1e3, "seconds": round(seconds, 3), "watts": round(watts, 1), "flop": n * flop}
    text = f"{used_mj / 1e3:.0f} J in {seconds:.1f} s, {watts:.0f} W"
    gpu = gpu_of(device_name(session.device))
    if watts <= 0 or (gpu is not None and watts > 1.5 * gpu.board_w):
        raise CheckFailed(f"{text}: outside this board's power range", figures)
    return CheckPassed(text, figures)


def matmul_flops(session: Session) -> float:
    """FLOP per second of a square matrix product, the best of several repeats: 8192 in bfloat16 on a GPU, timed with
    CUDA events; 512 in float32 on a CPU."""
    multiply, flop = _matmul(session)
    for _ in range(3):
        multiply()
    seconds = []
    for _ in range(_REPEATS):
        clock = DeviceClock(session.device)
        for _ in range(_PER_REPEAT):
            multiply()
        seconds.append((clock.reached_ns(clock.mark()) - clock.begun_ns) / 1e9)
    return flop * _PER_REPEAT / min(seconds)


def _matmul(session: Session) -> tuple[Callable[[], Any], int]:
    side, dtype = (_SIDE, torch.bfloat16) if session.on_gpu else (_SMALL_SIDE, torch.float32)
    a, b = (torch.randn(side, side, device=session.device, dtype=dtype) for _ in range(2))
    out = torch.empty_like(a)
    return lambda: torch.mm(a, b, out=out), 2 * side**3


def _plain_s(session: Session, described: ModelCard, sampler: Sampler, n: int) -> float:
    """Seconds of `n` images with one plain pipeline call each: all components resident, eager mode."""
    kind = family(described.family)
    dtype = getattr(torch, described.dtype) if session.on_gpu else torch.float32
    pipe = kind.assemble(components(described, session.device, dtype))
    pipe.set_progress_bar_config(disable=True)

    def image(i: int) -> None:
        pipe(
            prompt=PROMPTS[i % len(PROMPTS)],
            height=sampler.height,
            width=sampler.width,
            num_inference_steps=sampler.num_inference_steps,
            guidance_scale=sampler.guidance_scale,
            max_sequence_length=sampler.max_sequence_length,
            generator=torch.Generator("cpu").manual_seed(i),
        )

    with attention_backend("native"):  # other models may have left theirs as diffusers' active one
        image(0)
        begun = session.synchronize()
        for i in range(n):
            image(i)
        return session.synchronize() - begun


UNALIGNED_SIDE = 1008
SMALL_UNALIGNED_SIDE = 80
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


def limit_memory(device: torch.device) -> None:
    """Limit this process to `MEMORY_GB` of GPU memory."""
    if device.type == "cuda":
        total = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, MEMORY_GB * 1e9 / total), device)


def main(name: str, device_name: str, side: str, folder: str) -> None:
    """Generate an image of `side` x `side` and a narrower one with the family's compiled model."""
    quiet_libraries()
    set_determinism(1)
    device = choose_device(device_name)
    limit_memory(device)
    session = Session(device, Path(folder), minutes=10)
    described, _ = reduced_card(name, not session.on_gpu)
    sampler = sampler_of(described, not session.on_gpu, int(side))
    order = order_of(session, described, compiled=True)
    with KernelCounter() as counter:
        images = make(order, jobs_of(order, [sampler, narrower(sampler)]), counter)
    result = ChildResult([*images.pixels.values()], images.seconds["warm-up"], order.attention, images.kernels)
    print(json.dumps(asdict(result)), flush=True)  # noqa: T201  # the result


def check_processes(session: Session) -> CheckPassed:
    """Check that new processes give equal digests, like the workers of a run: one with an empty compile cache, one with
    the first one's cache, and one with an empty cache on each other GPU of the same model."""
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
        "side": UNALIGNED_SIDE if session.on_gpu else SMALL_UNALIGNED_SIDE,
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
    side = UNALIGNED_SIDE if session.on_gpu else SMALL_UNALIGNED_SIDE
    cache.mkdir(exist_ok=True)
    env = {**os.environ, "LOCAL_BENCH_CACHE": str(cache)}
    env.pop("TRITON_CACHE_DIR", None)  # Triton's cache is then inside inductor's
    command = [sys.executable, "-m", __name__, FAMILY, str(device), str(side), str(cache)]
    left_s = max(1.0, session.left_s)
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=left_s, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise CheckFailed(f"a process ended with status {done.returncode}: {last[:500]}")
    return ChildResult(**json.loads(done.stdout.strip().splitlines()[-1]))


if __name__ == "__main__":
    main(*sys.argv[1:])
