"""A real failed allocation, and that a run goes on after it with smaller batches."""

from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from local_bench.generators.arithmetic import count, usual_pictures
from local_bench.generators.operations import Operations
from local_bench.generators.sampler import Sampler
from local_bench.models.cards import ModelCard
from local_bench.runs.gpu_check.checks import MEMORY_GB, CheckFailed, CheckSkipped, Found, Session
from local_bench.runs.gpu_check.models import PROMPTS, described, machine_of, sampler_of
from local_bench.runs.work import Begun, Event, Job, Made, Noted, Settled, WorkOrder
from local_bench.runs.worker import Worker

FAMILY = "flux"
_LARGEST = 64
_WORKSPACES = 1_000_000_000
"""Bytes left besides an image's tensors: cuBLAS's and cuDNN's workspaces, and what the allocator holds in pieces."""


def check_recovery(session: Session) -> Found:
    """Memory is taken away until a batch does not fit; the maker of images halves the batch and makes them all."""
    if not session.on_gpu:
        raise CheckSkipped("the device is a CPU, whose memory is not to be filled")
    of, _ = described(FAMILY, small=False)
    sampler = sampler_of(of, small=False)
    counted = count(of, sampler, usual_pictures(of))
    room = room_bytes(counted)
    size = too_large(counted, room)
    held: list[torch.Tensor] = []

    def fill() -> None:
        torch.cuda.empty_cache()
        free = torch.cuda.mem_get_info(session.device)[0]
        unused = MEMORY_GB * 1e9 - torch.cuda.memory_reserved(session.device)
        n = ballast_bytes(free, unused, room)
        held.append(torch.empty(n, dtype=torch.uint8, device=session.device))

    try:
        return recovered(order_of(session, of, size), jobs_of(sampler), fill)
    finally:
        held.clear()


def recovered(order: WorkOrder, jobs: list[Job], fill: Callable[[], None]) -> Found:
    """Makes `jobs`; `fill` takes memory away once the weights are loaded. CheckFailed unless memory ran out and all
    images were made."""
    made, sizes, notes = 0, [], []
    for event in _making(order, jobs, fill):
        if isinstance(event, Noted):
            notes.append(event.sentence)
        elif isinstance(event, Settled):
            sizes.append(event.batch_size)
        elif isinstance(event, Made):
            made += sum(result.pixels_sha256 is not None for result in event.results)
    figures: dict[str, Any] = {"asked_batch_size": order.batch_size, "batch_sizes": sizes, "notes": notes, "made": made}
    if made != len(jobs):
        raise CheckFailed(f"{made} of {len(jobs)} images were made", figures)
    if not any("out of memory" in note for note in notes):
        raise CheckFailed(f"a batch of {order.batch_size} did not run out of memory", figures)
    return Found(f"a batch of {order.batch_size} ran out of memory, batches of {sizes[-1]} were made", figures)


def _making(order: WorkOrder, jobs: list[Job], fill: Callable[[], None]) -> Iterator[Event]:
    for event in Worker(order).make(jobs):
        yield event
        if isinstance(event, Begun) and event.what.endswith(": make"):  # the transformer is loaded
            fill()


def room_bytes(counted: Operations) -> int:
    """Memory to leave: for one image and half as much again."""
    return int(1.5 * max(counted.forward_live_bytes, counted.decode_live_bytes)) + _WORKSPACES


def too_large(counted: Operations, room: int) -> int:
    """The smallest power of two whose tensors take twice the room that is left."""
    size = 2
    while size * counted.forward_live_bytes < 2 * room and size < _LARGEST:
        size *= 2
    return size


def ballast_bytes(free: int, unused: float, room: int) -> int:
    """What to allocate so that `room` is left: of the device's free memory, or of this process's share."""
    n = int(min(free, unused)) - room
    if n <= 0:
        raise CheckSkipped(f"{free / 1e9:.1f} GB are free, too little for this check")
    return n


def order_of(session: Session, of: ModelCard, batch_size: int) -> WorkOrder:
    """The making of images by this card with random weights, in the session's folder."""
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
    """Four images."""
    return [Job(f"{i}", PROMPTS[i % len(PROMPTS)], i, asdict(sampler), ()) for i in range(4)]
