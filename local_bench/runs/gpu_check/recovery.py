"""Check of a real failed allocation and the recovery with smaller batches."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from local_bench.generators.arithmetic import count, usual_input_images
from local_bench.generators.operations import Operations
from local_bench.generators.sampler import Sampler
from local_bench.models.cards import ModelCard
from local_bench.runs.gpu_check.checks import MEMORY_GB, CheckFailed, CheckPassed, CheckSkipped, Session
from local_bench.runs.gpu_check.models import PROMPTS, machine_of, reduced_card, sampler_of
from local_bench.runs.work import BatchSizeChosen, Event, ImagesFinished, Job, Message, PhaseStarted, WorkOrder
from local_bench.runs.worker import Worker

FAMILY = "flux"
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
    ballast: list[torch.Tensor] = []

    def fill() -> None:
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(session.device)[0]
        unused = MEMORY_GB * 1e9 - torch.cuda.memory_reserved(session.device)
        n = ballast_bytes(free, unused, free_memory)
        ballast.append(torch.empty(n, dtype=torch.uint8, device=session.device))

    try:
        return recovered(order_of(session, of, size), jobs_of(sampler), fill)
    finally:
        ballast.clear()


def recovered(order: WorkOrder, jobs: list[Job], fill: Callable[[], None]) -> CheckPassed:
    """Generate `jobs`; `fill` allocates memory once the weights are loaded. CheckFailed unless memory ran out and all
    images were generated."""
    made, sizes, notes = 0, [], []
    for event in _events(order, jobs, fill):
        if isinstance(event, Message):
            notes.append(event.sentence)
        elif isinstance(event, BatchSizeChosen):
            sizes.append(event.batch_size)
        elif isinstance(event, ImagesFinished):
            made += sum(result.pixels_sha256 is not None for result in event.results)
    figures: dict[str, Any] = {"asked_batch_size": order.batch_size, "batch_sizes": sizes, "notes": notes, "made": made}
    if made != len(jobs):
        raise CheckFailed(f"{made} of {len(jobs)} images were generated", figures)
    if not any("out of memory" in note for note in notes):
        raise CheckFailed(f"a batch of {order.batch_size} did not run out of memory", figures)
    return CheckPassed(f"a batch of {order.batch_size} ran out of memory, batches of {sizes[-1]} succeeded", figures)


def _events(order: WorkOrder, jobs: list[Job], fill: Callable[[], None]) -> Iterator[Event]:
    for event in Worker(order).make(jobs):
        yield event
        if isinstance(event, PhaseStarted) and event.what.endswith(": make"):  # the transformer is loaded
            fill()


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


def order_of(session: Session, of: ModelCard, batch_size: int) -> WorkOrder:
    """A work order for this card with random weights, in the session's folder."""
    machine = machine_of(session, of)
    folders: list[Path] = [session.scratch / name for name in ("images", "inputs", "encoded")]
    for folder in folders:
        folder.mkdir(exist_ok=True)
    images, inputs, encoded = folders
    return WorkOrder(
        label=of.name,
        card=of,
        weights=None,
        parts={},
        weights_sha256="random",
        lossy={},
        device=str(session.device),
        attention=machine.attention,
        compile=False,
        offload=(),
        threads=1,
        io_workers=2,
        batch_order="plan",
        batch_size=batch_size,
        attempts=batch_size,
        capacity_gb=None,
        images=images,
        inputs=inputs,
        encoded=encoded,
    )


def jobs_of(sampler: Sampler) -> list[Job]:
    """Four jobs."""
    return [Job(f"{i}", PROMPTS[i % len(PROMPTS)], i, asdict(sampler), ()) for i in range(4)]
