"""The generation phases of a run: what is still to be made goes to makers, what they tell goes into the ledger."""

import json
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch

from local_bench.core.errors import ConfigError, LedgerError
from local_bench.core.identity import full_identity
from local_bench.core.quiet import quiet_libraries
from local_bench.core.types import NOT_FINITE
from local_bench.generators import numerics
from local_bench.generators.capacity import device_memory_gb, host_memory_gb
from local_bench.generators.families import family
from local_bench.generators.memory import plan_memory
from local_bench.generators.sampler import Sampler
from local_bench.runs.meter import Meter
from local_bench.runs.operations import store_operations
from local_bench.runs.plan import ModelPlan
from local_bench.runs.progress import Progress
from local_bench.runs.roofline import check_floor
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import CandidateRow
from local_bench.runs.work import (
    BatchSizeChosen,
    Event,
    ImageResult,
    ImagesFinished,
    Job,
    Message,
    NumericsSignature,
    PhaseAdvanced,
    PhaseStarted,
    TimeCharged,
    WorkOrder,
    shards,
    shared_prompts,
)
from local_bench.runs.worker import generate_images
from local_bench.runs.worker_pool import WorkerPool

_LOADED_SHARE = 0.7
"""Weights pass through host memory on their way to a GPU. If all workers' weights exceed this fraction of it, workers
load one after another."""


def generate(run: RunDir, models: Sequence[ModelPlan], meters: Sequence[Meter], progress: Progress) -> None:
    """Generate all candidates that are not done, on one device per meter.

    Afterwards every candidate is done or unscored, unless an error is raised.
    """
    quiet_libraries()
    devices = numerics.choose_devices(run.config.engine.device, len(meters))
    with WorkerPool(len(devices), run.logs) as workers:
        for model in models:
            jobs = [] if model.card is None else _pending(run, model.label, progress)
            if jobs:
                order = _order(run, model, jobs, devices[0], min(len(devices), len(jobs)), progress)
                _Session(run, model.label, meters, progress).make(order, jobs, devices, workers)


def _pending(run: RunDir, model: str, progress: Progress) -> list[Job]:
    """Candidates of a model that are not done, or whose image is missing, damaged or altered."""
    rows = [row for row in run.store.candidates(model) if row.state != "unscored"]
    made = [row.image for row in rows if row.image]
    faulty = run.image_store.faulty(made, run.config.engine.io_workers)
    if faulty:
        first = min(faulty.values())
        progress.note(f"{model}: {len(faulty):,} images are generated again ({first.sentence})")
    rows.sort(key=lambda row: row.work_id)
    return [_job(row) for row in rows if row.state == "planned" or row.image in faulty]


def _job(row: CandidateRow) -> Job:
    work = row.work
    return Job(row.work_id, row.prompt, row.seed, work["sampler"], tuple(work["pictures"]), work.get("mask"))


def _order(
    run: RunDir, model: ModelPlan, jobs: list[Job], device: torch.device, workers: int, progress: Progress
) -> WorkOrder:
    """The work order of a model on `workers` devices like `device`. ConfigError if it does not fit the device without a
    change of its output bytes."""
    card, engine, label = model.card, run.config.engine, model.label
    assert card is not None
    capacity = device_memory_gb(device)
    largest = max(jobs, key=lambda job: job.sampler["height"] * job.sampler["width"] * (1 + len(job.pictures)))
    memory = plan_memory(
        card,
        Sampler(**largest.sampler),
        pictures=len(largest.pictures),
        batch_size=model.config.batch_size or engine.batch_size,
        capacity_gb=capacity,
        host_gb=None if capacity is None else host_memory_gb() / workers,
        attempts=model.config.attempts,
        lossy=model.config.lossy.settings,
        always_stream=engine.offload == "always",
    )
    if memory.refused:
        raise ConfigError(f"{label}: {memory.refused}")
    for sentence in memory.sentences:
        progress.note(f"{label}: {sentence}")
    kind = family(card.family)
    loaded_gb = workers * max(phase.weights_gb for phase in memory.phases.values())
    return WorkOrder(
        label=label,
        card=card,
        weights=model.weights,
        parts=model.parts,
        weights_sha256=model.weights_sha256,
        lossy=model.config.lossy.settings,
        device=str(device),
        attention=numerics.attention_backend(engine.attention_backend, device, card.dtype, card.attention, kind.masks),
        compile=numerics.compiles(engine.compile, device, memory.offload, model.config.lossy.settings),
        offload=memory.offload,
        threads=engine.threads,
        io_workers=engine.io_workers,
        batch_order=engine.batch_order,
        batch_size=model.config.batch_size or engine.batch_size,
        attempts=model.config.attempts,
        capacity_gb=capacity,
        images=run.images,
        inputs=run.inputs,
        encoded=run.path / "encoded" / label,
        encodings_bytes=engine.encodings_gb * 1e9,
        load_lock=run.path / ".loading" if workers > 1 and loaded_gb > _LOADED_SHARE * host_memory_gb() else None,
        known_sizes=run.store.json_meta(f"batches:{label}") or {},
    )


class _Session:
    """Generates the images of one model and stores the results of its workers."""

    def __init__(self, run: RunDir, label: str, meters: Sequence[Meter], progress: Progress) -> None:
        self._run = run
        self._label = label
        self._meters = meters
        self._progress = progress
        self._signatures: dict[int, dict[str, Any]] = {}

    def make(self, order: WorkOrder, jobs: list[Job], devices: Sequence[torch.device], workers: WorkerPool) -> None:
        store_operations(self._run.store, order)
        for worker, event in self._events(order, jobs, devices, workers):
            self._handle(worker, event)
        left = [row for row in self._run.store.candidates(self._label) if row.state == "planned"]
        assert not left, "every job has a result"
        check_floor(self._run.store, self._label)
        _remove_encodings(order)

    def _events(
        self, order: WorkOrder, jobs: list[Job], devices: Sequence[torch.device], workers: WorkerPool
    ) -> Iterator[tuple[int, Event]]:
        shares = shards(jobs, len(devices))
        if len(shares) == 1:
            for event in generate_images(order, jobs):
                yield 0, event
            return
        order = replace(order, encodings_bytes=order.encodings_bytes / len(shares), shared=shared_prompts(shares))
        orders = [replace(order, device=str(device)) for device, _ in zip(devices, shares, strict=False)]
        self._progress.begin(f"{self._label}: make", len(jobs))
        for worker, event in workers.do(generate_images, orders, shares):
            if not isinstance(event, PhaseStarted | PhaseAdvanced):  # one progress bar for all workers
                yield worker, event

    def _handle(self, worker: int, event: Event) -> None:
        match event:
            case TimeCharged(phase, n_items, now_ns):
                self._meters[worker].charge(phase, n_items, self._label, now_ns)
            case ImagesFinished(results):
                self._commit(worker, results)
            case NumericsSignature(signature):
                self._signatures[worker] = signature
                self._check_numerics(signature)
            case BatchSizeChosen(bucket, batch_size):
                self._store_batch_size(bucket, batch_size)
            case Message(sentence):
                self._progress.note(sentence)
            case PhaseStarted(what, total):
                self._progress.begin(what, total)
            case PhaseAdvanced(n):
                self._progress.advance(n)

    def _commit(self, worker: int, results: list[ImageResult]) -> None:
        with self._run.store.transaction():
            for result in results:
                self._commit_one(result, self._signatures[worker] | {"batch_size": result.batch_size})
        if results:
            self._progress.advance(len(results))

    def _commit_one(self, result: ImageResult, signature: dict[str, Any]) -> None:
        store, sha256 = self._run.store, result.pixels_sha256
        row = store.candidate(result.work_id)
        if row.pixels_sha256 and row.pixels_sha256 != sha256:
            raise LedgerError(
                f"{self._run.path}: {row.task_id} image {row.deliverable} by {row.model} was generated again "
                "and its bytes differ: generation is not reproducible on this machine"
            )
        store.enter_image(
            result.work_id,
            identity=full_identity(result.work_id, signature),
            pixels_sha256=sha256,
            unscored=NOT_FINITE if sha256 is None else None,
            batch_size=result.batch_size,
            truncated=result.truncated,
        )

    def _store_batch_size(self, bucket: str, batch_size: int) -> None:
        key = f"batches:{self._label}"
        known = self._run.store.json_meta(key) or {}
        if known.get(bucket) != batch_size:
            self._run.store.set_meta(key, json.dumps(known | {bucket: batch_size}, sort_keys=True))

    def _check_numerics(self, signature: dict[str, Any]) -> None:
        """Store the signature of the run's first session. LedgerError if a later session's differs."""
        key = f"numerics:{self._label}"
        stored = self._run.store.json_meta(key)
        if stored is None:
            self._run.store.set_meta(key, json.dumps(signature, sort_keys=True))
            return
        changed = next((k for k in sorted({*stored, *signature}) if stored.get(k) != signature.get(k)), None)
        if changed:
            raise LedgerError(
                f"{self._run.path} was started with other numerics ({changed}: {stored.get(changed)} then, "
                f"{signature.get(changed)} now), so its bytes would not be reproducible: give a new --run-dir"
            )


def _remove_encodings(order: WorkOrder) -> None:
    """Remove the model's encodings."""
    shutil.rmtree(order.encoded, ignore_errors=True)
    if order.encoded.parent.is_dir() and not any(order.encoded.parent.iterdir()):
        order.encoded.parent.rmdir()
