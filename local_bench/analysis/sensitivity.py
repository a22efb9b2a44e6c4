"""Sensitivity of a run's ranking to the acceptance threshold and to the price of a device-hour."""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from local_bench.analysis.performance import generation_stats
from local_bench.analysis.settlement import Accounting, lines
from local_bench.core.money import MICRO
from local_bench.core.types import Score
from local_bench.judges.rules import RULES
from local_bench.runs.acceptance import thresholds_of
from local_bench.runs.rundir import RunDir
from local_bench.settle.sensitivity import Flip, Point, flips, profits, revenues
from local_bench.settle.table import table_of_lines

THRESHOLDS = tuple(Fraction(half, 2) for half in range(4, 11))
"""2 to 5 in steps of 0.5, for every deciding score."""
TIMES = (Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
"""Multiples of the run's price of a device-hour."""
_UNITS = 10**9
"""Integer units per score point."""
_MISSED = -1.0
"""A value below every threshold."""
_NS_PER_S = 1_000_000_000


@dataclass(frozen=True)
class Sweep:
    """One statistic of every model over the values of one parameter."""

    points: list[Point]
    flips: list[Flip]


def over_thresholds(run: RunDir) -> Sweep | None:
    """Revenue with a common threshold for all deciding scores; None for a suite with pass/fail judges."""
    thresholds = thresholds_of(run.config)
    if dict(thresholds) != run.config.acceptance.thresholds:
        return None
    rows = lines(run.store)
    table = table_of_lines(rows)
    lowest = _lowest(run, tuple(thresholds))
    if run.config.acceptance.rules:
        lowest = _under_rules(run, lowest)
    task_index = {task_id: i for i, task_id in enumerate(table.orders.task_ids)}
    model_index = {model: i for i, model in enumerate(table.models)}
    found = [lowest.get((line.model, line.task_id, line.deliverable)) for line in rows]
    points = revenues(
        table.orders,
        table.models,
        np.array([model_index[line.model] for line in rows], dtype=np.int64),
        np.array([task_index[line.task_id] for line in rows], dtype=np.int64),
        np.array([0 if score is None else round(score * _UNITS) for score in found], dtype=np.int64),
        np.array([score is not None for score in found], dtype=np.bool_),
        [(threshold, int(threshold * _UNITS)) for threshold in THRESHOLDS],
    )
    middle = points[len(points) // 2].values
    return Sweep(points, flips(middle, points, lower_is_better=False))


def over_prices(run: RunDir, money: Accounting) -> Sweep | None:
    """Profit at other prices of a device-hour; None without a price."""
    if money.price is None:
        return None
    hour = Fraction(money.price.micro_usd_per_hour, MICRO)
    made = generation_stats(run.store, money, [s.model for s in money.settlements])
    held = {stats.model: Fraction(stats.held_ns, _NS_PER_S) for stats in made if not stats.imported}
    revenue = {s.model: Fraction(s.total.revenue_micro_usd, MICRO) for s in money.settlements}
    points = profits(revenue, held, [times * hour for times in TIMES])
    return Sweep(points, flips(points[TIMES.index(Fraction(1))].values, points, lower_is_better=False))


def _lowest(run: RunDir, names: tuple[str, ...]) -> dict[tuple[str, str, int], float]:
    """(model, order, deliverable) -> the lowest applicable deciding score; no entry if one is unscored."""
    found: dict[tuple[str, str, int], float] = {}
    for key, scores in _first_attempts(run).items():
        values = [score.value for name, score in scores.items() if name in names and score.applies]
        known = [value for value in values if value is not None]
        if known and len(known) == len(values):
            found[key] = min(known)
    return found


def _under_rules(run: RunDir, lowest: dict[tuple[str, str, int], float]) -> dict[tuple[str, str, int], float]:
    """`lowest` with hard rules applied: below every threshold for an image that violates a rule, no entry for an image
    with a rule that cannot be checked."""
    of_rules = {key: scores[RULES] for key, scores in _first_attempts(run).items() if RULES in scores}
    found = {key: score.value for key, score in of_rules.items() if score.applies}
    missed = {key: _MISSED for key, value in found.items() if value is not None and value < 1}
    return {key: value for key, value in lowest.items() if found.get(key, 1) is not None} | missed


def _first_attempts(run: RunDir) -> dict[tuple[str, str, int], dict[str, Score]]:
    """(model, task, deliverable) -> the judge's scores by name, for candidates with scores."""
    scores = run.store.scores_by_candidate("judge")
    return {
        (row.model, row.task_id, row.deliverable): scores[row.work_id]
        for row in run.store.candidates()
        if row.attempt == 1 and row.work_id in scores
    }
