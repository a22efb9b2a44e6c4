"""Sensitivity of rankings to assumptions: results over a grid of settings, and rank changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import combinations, product

import numpy as np

from local_bench.settle.attempts import Reliability, review_usd
from local_bench.settle.settlement import revenue_usd
from local_bench.settle.table import Tasks, cell_sums, cells_of

Setting = tuple[tuple[str, Fraction], ...]
"""(parameter, value), in the order of the grid axes."""


@dataclass(frozen=True)
class Point:
    """Value of each model under one setting; None if undefined."""

    setting: Setting
    values: Mapping[str, Fraction | None]


@dataclass(frozen=True)
class Flip:
    """Rank change of two models: `ahead` leads at the base setting, and is strictly behind at these."""

    ahead: str
    behind: str
    settings: tuple[Setting, ...]


def flips(base: Mapping[str, Fraction | None], grid: Sequence[Point], lower_is_better: bool) -> list[Flip]:
    """Every pair whose order at the base is reversed somewhere on the grid, by name. Ties and undefined values reverse
    nothing."""
    sign = -1 if lower_is_better else 1

    def leads(values: Mapping[str, Fraction | None], first: str, second: str) -> bool:
        x, y = values.get(first), values.get(second)
        return x is not None and y is not None and sign * (x - y) > 0

    reversals = []
    for pair in combinations(sorted(base), 2):
        for ahead, behind in (pair, pair[::-1]):
            if not leads(base, ahead, behind):
                continue
            reversed_at = tuple(p.setting for p in grid if leads(p.values, behind, ahead))
            if reversed_at:
                reversals.append(Flip(ahead, behind, reversed_at))
    return reversals


def effective_costs(
    models: Mapping[str, Reliability],
    usd_per_image: Mapping[str, Fraction],
    review_seconds: Sequence[Fraction],
    usd_per_hour: Sequence[Fraction],
    retry_caps: Sequence[int],
) -> list[Point]:
    """Effective cost of HYPE-EDIT-1 (eq. 6) at every combination of review time, review pay and retry cap, for models
    with a price."""
    return [
        Point(
            (("review_seconds", s), ("review_usd_per_hour", h), ("retry_cap", Fraction(cap))),
            {
                name: model.effective_cost_usd(usd_per_image[name] + review_usd(h, s), cap)
                for name, model in models.items()
                if name in usd_per_image
            },
        )
        for s, h, cap in product(review_seconds, usd_per_hour, retry_caps)
    ]


def revenues(
    tasks: Tasks,
    models: Sequence[str],
    model: Sequence[str],
    task: Sequence[str],
    lowest: Sequence[Decimal | float | None],
    thresholds: Sequence[Fraction],
) -> list[Point]:
    """Revenue of the standard scenario if an image is accepted when all its scores reach a threshold, which a float
    represents exactly.

    Rows as for `outcome_table`; `lowest` is the image's lowest score, None without scores: it is open and earns
    nothing.
    """
    scored = np.array([score is not None for score in lowest], dtype=np.bool_)
    cell, values = cells_of(tasks, models, model, task)[scored], np.array([x for x in lowest if x is not None])
    points = []
    for threshold in thresholds:
        reached = np.asarray(values >= float(threshold), dtype=np.bool_)
        accepted = cell_sums(cell[reached], (len(models), len(tasks.task_ids)))
        totals = dict(zip(models, revenue_usd(tasks, accepted), strict=True))
        points.append(Point((("acceptance_threshold", threshold),), totals))
    return points
