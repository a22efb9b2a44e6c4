"""The work order of a model, made on a device that will execute it."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from local_bench.core.errors import ConfigError
from local_bench.generators import numerics
from local_bench.generators.capacity import device_memory_gb, free_memory_gb, host_memory_gb
from local_bench.generators.memory import OFFLOADABLE, OTHERS_GB, plan_memory
from local_bench.generators.registry import traits
from local_bench.generators.staged import family
from local_bench.runs.config import EngineConfig
from local_bench.runs.executors.base import WorkerDevice
from local_bench.runs.plan import ModelPlan
from local_bench.runs.work import Job, WorkOrder

_LOADED_SHARE = 0.7
"""Weights pass through host memory on their way to a GPU. If all workers' weights exceed this fraction of it, workers
load one after another."""


def placement_of(order: WorkOrder) -> dict[str, Any]:
    """The decisions that change bytes and follow the device: stored with a run, and the same in all its sessions."""
    return {"offload": list(order.offload), "compile": order.compile}


def work_order(
    worker_device: WorkerDevice,
    model: ModelPlan,
    engine: EngineConfig,
    folder: Path,
    largest: Job,
    n_jobs: int,
    known_sizes: dict[str, int],
    placement: dict[str, Any],
) -> tuple[WorkOrder, tuple[str, ...]]:
    """The order for `n_jobs` images of a model in the run directory `folder`, for devices like `worker_device`, and
    notes for the user. ConfigError if the model does not fit the device, or the memory that is free there, without a
    change of its output bytes.

    `largest` is the job with the most pixels, `known_sizes` are the batch sizes of earlier sessions by bucket, and
    `placement` is what the run's first session decided (`placement_of`), empty if it has not.
    """
    card, device = model.card, torch.device(worker_device.device)
    assert card is not None
    workers = min(worker_device.workers, n_jobs)
    capacity = device_memory_gb(device)
    memory = plan_memory(
        card,
        largest.sampler,
        input_images=len(largest.input_images),
        batch_size=model.config.batch_size or engine.batch_size,
        capacity_gb=capacity,
        host_gb=None if capacity is None else host_memory_gb() / workers,
        attempts=model.config.attempts,
        lossy=model.config.lossy.settings,
        offload=_offload(model.label, engine, placement),
    )
    if memory.refused:
        raise ConfigError(f"{model.label}: {memory.refused}")
    free, needed = free_memory_gb(device), memory.peak_gb + OTHERS_GB
    if free < needed:
        raise ConfigError(
            f"{model.label}: it needs {needed:.1f} GB of {worker_device.device} "
            f"({torch.cuda.get_device_properties(device).name}), and {free:.1f} GB are free: end other processes that "
            "use it"
        )
    kind = family(card.family)
    loaded_gb = workers * max(phase.weights_gb for phase in memory.phases.values())
    order = WorkOrder(
        label=model.label,
        card=card,
        weights=model.weights,
        parts=model.parts,
        weights_sha256=model.weights_sha256,
        lossy=model.config.lossy.settings,
        device=worker_device.device,
        attention=numerics.attention_backend(
            engine.attention_backend, device, card.dtype, card.attention, kind.masks, kind.attention
        ),
        compile=placement.get(
            "compile",
            numerics.compiles(
                engine.compile, device, memory.offload, model.config.lossy.settings, traits(card.family).compiles
            ),
        ),
        offload=memory.offload,
        parked_gb=memory.parked_gb,
        threads=engine.threads,
        io_workers=engine.io_workers,
        batch_order=engine.batch_order,
        batch_size=model.config.batch_size or engine.batch_size,
        attempts=model.config.attempts,
        capacity_gb=capacity,
        folder=folder,
        encodings_bytes=engine.encodings_gb * 1e9,
        load_lock=folder / ".loading" if workers > 1 and loaded_gb > _LOADED_SHARE * host_memory_gb() else None,
        known_sizes=known_sizes,
        sampler=model.sampler,
    )
    return order, tuple(memory.sentences)


def _offload(label: str, engine: EngineConfig, placement: dict[str, Any]) -> Sequence[str] | None:
    """The phases to offload; None if the plan decides. ConfigError if that would change a started model's bytes."""
    if engine.offload != "always":
        return placement.get("offload")
    if placement.get("compile"):
        raise ConfigError(
            f"{label}: engine.offload=always runs uncompiled, and this run's images are compiled: remove "
            "it, or start another run with it"
        )
    return OFFLOADABLE
