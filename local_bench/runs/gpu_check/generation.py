"""Checks of generators: images of each family by the worker of a run, streamed weights, and recovery from a real failed
allocation; and of a metric's network."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from local_bench.core.images import image_path, load_verified
from local_bench.generators.capacity import failed_allocations
from local_bench.generators.memory import RESERVE_GB, MemoryPlan, plan_memory
from local_bench.generators.operations import Operations, count, usual_input_images
from local_bench.generators.sampler import Sampler
from local_bench.judges.metrics.embeddings import DinoNetwork
from local_bench.judges.metrics.registry import Weights
from local_bench.models.cards import ModelCard, card
from local_bench.models.weights import resolve
from local_bench.runs.gpu_check.attention import KernelCounter, kernel_summary, pinning_fault
from local_bench.runs.gpu_check.checks import MEMORY_GB, CheckFailed, CheckPassed, CheckSkipped, Session
from local_bench.runs.gpu_check.models import jobs_of, make, narrower, noise, order_of, reduced_card, sampler_of
from local_bench.runs.work import Job, WorkOrder

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


def check_family(name: str) -> Callable[[Session], CheckPassed]:
    """Generate a batch of one size and an image of another, and detect the attention kernels."""

    def run(session: Session) -> CheckPassed:
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
            raise CheckFailed(
                f"{described.name}: {len(jobs) - len(sizes)} of {len(jobs)} outputs are not finite", figures
            )
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

    return run


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
        check_family("flux")(session)
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


def recovered(order: WorkOrder, jobs: list[Job], fill: Callable[[], None]) -> CheckPassed:
    """Generate `jobs`; `fill` allocates memory once the weights are loaded. CheckFailed unless memory ran out and all
    images were generated."""
    images = make(order, jobs, loaded=fill)
    n_made = sum(sha is not None for sha in images.pixels.values())
    figures: dict[str, Any] = {
        "asked_batch_size": order.batch_size,
        "batch_sizes": images.batch_sizes,
        "notes": images.notes,
        "made": n_made,
    }
    if n_made != len(jobs):
        raise CheckFailed(f"{n_made} of {len(jobs)} images were generated", figures)
    if not any("out of memory" in note for note in images.notes):
        raise CheckFailed(f"a batch of {order.batch_size} did not run out of memory", figures)
    smaller = images.batch_sizes[-1]
    return CheckPassed(f"a batch of {order.batch_size} ran out of memory, batches of {smaller} succeeded", figures)


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
