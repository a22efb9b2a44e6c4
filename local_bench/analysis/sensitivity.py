"""Sensitivity of a run's ranking to the acceptance threshold and to the price of a device-hour."""

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import pandas as pd

from local_bench.analysis.economics import NS_PER_S, generation_stats
from local_bench.analysis.settlement import Accounting, deliverables
from local_bench.core.money import MICRO
from local_bench.judges.rules import RULES
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of
from local_bench.runs.store import UNSCORED, scores_by_image
from local_bench.settle.sensitivity import Flip, Point, flips, revenues
from local_bench.settle.table import table_of

THRESHOLDS = tuple(Fraction(half, 2) for half in range(4, 11))
"""2 to 5 in steps of 0.5, for every deciding score."""
TIMES = (Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))
"""Multiples of the run's price of a device-hour."""
_DIGITS = 9
"""Of a score: a mean may be below a threshold by its rounding only."""
_MISSED = -1.0
"""Below every threshold."""


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
    rows = deliverables(run.store)
    table = table_of(rows)
    lowest = [x if x is None else round(x, _DIGITS) for x in _lowest(run, rows["work_id"], tuple(thresholds))]
    points = revenues(table.tasks, table.models, rows["model"].tolist(), rows["task_id"].tolist(), lowest, THRESHOLDS)
    middle = points[len(points) // 2].values
    return Sweep(points, flips(middle, points, lower_is_better=False))


def over_prices(run: RunDir, money: Accounting) -> Sweep | None:
    """Profit at other prices of a device-hour; None without a price."""
    if money.price is None:
        return None
    hour = Fraction(money.price.micro_usd_per_hour, MICRO)
    generation = generation_stats(run.store, money, [s.model for s in money.settlements])
    held = {  # as hours of the average price
        stats.model: Fraction(stats.held_ns, NS_PER_S)
        * ((money.usd_per_hour(stats.model) or hour) / hour if hour else 1)
        for stats in generation
        if not stats.imported
    }
    revenue = {s.model: Fraction(s.total.revenue_micro_usd, MICRO) for s in money.settlements}
    points = [
        Point((("gpu_usd_per_hour", price),), {m: revenue[m] - held[m] * price / 3600 for m in revenue if m in held})
        for price in (times * hour for times in TIMES)
    ]
    return Sweep(points, flips(points[TIMES.index(Fraction(1))].values, points, lower_is_better=False))


def _lowest(run: RunDir, work_ids: "pd.Series[str]", names: tuple[str, ...]) -> list[float | None]:
    """The lowest deciding score of each image that applies; None if there is none or one is unscored. With hard rules:
    below every threshold for an image that violates one, None if one cannot be checked."""
    rules = (RULES,) if run.config.acceptance.rules else ()
    scores = scores_by_image(run.store, work_ids, [*names, *rules], "judge")
    return [_least(cells[: len(names)], *cells[len(names) :]) for cells in scores.itertuples(index=False, name=None)]


def _least(scores: Sequence[float | str | None], rules: float | str | None = None) -> float | None:
    if isinstance(rules, float) and rules < 1:
        return _MISSED
    if UNSCORED in (rules, *scores):
        return None
    return min((score for score in scores if isinstance(score, float)), default=None)
