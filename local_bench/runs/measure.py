"""The metric phase: every metric of the config on every image that is there, each row once."""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

import torch

from local_bench.core.errors import LedgerError, WeightsError
from local_bench.core.identity import canonical_json
from local_bench.core.images import image_path
from local_bench.core.packages import versions
from local_bench.core.quiet import quiet_transformers
from local_bench.core.types import Score
from local_bench.generators import numerics
from local_bench.judges.metrics.base import NetworkMetric, Picture, Subject
from local_bench.judges.metrics.evaluator import Evaluator, Opened, Scored, Told, Wanted
from local_bench.judges.metrics.extractor import FAULTY
from local_bench.judges.metrics.registry import check_metric, make_metric, metric_card
from local_bench.models.weights import resolve, resolve_parts, weights_digest
from local_bench.runs.meter import Meter
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Store
from local_bench.runs.work import Advanced, Begun, Charged, Event, Measured, MetricWorkOrder, Noted
from local_bench.runs.worker_pool import WorkerPool
from local_bench.suites.registry import suite

NO_WEIGHTS = "the weights of this metric are not on this machine"
"""Why an image has no number by a metric whose model is not here; such a row is taken again once it is."""
_OF_PICTURES = ("attention", "compiled", "vae", "dtype")
"""What of the numerics signature only makers of pictures have."""
CPU = "cpu"
"""The part of a metric's identity that says how the CPU computes."""


def measure(run: RunDir, meters: Sequence[Meter], progress: Progress) -> None:
    """Adds the rows that are missing, on as many devices as there are meters; what is measured already stays.

    A metric whose weights are not here leaves its rows unscored.
    """
    wanted = _wanted(run)
    asked = list(dict.fromkeys(name for _, names in wanted for name in names))
    absent = {name for name in asked if not is_here(name, False, progress)}
    gone = [
        (subject.key, Score(name, None, NO_WEIGHTS)) for subject, names in wanted for name in names if name in absent
    ]
    run.store.enter_scores("metric", gone)
    wanted = [(s, own) for s, names in wanted if (own := tuple(name for name in names if name not in absent))]
    if not wanted:
        return
    quiet_transformers()
    devices = numerics.choose_devices(run.config.engine.device, len(meters))
    order = MetricWorkOrder(
        names=tuple(name for name in asked if name not in absent),
        device=str(devices[0]),
        threads=run.config.engine.threads,
        io_workers=run.config.engine.io_workers,
        batch_size=run.config.engine.metric_batch_size,
    )
    _note_identities(run.store, order)
    with WorkerPool(len(devices), run.logs) as workers:
        for worker, event in _events(order, wanted, devices, workers):
            match event:
                case Measured(rows):
                    run.store.enter_scores("metric", rows)
                case Charged(phase, n_items, now_ns):
                    meters[worker].charge(phase, n_items, now_ns=now_ns)
                case Noted(sentence):
                    progress.note(sentence)
                case Begun(what, total):
                    progress.begin(what, total)
                case Advanced(n):
                    progress.advance(n)


def measure_share(order: MetricWorkOrder, wanted: list[Wanted]) -> Iterator[Event]:
    """A worker's share of the metrics."""
    metrics = {name: make_metric(name) for name in order.names}
    survey = Evaluator(metrics, order.device, _numerics(order), order.io_workers, order.batch_size)
    yield Begun("measure", survey.groups(wanted))
    for step in survey.run(wanted):
        match step:
            case Opened(_, at_ns):
                yield Charged("load", 0, at_ns)
            case Scored(rows, n_subjects):
                yield Measured(rows)
                yield Charged("metric", len(rows), time.monotonic_ns())
                yield Advanced(n_subjects)
            case Told(sentence):
                yield Noted(sentence)


def _wanted(run: RunDir) -> list[Wanted]:
    """Images that are there and have no row for some metric, those of one order side by side; a row that is unscored
    for missing weights or a faulty picture is taken again."""
    there = {
        (work_id, score.name)
        for work_id, _, score in run.store.scores("metric")
        if score.unscored != NO_WEIGHTS and not (score.unscored or "").startswith(FAULTY)
    }
    tasks = {task.task_id: task for task in run.store.tasks()}
    rows = sorted(run.store.candidates(), key=lambda row: (row.task_id, row.deliverable, row.work_id))
    by_task = suite(run.config.suite.name).metrics_by_task
    wanted = []
    for row in rows:
        if row.image is None:
            continue
        task = tasks[row.task_id]
        left_out = by_task - set(task.metrics)
        names = tuple(
            name
            for name in run.config.metrics
            if (row.work_id, name) not in there and name.partition(":")[0] not in left_out
        )
        if names:
            source, mask, *references = (
                None if sha256 is None else Picture(image_path(run.inputs, sha256), sha256)
                for sha256 in (task.source_sha256, task.mask_sha256, *task.reference_sha256)
            )
            image = Picture(run.image(row.image), row.image)
            belongs = tuple(reference for reference in references if reference)
            caption = row.prompt if task.caption is None else task.caption
            wanted.append((Subject(row.work_id, image, source, mask, belongs, caption), names))
    return wanted


def is_here(name: str, require: bool, progress: Progress) -> bool:
    """Whether a metric can be taken; what is missing is noted. WeightsError instead where it is required."""
    try:
        check_metric(name)
    except WeightsError as e:
        if require:
            raise
        progress.note(f"{name} is unscored: {e}")
        return False
    return True


def _events(
    order: MetricWorkOrder, wanted: list[Wanted], devices: Sequence[torch.device], workers: WorkerPool
) -> Iterator[tuple[int, Event]]:
    shares = [share for i in range(len(devices)) if (share := wanted[i :: len(devices)])]
    if len(shares) == 1:
        yield from ((0, event) for event in measure_share(order, wanted))
        return
    orders = [replace(order, device=str(device)) for device, _ in zip(devices, shares, strict=False)]
    for worker, event in workers.do(measure_share, orders, shares):
        if worker == 0 or not isinstance(event, Begun | Advanced):  # one bar, by the first one's share
            yield worker, event


def _numerics(order: MetricWorkOrder) -> dict[str, Any]:
    """What of device and software decides a network's arrays."""
    made_by = numerics.signature(torch.device(order.device), "native", "float32")
    decides = {key: value for key, value in made_by.items() if key not in _OF_PICTURES}
    return decides | versions() | {"cpu": numerics.cpu_arithmetic()}  # pictures are prepared on it, faces found on it


def _note_identities(store: Store, order: MetricWorkOrder) -> None:
    """What each metric's numbers mean, for good. LedgerError where there are numbers of another meaning already."""
    for name in order.names:
        fresh = canonical_json(identity_of(name, order.device))
        there = store.meta(f"metric:{name}")
        if there not in (None, fresh):
            raise LedgerError(_not_the_same(f"{store.path}: {name}", json.loads(there), json.loads(fresh)))
        store.set_meta(f"metric:{name}", fresh)


def _not_the_same(what: str, there: dict[str, Any], fresh: dict[str, Any]) -> str:
    """Why numbers of two identities of a metric cannot be mixed, and what to do."""
    measured, here = there.get(CPU), fresh.get(CPU)
    if measured != here and there | {CPU: None} == fresh | {CPU: None}:
        return (
            f"{what} was measured {_arithmetic(measured)} and would now be measured {_arithmetic(here)}; a network's "
            "float32 scores differ between the two in their last digits: continue on a machine with the same CPU and "
            "engine.device, or give a new --run-dir"
        )
    return (
        f"{what} was measured with other weights or by another release, and its numbers cannot stand beside new ones: "
        "give a new --run-dir"
    )


def _arithmetic(cpu: dict[str, str] | None) -> str:
    return f"on a CPU with {cpu['capability']} (float32 {cpu['float32']})" if cpu else "on a GPU"


def identity_of(name: str, device: str) -> dict[str, Any]:
    """What a metric's numbers mean: preprocessing, direction, source, the weights of its model, and for a network that
    runs on the CPU in float32 how that CPU computes. Metrics computed in float64 are the same on every CPU."""
    metric, described = make_metric(name), metric_card(name)
    weights = weights_digest(resolve(described), resolve_parts(described)) if described else None
    network = metric.network if isinstance(metric, NetworkMetric) else None
    identity = asdict(metric.spec) | {"weights_sha256": weights, "network": network.identity if network else None}
    if network and not network.portable and (network.on_cpu or torch.device(device).type == "cpu"):
        identity[CPU] = numerics.cpu_arithmetic()
    return identity
