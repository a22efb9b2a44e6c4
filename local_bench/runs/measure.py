"""The metric phase: computes every metric of the config for every image, each score once."""

import json
import socket
import time
from collections.abc import Callable, Collection, Iterator
from copy import copy
from dataclasses import asdict
from functools import partial
from typing import Any

import torch

from local_bench.core.environment import quiet_transformers, versions
from local_bench.core.errors import FirstFailures, LedgerError, LocalBenchError, PartFailed, WeightsError, is_failure
from local_bench.core.images import image_path
from local_bench.core.types import PhaseStarted, Score, ScoresComputed, TimeCharged, canonical_json
from local_bench.generators import numerics
from local_bench.judges.metrics.base import NO_WEIGHTS, RETRIED, ImageFile, NetworkMetric, Subject
from local_bench.judges.metrics.evaluator import Evaluator, Wanted, cut_captions, cut_sentence
from local_bench.judges.metrics.registry import check_metric, make_metric, metric_card
from local_bench.models.weights import resolve, resolve_parts, weights_digest
from local_bench.runs.config import EngineConfig
from local_bench.runs.executors.base import Executor, WorkerDevice
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir
from local_bench.runs.work import Event, MetricWorkOrder, in_one_bar, show
from local_bench.suites.registry import suite

_GENERATION_KEYS = ("attention", "compiled", "vae", "dtype")
"""Keys of the numerics signature that concern only image generation."""
CPU = "cpu"
"""The key of a metric's identity for the CPU's arithmetic."""


def measure(run: RunDir, executor: Executor, progress: Progress) -> PartFailed | None:
    """Compute the missing scores on the executor's devices; those of a metric without weights are unscored. Return the
    error of the first metric whose first scores all fail (the others are computed), or of a worker, which ends this."""
    metrics, faults = set(map(_scores_of, run.config.metrics)), dict[str, PartFailed]()
    while faults.keys() <= metrics:  # any other fault is a worker's
        try:
            _measure(run, executor, progress, faults.keys())
            break
        except PartFailed as e:
            progress.note(str(e))
            faults[e.what] = copy(e)  # without its frames
    return next(iter(faults.values()), None)


def _measure(run: RunDir, executor: Executor, progress: Progress, failed: Collection[str]) -> None:
    every = _every(run)
    stored = list(run.store.scores("metric"))
    # scores that are unscored for missing weights, too little memory, a faulty image or an exception are computed again
    existing = {(work_id, score.name) for work_id, score in stored if not (score.unscored or "").startswith(RETRIED)}
    wanted = _only(every, lambda work_id, name: (work_id, name) not in existing and _scores_of(name) not in failed)
    requested = list(dict.fromkeys(name for _, names in wanted for name in names))
    absent = {name for name in requested if not is_available(name, False, progress)}
    unscored = [
        (subject.key, Score(name, None, NO_WEIGHTS)) for subject, names in wanted for name in names if name in absent
    ]
    run.store.enter_scores("metric", unscored)
    wanted = _only(wanted, lambda _, name: name not in absent)
    if not wanted:
        return
    quiet_transformers()
    names = tuple(name for name in requested if name not in absent)
    for name, cut in cut_captions({name: make_metric(name) for name in names}, every).items():
        progress.note(cut_sentence(name, cut))
        run.store.set_meta(f"captions_cut:{name}", json.dumps(cut, sort_keys=True))
    with executor.stage():
        begun = {score.name for _, score in stored if score.value is not None}
        order = executor.call(metric_order, names, run.config.engine, frozenset(begun))
        for name, identity in order.identities.items():
            fresh, before = canonical_json(identity), run.store.meta(f"metric:{name}")
            if before is not None and before != fresh:
                raise LedgerError(_identity_changed(f"{run.store.path}: {name}", json.loads(before), json.loads(fresh)))
            run.store.set_meta(f"metric:{name}", fresh)
        shares = [share for i in range(executor.n_shares) if (share := wanted[i :: executor.n_shares])]
        finished: set[tuple[str, str]] = set()
        unfinished = partial(_only, condition=lambda work_id, name: (work_id, name) not in finished)
        events = executor.do(measure_share, order, shares, unfinished)
        total = sum(len(names) for _, names in wanted)
        for meter, event in in_one_bar(events, len(shares), "measure", total, progress):
            match event:
                case ScoresComputed(rows):
                    finished.update((work_id, score.name) for work_id, score in rows)
                    if len(shares) > 1:
                        progress.advance(len(rows))
                    run.store.enter_scores("metric", rows)
                case TimeCharged():
                    meter.charge(**vars(event))
                case _:
                    show(event, progress)


def metric_order(
    worker_device: WorkerDevice, names: tuple[str, ...], engine: EngineConfig, begun: frozenset[str]
) -> MetricWorkOrder:
    """The order to compute the metrics `names` on devices like `worker_device`."""
    identities = {name: identity_of(name, worker_device.device) for name in names}
    return MetricWorkOrder(names, engine, worker_device.device, identities, begun)


def measure_share(order: MetricWorkOrder, wanted: list[Wanted]) -> Iterator[Event]:
    """Compute a worker's share of the metrics. LocalBenchError if a node has other metrics than the order's."""
    for name in order.names if order.on_node else ():
        if identity_of(name, order.device) != order.identities[name]:
            raise LocalBenchError(
                f"{name} has other weights or another CPU on the node {socket.gethostname()}: fetch the same weights "
                "on every node (`local-bench models fetch CONFIG --on-nodes ADDRESS`) and use nodes of one type"
            )
    if order.device.startswith("cuda"):
        torch.cuda.set_device(order.device)
    metrics = {name: make_metric(name) for name in order.names}
    engine = order.engine
    evaluator = Evaluator(metrics, order.device, _numerics(order), engine.io_workers, engine.metric_batch_size)
    advice = "check the metric's files and the installed packages"
    firsts = {
        name: FirstFailures[tuple[str, Score]](_scores_of(name), advice, name in order.begun) for name in order.names
    }
    yield PhaseStarted("measure", evaluator.n_steps(wanted))
    for group in evaluator.groups():
        try:
            for event in evaluator.run_group(group, wanted):
                if isinstance(event, ScoresComputed):
                    yield ScoresComputed([known for row in event.rows for known in _known(row, firsts[row[1].name])])
                    yield TimeCharged("metric", len(event.rows), time.monotonic_ns())
                else:
                    yield event
        except PartFailed:
            raise
        except LocalBenchError as e:
            name = next(iter(group))
            raise PartFailed(f"{name}: {e}", _scores_of(name), e.exit_code) from None
    yield ScoresComputed([row for first in firsts.values() for row in first.released()])


def _known(row: tuple[str, Score], first: FirstFailures[tuple[str, Score]]) -> list[tuple[str, Score]]:
    score = row[1]
    if score.unscored and is_failure(score.unscored):
        return first.failed(score.unscored, row)
    return first.succeeded(row) if score.value is not None else [row]


def _scores_of(name: str) -> str:
    return f"scores of {name}"


def _only(wanted: list[Wanted], condition: Callable[[str, str], bool]) -> list[Wanted]:
    """The metrics for whose work id and name `condition` holds; images without one are left out."""
    kept = ((s, tuple(name for name in names if condition(s.key, name))) for s, names in wanted)
    return [(s, names) for s, names in kept if names]


def _every(run: RunDir) -> list[Wanted]:
    """All images with the metrics of their tasks, those of one task adjacent."""
    tasks = {task.task_id: task for task in run.store.tasks()}
    rows = sorted(run.store.candidates(), key=lambda row: (row.task_id, row.deliverable, row.work_id))
    by_task = suite(run.config.suite.name).metrics_by_task
    wanted = []
    for row in rows:
        if row.image is None:
            continue
        task = tasks[row.task_id]
        left_out = by_task - set(task.metrics)
        names = tuple(name for name in run.config.metrics if name.partition(":")[0] not in left_out)
        if names:
            source, mask, *references = (
                None if sha256 is None else ImageFile(image_path(run.inputs, sha256), sha256)
                for sha256 in (task.source_sha256, task.mask_sha256, *task.reference_sha256)
            )
            image = ImageFile(run.image(row.image), row.image)
            belongs = tuple(reference for reference in references if reference)
            caption = row.prompt if task.caption is None else task.caption
            wanted.append((Subject(row.work_id, image, source, mask, belongs, caption), names))
    return wanted


def is_available(name: str, require: bool, progress: Progress) -> bool:
    """Whether a metric can be computed; otherwise a note is shown, or a WeightsError raised if `require` is set."""
    try:
        check_metric(name)
    except WeightsError as e:
        if require:
            raise
        progress.note(f"{name} is unscored: {e}")
        return False
    return True


def _numerics(order: MetricWorkOrder) -> dict[str, Any]:
    """The device and software versions that determine a network's output."""
    full = numerics.signature(torch.device(order.device), "native", "float32")
    decides = {key: value for key, value in full.items() if key not in _GENERATION_KEYS}
    return decides | versions() | {"cpu": numerics.cpu_arithmetic()}  # preprocessing and face detection run on the CPU


def _identity_changed(what: str, stored: dict[str, Any], fresh: dict[str, Any]) -> str:
    """Why scores of two identities of a metric cannot be mixed, and what to do."""
    before, now = stored.get(CPU), fresh.get(CPU)
    if before != now and stored | {CPU: None} == fresh | {CPU: None}:
        return (
            f"{what} was measured {_arithmetic(before)} and would now be measured {_arithmetic(now)}; a network's "
            "float32 scores differ between the two in their last digits: continue on a machine with the same CPU and "
            "engine.device, or give a new --run-dir"
        )
    return (
        f"{what} was measured with other weights or by another release, and its scores cannot be mixed with new ones: "
        "give a new --run-dir"
    )


def _arithmetic(cpu: dict[str, str] | None) -> str:
    return f"on a CPU with {cpu['capability']} (float32 {cpu['float32']})" if cpu else "on a GPU"


def identity_of(name: str, device: str) -> dict[str, Any]:
    """A metric's identity: preprocessing, direction, source, the digest of its weights, and the CPU's arithmetic for a
    network that runs on the CPU in float32. Metrics computed in float64 are the same on every CPU."""
    metric, described = make_metric(name), metric_card(name)
    weights = weights_digest(resolve(described), resolve_parts(described)) if described else None
    network = metric.network if isinstance(metric, NetworkMetric) else None
    identity = asdict(metric.spec) | {"weights_sha256": weights, "network": network.identity if network else None}
    if network and not network.portable and (network.on_cpu or torch.device(device).type == "cpu"):
        identity[CPU] = numerics.cpu_arithmetic()
    return identity
