"""Paired comparison of two runs: their models on the shared tasks, per statistic."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np

from local_bench.analysis.settlement import line_table
from local_bench.core.errors import UserError
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import NOT_APPLICABLE
from local_bench.settle.bootstrap import Floats, Method, numbered, task_sums
from local_bench.settle.paired import Difference, Statistics, adjusted_bh, adjusted_holm, differences
from local_bench.settle.table import ACCEPTED, REJECTED, Ints

REVENUE, ORDERS, IMAGES = "revenue", "orders accepted", "images accepted"
_TOP = 5
"""The judges' scores run from 0 to this."""
_MAX_DELIVERABLES = 2**20
"""More than the deliverables of any order."""


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
class _Scores:
    """One score of a model's images that it applies to, in order of work ids."""

    image: Ints
    """(N,), as `_Side.image`."""
    value: Floats
    """(N,), NaN if unscored."""


@dataclass(frozen=True)
class _Side:
    """One model's outcomes and scores on the shared tasks, as columns in order of work ids."""

    task: Ints
    """(N,) number of the shared task."""
    image: Ints
    """(N,) number of the task and deliverable, the same in both runs."""
    part: Ints
    """(N,) revenue if accepted, in micro-USD."""
    decision: Ints
    """(N,)"""
    scores: Mapping[str, _Scores]
    """By name."""


@dataclass(frozen=True)
class _Figure:
    """A statistic of a pair of models, to be compared."""

    name: str
    statistics: Statistics
    n: int
    n_unscored: int
    bounds: tuple[float | None, float | None] | None = None
    """Of the difference, if they do not follow from the bounds of `statistics`."""


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
    names = [name for name in _score_names(a) if name in set(_score_names(b))]
    first = _sides(a, shared, names)
    itself = a.path.resolve() == b.path.resolve()
    second = first if itself else _sides(b, shared, names)
    same = [(model, model) for model in first if model in second]
    pairs = [(x, y) for x in first for y in second] if every_pair or not same else same
    if every_pair and itself:
        pairs = list(combinations(first, 2))  # each pair of the run's models once
    judged = {name for kind, name in a.store.score_names() if kind == "judge"}
    figures = [found for x, y in pairs for found in _figures((x, y), first[x], second[y], names, judged)]
    compared = differences([of.statistics for of in figures], method=method, level=level, seed=seed)
    by_figure: dict[str, list[FigureComparison]] = {figure: [] for figure in (REVENUE, ORDERS, IMAGES, *names)}
    for of, (difference,) in zip(figures, compared, strict=True):
        by_figure[of.name].append(_compared(of, difference))
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


def _sides(run: RunDir, shared: Sequence[str], names: Sequence[str]) -> dict[str, _Side]:
    table = line_table(run.store)
    numbers = {task_id: i for i, task_id in enumerate(shared)}
    task = np.array([numbers.get(task_id, -1) for task_id in table.task_ids], dtype=np.int64)[table.task]
    image = task * _MAX_DELIVERABLES + table.deliverable
    part = table.part_micro_usd
    rows = {i: np.flatnonzero((table.model == i) & (task >= 0)) for i in range(len(table.models))}
    scores: dict[int, dict[str, _Scores]] = {i: {} for i in rows}
    for name in names:
        given = [value for (value,) in run.store.first_scores([name])]
        applies = np.array([value not in (None, NOT_APPLICABLE) for value in given], dtype=np.bool_)
        values = np.array([value if isinstance(value, float) else np.nan for value in given])
        for i, of in rows.items():
            own = of[applies[of]]
            if len(own):
                scores[i][name] = _Scores(image[own], values[own])
    return {
        model: _Side(task[rows[i]], image[rows[i]], part[rows[i]], table.decision[rows[i]], scores[i])
        for i, model in sorted(enumerate(table.models), key=lambda one: one[1])
        if len(rows[i])
    }


def _score_names(run: RunDir) -> list[str]:
    return [name for _, name in run.store.score_names()]


def _figures(models: tuple[str, str], x: _Side, y: _Side, names: Sequence[str], judged: set[str]) -> Iterator[_Figure]:
    of_x, of_y = _in_both(x.image, y.image)
    if not len(of_x):
        return
    tasks, n_tasks = numbered(x.task[of_x])
    part = x.part[of_x].astype(np.float64)
    decisions = np.stack([x.decision[of_x], y.decision[of_y]], axis=1)  # images x 2
    yes, no = decisions == ACCEPTED, decisions == REJECTED
    n_images, n_open = len(of_x), int((~yes & ~no).any(axis=1).sum())
    paid, payable = (task_sums(tasks, part[:, None] * which, n_tasks) for which in (yes, ~no))
    yield _Figure(REVENUE, _statistics(models, paid, payable, None), n_images, n_open)
    size = np.bincount(tasks, minlength=n_tasks)[:, None]
    accepted, acceptable = (task_sums(tasks, which, n_tasks) for which in (yes, ~no))
    complete, completable = ((side == size).astype(np.float64) for side in (accepted, acceptable))
    open_orders = int((complete != completable).any(axis=1).sum())
    yield _Figure(ORDERS, _statistics(models, complete, completable, np.ones_like(complete)), n_tasks, open_orders)
    requested = np.repeat(size.astype(np.float64), 2, axis=1)
    yield _Figure(IMAGES, _statistics(models, accepted, acceptable, requested), n_images, n_open)
    for name in names:
        if name in x.scores and name in y.scores:
            yield from _score(name, models, x.scores[name], y.scores[name], name in judged)


def _score(name: str, models: tuple[str, str], x: _Scores, y: _Scores, judged: bool) -> Iterator[_Figure]:
    of_x, of_y = _in_both(x.image, y.image)
    if not len(of_x):
        return
    tasks, n_tasks = numbered(x.image[of_x] // _MAX_DELIVERABLES)
    values = np.stack([x.value[of_x], y.value[of_y]], axis=1)
    both = np.asarray(~np.isnan(values).any(axis=1, keepdims=True))
    sums = task_sums(tasks, np.where(both, values, 0.0), n_tasks)
    counts = task_sums(tasks, np.repeat(both, 2, axis=1), n_tasks)
    worst, best = ((np.where(np.isnan(values), end, values)).mean(axis=0) for end in (0, _TOP))
    bounds = (float(worst[0] - best[1]), float(best[0] - worst[1])) if judged else (None, None)
    yield _Figure(name, _statistics(models, sums, sums, counts), int(both.sum()), int((~both).sum()), bounds)


def _in_both(x: Ints, y: Ints) -> tuple[Ints, Ints]:
    """The places in `x` and in `y` of the numbers that both have, in the order of `x`."""
    order = np.argsort(y)
    at = np.searchsorted(y, x, sorter=order)
    places = order[np.minimum(at, len(y) - 1)]
    found = y[places] == x
    return np.flatnonzero(found), places[found]


def _statistics(models: tuple[str, str], sure: Floats, possible: Floats, below: Floats | None) -> Statistics:
    total = np.ones(2) if below is None else below.sum(axis=0)
    with np.errstate(invalid="ignore"):
        ends = [side.sum(axis=0) / np.where(total == 0, np.nan, total) for side in (sure, possible)]
    return Statistics(models, sure, below, [(float(low), float(high)) for low, high in zip(*ends, strict=True)])


def _compared(of: _Figure, difference: Difference) -> FigureComparison:
    if of.bounds is not None:
        difference = replace(difference, at_least=of.bounds[0], at_most=of.bounds[1])
    known = [None if np.isnan(low) else low for low, _ in of.statistics.bounds or ()]
    return FigureComparison(of.name, known[0], known[1], difference, of.n, of.n_unscored)


def _adjusted(rows: Sequence[FigureComparison]) -> list[FigureComparison]:
    """Add p-values adjusted for all pairs of this statistic."""
    p = [row.difference.p for row in rows]
    return [
        replace(row, difference=replace(row.difference, p_holm=holm, p_bh=bh))
        for row, holm, bh in zip(rows, adjusted_holm(p), adjusted_bh(p), strict=True)
    ]


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
