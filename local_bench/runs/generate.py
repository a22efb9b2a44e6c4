"""The generation phases of a run: workers process the missing candidates by a model's work order, which is made on a
device that will execute it, and their results are stored."""

import json
import shutil
from collections.abc import Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from local_bench.core.environment import collect, quiet_libraries
from local_bench.core.errors import (
    ConfigError,
    LedgerError,
    LocalBenchError,
    PartFailed,
    WeightsError,
    count,
    is_failure,
)
from local_bench.core.types import TimeCharged, full_identity
from local_bench.generators.capacity import device_memory_gb, free_memory_gb, host_memory_gb
from local_bench.generators.memory import OFFLOADABLE, OTHERS_GB
from local_bench.runs.config import EngineConfig
from local_bench.runs.executors.base import Executor, WorkerDevice
from local_bench.runs.meter import Meter
from local_bench.runs.progress import Progress
from local_bench.runs.roofline import store_operations
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Candidate
from local_bench.runs.store.rows import ImageResult
from local_bench.runs.work import (
    BatchSizeChosen,
    ImagesFinished,
    ModelPlan,
    NumericsSignature,
    WorkOrder,
    in_one_bar,
    shards,
    shared_prompts,
    show,
)
from local_bench.runs.worker import generate_images, order_on

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
    largest: Candidate,
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
    device = torch.device(worker_device.device)
    workers = min(worker_device.workers, n_jobs)
    capacity = device_memory_gb(device)
    memory = model.memory(
        engine,
        largest.sampler,
        len(largest.input_images),
        capacity_gb=capacity,
        host_gb=None if capacity is None else host_memory_gb() / workers,
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
    loaded_gb = workers * max(phase.weights_gb for phase in memory.phases.values())
    order = order_on(
        device,
        model,
        engine,
        memory.offload,
        **({"compile": placement["compile"]} if placement else {}),
        parked_gb=memory.parked_gb,
        capacity_gb=capacity,
        folder=folder,
        load_lock=folder / ".loading" if workers > 1 and loaded_gb > _LOADED_SHARE * host_memory_gb() else None,
        known_sizes=known_sizes,
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


def generate(
    run: RunDir, models: Sequence[ModelPlan], executor: Executor, progress: Progress
) -> LocalBenchError | None:
    """Generate all candidates that are not done, on the executor's devices; return the error of the first model whose
    files, settings, first images, memory or workers do not allow it. Raised are other errors, and this one if the run
    has no image. Afterwards every candidate of the other models is done or unscored."""
    quiet_libraries()
    left, fault = list(models), None
    while left:
        if fault:
            collect()  # what the faulty model has loaded
        try:
            with executor.stage():
                while left:
                    _generate(run, left.pop(0), executor, progress)
        except (PartFailed, ConfigError, WeightsError) as e:
            fault = fault or copy(e)  # without its frames, which hold what was loaded
            if left:
                progress.note(str(e))
                what = "generated" if isinstance(e, PartFailed) else "loaded"
                progress.note(f"a model cannot be {what}: the models after it are generated first")
    if fault and not run.store.counts().done:
        raise fault
    return fault


def _generate(run: RunDir, model: ModelPlan, executor: Executor, progress: Progress) -> None:
    """Generate the candidates of one model that are not done, or whose image is missing, damaged or altered."""
    if model.card is None:
        return
    rows = [row for row in run.store.candidates(model.label) if row.state != "unscored" or is_failure(row.unscored)]
    faulty = run.image_store.faulty((row.image for row in rows if row.image), run.config.engine.io_workers)
    if faulty:
        first = min(faulty.values())
        progress.note(f"{model.label}: {count(len(faulty), 'images are')} generated again ({first.sentence})")
    jobs = sorted((row for row in rows if row.image is None or row.image in faulty), key=lambda row: row.work_id)
    if jobs:
        known_sizes, placement = (
            run.store.json_meta(f"{kind}:{model.label}") or {} for kind in ("batches", "placement")
        )
        largest = max(jobs, key=lambda j: j.sampler.height * j.sampler.width * (1 + len(j.input_images)))
        order, sentences = executor.call(
            work_order, model, run.config.engine, run.path, largest, len(jobs), known_sizes, placement
        )
        for sentence in sentences:
            progress.note(f"{model.label}: {sentence}")
        run.store.set_meta(f"placement:{model.label}", json.dumps(placement_of(order), sort_keys=True))
        _Session(run, model.label, progress).make(order, jobs, executor)


@dataclass
class _Session:
    """Generates the images of one model and stores the results of its workers."""

    run: RunDir
    label: str
    progress: Progress
    signatures: dict[int, dict[str, Any]] = field(default_factory=dict)
    """Numerics of the workers, by the session of their device."""
    finished: set[str] = field(default_factory=set)

    def make(self, order: WorkOrder, jobs: list[Candidate], executor: Executor) -> None:
        store_operations(self.run.store, order)
        shares = shards(jobs, executor.n_shares)
        if len(shares) > 1:
            order = replace(order, workers=min(executor.n_workers, len(shares)), shared=shared_prompts(shares))
        events = executor.do(
            generate_images, order, shares, lambda share: [job for job in share if job.work_id not in self.finished]
        )
        for meter, event in in_one_bar(events, len(shares), f"{self.label}: make", len(jobs), self.progress):
            match event:
                case TimeCharged():
                    meter.charge(**vars(event), model=self.label)
                case ImagesFinished(results):
                    self._commit(meter, results)
                case NumericsSignature(signature):
                    self.signatures[meter.session] = signature
                    self._check_numerics(signature)
                case BatchSizeChosen(bucket, batch_size):
                    key = f"batches:{self.label}"
                    sizes = self.run.store.json_meta(key) or {}
                    if sizes.get(bucket) != batch_size:
                        self.run.store.set_meta(key, json.dumps(sizes | {bucket: batch_size}, sort_keys=True))
                case _:
                    show(event, self.progress)
        assert all(row.state != "planned" for row in self.run.store.candidates(self.label)), "every job has a result"
        shutil.rmtree(order.encoded, ignore_errors=True)
        with suppress(OSError):  # encodings of other models are there, or none were made
            order.encoded.parent.rmdir()

    def _commit(self, meter: Meter, results: list[ImageResult]) -> None:
        store = self.run.store
        with store.transaction():
            for result in results:
                row, sha256 = store.candidate(result.work_id), result.pixels_sha256
                name = f"{row.task_id} image {row.deliverable} by {row.model}"
                if row.pixels_sha256 and is_failure(result.unscored):  # its file is still missing or damaged
                    self.progress.note(f"{name}: {result.unscored}")
                    continue
                if row.pixels_sha256 and row.pixels_sha256 != sha256:
                    raise LedgerError(
                        f"{self.run.path}: {name} was generated again and its bytes differ: generation is not "
                        "reproducible on this machine"
                    )
                signature = self.signatures[meter.session] | {"batch_size": result.batch_size}
                store.enter_image(result, full_identity(result.work_id, signature))
        self.finished.update(result.work_id for result in results)
        self.progress.advance(sum(result.batch_size is not None for result in results))

    def _check_numerics(self, signature: dict[str, Any]) -> None:
        """Store the signature of the run's first session. LedgerError if a later session's differs."""
        key = f"numerics:{self.label}"
        stored = self.run.store.json_meta(key)
        if stored is None:
            self.run.store.set_meta(key, json.dumps(signature, sort_keys=True))
            return
        changed = next((k for k in sorted({*stored, *signature}) if stored.get(k) != signature.get(k)), None)
        if changed:
            raise LedgerError(
                f"{self.run.path} was started with other numerics ({changed}: {stored.get(changed)} then, "
                f"{signature.get(changed)} now), so its bytes would not be reproducible: give a new --run-dir"
            )
