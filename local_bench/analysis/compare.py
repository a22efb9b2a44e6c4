"""Paired comparison of two runs: their models on the shared tasks, per statistic."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from local_bench.analysis.settlement import lines
from local_bench.core.errors import UserError
from local_bench.runs.rundir import RunDir
from local_bench.settle.bootstrap import Floats, Method, task_sums
from local_bench.settle.paired import Difference, adjusted_bh, adjusted_holm, paired_differences
from local_bench.settle.table import Line

REVENUE, ORDERS, IMAGES = "revenue", "orders accepted", "images accepted"
_TOP = 5
"""The judges' scores run from 0 to this."""

Key = tuple[str, int]
"""(order, deliverable)"""


@dataclass(frozen=True)
class FigureComparison:
    """The difference in one statistic between a model of the first run and a model of the second."""

    figure: str
    """`revenue` in micro-USD, a fraction of tasks or images, or a score's name, in score points."""
    a: float | None
    """The first model's value over the shared tasks; unscored images earn nothing and count as not accepted. For a
    score, the mean over the images that have it in both runs; None if there are none."""
    b: float | None
    difference: Difference
    """`at_least` and `at_most` are the bounds over all values of unscored images; None for a metric, which is
    unbounded."""
    n: int
    """Number of images or tasks."""
    n_unscored: int
    """Number of images or tasks that are undecided in one or both runs."""


@dataclass(frozen=True)
class Comparison:
    """All statistics of all pairs of models."""

    rows: list[FigureComparison]
    n_tasks: int
    """Tasks in both runs."""
    n_tasks_only_a: int
    n_tasks_only_b: int
    notes: list[str]
    """Limits of the comparison, one sentence each."""


@dataclass(frozen=True)
class _Side:
    """One model's outcomes and scores on the shared tasks."""

    lines: Mapping[Key, Line]
    scores: Mapping[str, Mapping[Key, float | None]]
    """Name -> image -> value, None if unscored; no entry if it does not apply."""


def compare(
    a: RunDir,
    b: RunDir,
    *,
    every_pair: bool = False,
    method: Method = "percentile",
    level: float = 0.95,
    seed: int = 0,
) -> Comparison:
    """Compare the models of `a` with those of `b`: models of the same name, or all pairs with `every_pair` or if no
    name is shared. For a run and itself, compare all pairs of its models.

    UserError if the runs share no task, or if a task of the same id differs between them.
    """
    shared, only_a, only_b = _shared_tasks(a, b)
    first, second = _sides(a, shared), _sides(b, shared)
    same = [(model, model) for model in first if model in second]
    pairs = [(x, y) for x in first for y in second] if every_pair or not same else same
    if every_pair and a.path.resolve() == b.path.resolve():
        pairs = list(combinations(first, 2))  # each pair of the run's models once
    names = [name for name in _score_names(a) if name in set(_score_names(b))]
    judged = {name for kind, name in a.store.score_names() if kind == "judge"}
    by_figure: dict[str, list[FigureComparison]] = {figure: [] for figure in (REVENUE, ORDERS, IMAGES, *names)}
    for x, y in pairs:
        for found in _figures((x, y), first[x], second[y], names, judged, (method, level, seed)):
            by_figure[found.figure].append(found)
    rows = [row for figure in by_figure.values() for row in _adjusted(figure)]
    return Comparison(rows, len(shared), only_a, only_b, [*_notes(a, b, only_a, only_b)])


def _shared_tasks(a: RunDir, b: RunDir) -> tuple[list[str], int, int]:
    first, second = a.store.task_contents(), b.store.task_contents()
    shared = [task_id for task_id in first if task_id in second]
    if not shared:
        raise UserError(f"{a.path} and {b.path} have no task in common: compare runs of one suite")
    other = next((task_id for task_id in shared if first[task_id] != second[task_id]), None)
    if other is not None:
        raise UserError(
            f"the task {other!r} of {a.path} differs from the one of {b.path}: compare runs of the same task file"
        )
    return shared, len(first) - len(shared), len(second) - len(shared)


def _sides(run: RunDir, shared: Sequence[str]) -> dict[str, _Side]:
    keys = set(shared)
    by_model: dict[str, dict[Key, Line]] = {}
    for line in lines(run.store):
        if line.task_id in keys:
            by_model.setdefault(line.model, {})[line.task_id, line.deliverable] = line
    scores: dict[str, dict[str, dict[Key, float | None]]] = {}
    by_candidate = run.store.scores_by_candidate()
    for row in sorted(run.store.candidates(), key=lambda row: row.work_id):
        for name, score in by_candidate.get(row.work_id, {}).items():
            if row.attempt == 1 and score.applies:
                of_model = scores.setdefault(row.model, {}).setdefault(name, {})
                of_model[row.task_id, row.deliverable] = score.value
    return {model: _Side(of, scores.get(model, {})) for model, of in sorted(by_model.items())}


def _score_names(run: RunDir) -> list[str]:
    return [name for _, name in run.store.score_names()]


def _figures(
    models: tuple[str, str],
    x: _Side,
    y: _Side,
    names: Sequence[str],
    judged: set[str],
    how: tuple[Method, float, int],
) -> Iterator[FigureComparison]:
    keys = [key for key in x.lines if key in y.lines]
    if not keys:
        return
    tasks = _numbers(keys)
    n_tasks = len(set(tasks))
    part = np.array([x.lines[key].part_micro_usd for key in keys], dtype=np.float64)
    decisions = np.array([[_decision(side.lines[key]) for side in (x, y)] for key in keys])  # images x 2; NaN: open
    yes, no, open_ = decisions == 1, decisions == 0, np.isnan(decisions)
    paid, payable = (task_sums(tasks, part[:, None] * which, n_tasks) for which in (yes, ~no))
    yield _compared(REVENUE, models, paid, payable, None, how, len(keys), int(open_.any(axis=1).sum()))
    size = np.bincount(tasks, minlength=n_tasks)[:, None]
    accepted, acceptable = (task_sums(tasks, which, n_tasks) for which in (yes, ~no))
    complete, completable = ((side == size).astype(np.float64) for side in (accepted, acceptable))
    n_open = int((complete != completable).any(axis=1).sum())
    yield _compared(ORDERS, models, complete, completable, np.ones_like(complete), how, n_tasks, n_open)
    requested = np.repeat(size.astype(np.float64), 2, axis=1)
    yield _compared(IMAGES, models, accepted, acceptable, requested, how, len(keys), int(open_.any(axis=1).sum()))
    for name in names:
        found = _score(name, models, x, y, name in judged, how)
        if found:
            yield found


def _score(
    name: str, models: tuple[str, str], x: _Side, y: _Side, judged: bool, how: tuple[Method, float, int]
) -> FigureComparison | None:
    first, second = x.scores.get(name, {}), y.scores.get(name, {})
    keys = [key for key in first if key in second]
    if not keys:
        return None
    tasks = _numbers(keys)
    values = np.array([[first[key], second[key]] for key in keys], dtype=np.float64)
    both = np.asarray(~np.isnan(values).any(axis=1, keepdims=True))
    n_tasks = len(set(tasks))
    sums = task_sums(tasks, np.where(both, values, 0.0), n_tasks)
    counts = task_sums(tasks, np.repeat(both, 2, axis=1), n_tasks)
    found = _compared(name, models, sums, sums, counts, how, int(both.sum()), int((~both).sum()))
    worst, best = ((np.where(np.isnan(values), end, values)).mean(axis=0) for end in (0, _TOP))
    bounds = (float(worst[0] - best[1]), float(best[0] - worst[1])) if judged else (None, None)
    return replace(found, difference=replace(found.difference, at_least=bounds[0], at_most=bounds[1]))


def _compared(
    figure: str,
    models: tuple[str, str],
    sure: Floats,
    possible: Floats,
    below: Floats | None,
    how: tuple[Method, float, int],
    n: int,
    n_unscored: int,
) -> FigureComparison:
    total = np.ones(2) if below is None else below.sum(axis=0)
    with np.errstate(invalid="ignore"):
        ends = [side.sum(axis=0) / np.where(total == 0, np.nan, total) for side in (sure, possible)]
    bounds = [(float(low), float(high)) for low, high in zip(*ends, strict=True)]
    method, level, seed = how
    (difference,) = paired_differences(models, sure, below, bounds=bounds, method=method, level=level, seed=seed)
    known = [None if np.isnan(low) else low for low, _ in bounds]
    return FigureComparison(figure, known[0], known[1], difference, n, n_unscored)


def _adjusted(rows: Sequence[FigureComparison]) -> list[FigureComparison]:
    """Add p-values adjusted for all pairs of this statistic."""
    p = [row.difference.p for row in rows]
    return [
        replace(row, difference=replace(row.difference, p_holm=holm, p_bh=bh))
        for row, holm, bh in zip(rows, adjusted_holm(p), adjusted_bh(p), strict=True)
    ]


def _numbers(keys: Sequence[Key]) -> list[int]:
    indices = {task_id: i for i, task_id in enumerate(dict.fromkeys(task_id for task_id, _ in keys))}
    return [indices[task_id] for task_id, _ in keys]


def _decision(line: Line) -> float:
    return np.nan if line.decision.accepted is None else float(line.decision.accepted)


def _notes(a: RunDir, b: RunDir, only_a: int, only_b: int) -> Iterator[str]:
    if only_a or only_b:
        yield (
            f"the runs' tasks differ: {only_a} are only in {a.path} and {only_b} only in {b.path}; only shared "
            "tasks are compared"
        )
    if a.store.json_meta("judges") != b.store.json_meta("judges"):
        yield "the runs were judged by different judges, which may cause differences"
    if a.config.acceptance != b.config.acceptance:
        yield "the runs use different acceptance thresholds, which may cause differences in revenue and acceptance"
