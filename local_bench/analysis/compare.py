"""Paired comparison of two runs: their models on the shared tasks, per statistic."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations

import numpy as np
import pandas as pd

from local_bench.analysis.comparability import JUDGED, conditions_of
from local_bench.analysis.official import run_results
from local_bench.analysis.settlement import attempts
from local_bench.core.errors import UserError
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import UNSCORED, scores_by_image
from local_bench.settle.intervals import LEVEL, Floats, task_sums
from local_bench.settle.paired import Difference, Statistics, adjusted, differences
from local_bench.settle.table import ACCEPTED, REJECTED, Ints, Mask, decisions, parts_micro_usd
from local_bench.suites.base import Suite
from local_bench.suites.questions_from import scale_of
from local_bench.suites.registry import suite
from local_bench.suites.run_results import TaskFigure, weights_of

REVENUE, TASKS, IMAGES = "revenue", "tasks accepted", "images accepted"
_MAX_DELIVERABLES, _MAX_ATTEMPTS = 2**20, 2**16
"""More than the deliverables of any task, and than the attempts of any model."""


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
    """Number of images or tasks that are undecided in one or both runs; for a score, of images that lack a value in one
    or both, such as those that were not made."""


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
    """One model's outcomes and scores on the shared tasks, as columns in order of task, deliverable and attempt."""

    task: Ints
    """(N,) number of the shared task."""
    image: Ints
    """(N,) number of the task, deliverable and attempt, the same in both runs; ascending."""
    first: Mask
    """(N,) whether it is the first attempt, whose revenue counts."""
    part: Ints
    """(N,) revenue if accepted, in micro-USD; 0 for other attempts."""
    decision: Ints
    """(N,)"""
    scores: Mapping[str, Floats]
    """By name: (N,), NaN if unscored, infinite where the score does not apply or, negative, is absent."""


@dataclass(frozen=True)
class _Figure:
    name: str
    statistics: Statistics
    n: int
    n_unscored: int
    bounds: tuple[float | None, float | None] | None = None
    """Of the difference, if they do not follow from the bounds of `statistics`."""


def compare(a: RunDir, b: RunDir, *, every_pair: bool = False, level: float = LEVEL, seed: int = 0) -> Comparison:
    """Compare the models of `a` with those of `b`: models of the same name, or all pairs with `every_pair` or if no
    name is shared. For a run and itself, compare all pairs of its models. Revenue is that of first attempts, accepted
    images and scores are of all attempts that both have.

    UserError if the runs share no task, or if a task of the same id differs between them.
    """
    shared, only_a, only_b = _shared_tasks(a, b)
    names_b = {name for _, name in b.store.score_names()}
    names = [name for _, name in a.store.score_names() if name in names_b]
    first = _sides(a, shared, names)
    itself = a.path.resolve() == b.path.resolve()
    second = first if itself else _sides(b, shared, names)
    if sides := [*first.values(), *second.values()]:
        _mark_missing(sides, names)
    same = [(model, model) for model in first if model in second]
    pairs = [(x, y) for x in first for y in second] if every_pair or not same else same
    if every_pair and itself:
        pairs = list(combinations(first, 2))  # each pair of the run's models once
    scales = {name: scale_of(a.config.suite.name, name) for kind, name in a.store.score_names() if kind == "judge"}
    by_task = _own_figures(a), _own_figures(b)
    figures = [
        figure
        for x, y in pairs
        for figure in (
            *_figures((x, y), first[x], second[y], names, scales),
            *_paired_by_task((x, y), *by_task, shared),
        )
    ]
    compared = differences([figure.statistics for figure in figures], level=level, seed=seed)
    by_figure: dict[str, list[FigureComparison]] = {figure: [] for figure in (REVENUE, TASKS, IMAGES, *names)}
    for figure, (difference,) in zip(figures, compared, strict=True):
        low, high = (difference.at_least, difference.at_most) if figure.bounds is None else figure.bounds
        bounded, table = replace(difference, at_least=low, at_most=high), figure.statistics
        ratios = zip(table.above.sum(axis=0), table.below.sum(axis=0), strict=True)
        of_a, of_b = (float(table.unit * over / under) if under else None for over, under in ratios)
        row = FigureComparison(figure.name, of_a, of_b, bounded, figure.n, figure.n_unscored)
        by_figure.setdefault(figure.name, []).append(row)
    images_a, images_b, rows = a.store.outcomes_by_model(), b.store.outcomes_by_model(), list[FigureComparison]()
    for of_figure in by_figure.values():  # models with the same images (a digest each) are one
        keys = [(images_a[row.difference.a], images_b[row.difference.b]) for row in of_figure]
        changed = adjusted([row.difference for row in of_figure], keys)
        rows += [replace(row, difference=difference) for row, difference in zip(of_figure, changed, strict=True)]
    notes = [*_notes(a, b, only_a, only_b), *([] if rows else ["the runs have no decision and no common score"])]
    return Comparison(rows, len(shared), only_a, only_b, notes)


def _shared_tasks(a: RunDir, b: RunDir) -> tuple[list[str], int, int]:
    first, second = a.store.task_contents(), b.store.task_contents()
    shared = sorted(task_id for task_id in first if task_id in second)
    if not shared:
        raise UserError(f"{a.path} and {b.path} have no task in common: compare runs of one suite")
    other = next((task_id for task_id in shared if first[task_id] != second[task_id]), None)
    if other is not None:
        raise UserError(
            f"the task {other!r} of {a.path} differs from the one of {b.path}: compare runs of the same task file"
        )
    return shared, len(first) - len(shared), len(second) - len(shared)


def _sides(run: RunDir, shared: Sequence[str], names: Sequence[str]) -> dict[str, _Side]:
    rows = attempts(run.store)
    number = {task_id: i for i, task_id in enumerate(shared)}
    task = np.array([number.get(task_id, -1) for task_id in rows["task_id"]], dtype=np.int64)
    deliverable, attempt = (rows[name].to_numpy(np.int64) for name in ("deliverable", "attempt"))
    image = (task * _MAX_DELIVERABLES + deliverable) * _MAX_ATTEMPTS + attempt
    first, decision = attempt == 1, decisions(rows["accepted"])
    part = np.where(first, parts_micro_usd(rows), 0)
    cells = scores_by_image(run.store, rows["work_id"], names)
    scores = {name: np.array([_number(cell) for cell in cells[name]], dtype=np.float64) for name in names}
    sides = {}
    for model in sorted(rows["model"].unique()):
        here = np.flatnonzero((rows["model"] == model).to_numpy(bool) & (task >= 0))
        here = here[np.argsort(image[here])]
        if len(here):
            of_model = {name: values[here] for name, values in scores.items()}
            sides[str(model)] = _Side(task[here], image[here], first[here], part[here], decision[here], of_model)
    return sides


def _number(cell: float | str | None) -> float:
    """NaN if it is unscored, infinite where the score does not apply, minus infinity if it is absent."""
    return cell if isinstance(cell, float) else np.nan if cell == UNSCORED else -np.inf if cell is None else np.inf


def _mark_missing(sides: Sequence[_Side], names: Sequence[str]) -> None:
    """Absent scores, such as those of images that were not made, are unscored (NaN) where the score applies: to another
    image of the deliverable, or to every image that has scores."""
    place = np.concatenate([side.image for side in sides]) // _MAX_ATTEMPTS
    ends = np.cumsum([len(side.image) for side in sides])
    scores = np.array([np.concatenate([side.scores[name] for side in sides]) for name in names])
    have, applies = ~np.isneginf(scores).all(axis=0), ~np.isinf(scores)
    for name, values, known in zip(names, scores, applies, strict=True):
        missing = np.isneginf(values) & (known[have].all() | np.isin(place, place[known]))
        for side, here in zip(sides, np.split(missing, ends[:-1]), strict=True):
            side.scores[name][here] = np.nan


def _figures(
    models: tuple[str, str], x: _Side, y: _Side, names: Sequence[str], scales: Mapping[str, tuple[float, float] | None]
) -> Iterator[_Figure]:
    _, of_x, of_y = np.intersect1d(x.image, y.image, assume_unique=True, return_indices=True)
    if not len(of_x):
        return
    tasks, numbers = pd.factorize(x.task[of_x])
    n_tasks = len(numbers)
    decisions = np.stack([x.decision[of_x], y.decision[of_y]], axis=1)  # images x 2
    yes, no = decisions == ACCEPTED, decisions == REJECTED
    first = x.first[of_x]

    def sums(which: Floats | Mask, rows: Mask | slice = slice(None)) -> Floats:
        return task_sums(tasks[rows], np.broadcast_to(which, (len(tasks), 2))[rows], n_tasks)

    part, is_open = x.part[of_x].astype(np.float64)[:, None], (~yes & ~no).any(axis=1)
    decided = bool((yes | no).any())
    if decided and first.any():
        prices = sums(part, first)
        paid, payable = (sums(part * which, first) for which in (yes, ~no))
        if total := float(prices[:, 0].sum()):  # 0: of benchmarks without prices
            revenue = Statistics(models, paid, prices, total, best=payable)
            yield _Figure(REVENUE, revenue, int(first.sum()), int(is_open[first].sum()))
        size = sums(np.ones((1, 2)), first)
        complete, completable = ((sums(which, first) == size).astype(np.float64) for which in (yes, ~no))
        n_open = int((complete != completable).any(axis=1).sum())
        yield _Figure(TASKS, Statistics(models, complete, np.ones_like(complete), best=completable), n_tasks, n_open)
    if decided:
        accepted = Statistics(models, sums(yes), sums(np.ones((1, 2))), best=sums(~no))
        yield _Figure(IMAGES, accepted, len(of_x), int(is_open.sum()))
    for name in names:
        values = np.stack([x.scores[name][of_x], y.scores[name][of_y]], axis=1)
        applies = np.asarray(~np.isinf(values).any(axis=1))
        if not applies.any():
            continue
        both = np.asarray(applies & ~np.isnan(values).any(axis=1))
        counts, scored = sums(np.ones((1, 2)), both), sums(np.where(both[:, None], values, 0.0), both)
        scale = scales.get(name)
        bounds: tuple[float | None, float | None] = (None, None)
        ends = (None, None) if scale is None else (scale[1] - scale[0], scale[0])
        statistics = Statistics(models, scored, counts, 1.0, *ends)
        if scale is not None:
            worst, best = (np.where(np.isnan(values), end, values)[applies].mean(axis=0) for end in scale)
            bounds = float(worst[0] - best[1]), float(best[0] - worst[1])
        yield _Figure(name, statistics, int(both.sum()), int((applies & ~both).sum()), bounds)


_Own = dict[tuple[str, str], dict[str, TaskFigure]]
"""(figure, model) -> task -> value"""


def _own_figures(run: RunDir) -> _Own:
    entry, figures = suite(run.config.suite.name), _Own()
    if type(entry).figures_by_task is Suite.figures_by_task:
        return figures  # without reading the results
    for figure in entry.figures_by_task(run_results(run)):
        figures.setdefault((figure.figure, figure.model), {})[figure.task_id] = figure
    return figures


def _paired_by_task(models: tuple[str, str], x: _Own, y: _Own, shared: Sequence[str]) -> Iterator[_Figure]:
    """The benchmark's own figures over the tasks of which both models have a value; None without any."""
    for figure in dict.fromkeys(name for name, _ in x):
        first, second = x.get((figure, models[0]), {}), y.get((figure, models[1]), {})
        pairs = [(first.get(task), second.get(task)) for task in shared if task in first or task in second]
        both = [(a, b) for a, b in pairs if a and b and a.value is not None and b.value is not None]
        if one := next((one for pair in pairs for one in pair if one), None):
            weights = np.array([[w, w] for w in weights_of([a for a, _ in both])], dtype=np.float64).reshape(-1, 2)
            values = np.array([[a.value, b.value] for a, b in both], dtype=np.float64).reshape(-1, 2)
            ends = [[one.value if one.at_best is None else one.at_best for one in pair] for pair in both]
            best = np.array(ends, dtype=np.float64).reshape(-1, 2)
            n_open = len(pairs) - int((values == best).all(axis=1).sum())
            statistics = Statistics(models, weights * values, weights, 1.0, one.widest, one.least, best=weights * best)
            bounded = len(both) == len(pairs) and all(one.at_best is not None for pair in both for one in pair)
            yield _Figure(figure, statistics, len(both), n_open, None if bounded else (None, None))


def _notes(a: RunDir, b: RunDir, only_a: int, only_b: int) -> Iterator[str]:
    if only_a or only_b:
        yield (
            f"the runs' tasks differ: {only_a} are only in {a.path} and {only_b} only in {b.path}; only shared "
            "tasks are compared"
        )
    first, second = conditions_of(a), conditions_of(b)
    for condition, sentence in zip(JUDGED, _DIFFER, strict=True):
        if first[condition] != second[condition]:
            yield f"the runs {sentence}"


_DIFFER = (
    "were judged by different judges, or their answers were combined differently, which may cause differences",
    "were judged with different rubrics, which may cause differences",
    "use different acceptance thresholds, which may cause differences in revenue and acceptance",
)
