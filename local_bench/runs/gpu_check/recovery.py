"""Check of a real failed allocation and the recovery with smaller batches."""

from collections.abc import Callable
from typing import Any

import torch

from local_bench.generators.arithmetic import count, usual_input_images
from local_bench.generators.operations import Operations
from local_bench.runs.gpu_check.checks import MEMORY_GB, CheckFailed, CheckPassed, CheckSkipped, Session
from local_bench.runs.gpu_check.models import reduced_card, sampler_of
from local_bench.runs.gpu_check.working import jobs_of, make, order_of
from local_bench.runs.work import Job, WorkOrder

FAMILY = "flux"
N_JOBS = 4
_LARGEST = 64
_WORKSPACES = 1_000_000_000
"""Bytes reserved in addition to an image's tensors: cuBLAS and cuDNN workspaces, and fragmentation."""


def check_recovery(session: Session) -> CheckPassed:
    """Fill the memory until a batch does not fit; the worker must halve the batch and generate all images."""
    if not session.on_gpu:
        raise CheckSkipped("the device is a CPU, whose memory must not be filled")
    of, _ = reduced_card(FAMILY, small=False)
    sampler = sampler_of(of, small=False)
    counted = count(of, sampler, usual_input_images(of))
    free_memory = free_bytes(counted)
    size = too_large(counted, free_memory)
    order = order_of(session, of, size)
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
    made = make(order, jobs, loaded=fill)
    n_made = sum(sha is not None for sha in made.pixels.values())
    figures: dict[str, Any] = {
        "asked_batch_size": order.batch_size,
        "batch_sizes": made.batch_sizes,
        "notes": made.notes,
        "made": n_made,
    }
    if n_made != len(jobs):
        raise CheckFailed(f"{n_made} of {len(jobs)} images were generated", figures)
    if not any("out of memory" in note for note in made.notes):
        raise CheckFailed(f"a batch of {order.batch_size} did not run out of memory", figures)
    smaller = made.batch_sizes[-1]
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
