"""Sensitivity of rankings to assumptions: results over a grid of settings, and rank changes."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product

import numpy as np

from local_bench.settle.attempts import Reliability, review_usd
from local_bench.settle.settlement import revenue_usd
from local_bench.settle.table import ACCEPTED, REJECTED, UNSCORED, Ints, Mask, Tasks, outcome_table

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
    reversals = []
    for pair in combinations(sorted(base), 2):
        side = _leader(base, *pair, lower_is_better)
        if side is None:
            continue
        ahead, behind = pair if side == pair[0] else pair[::-1]
        reversed_at = [p.setting for p in grid if _leader(p.values, ahead, behind, lower_is_better) == behind]
        if reversed_at:
            reversals.append(Flip(ahead, behind, tuple(reversed_at)))
    return reversals


def _leader(values: Mapping[str, Fraction | None], a: str, b: str, lower_is_better: bool) -> str | None:
    x, y = values.get(a), values.get(b)
    if x is None or y is None or x == y:
        return None
    return a if (x < y) == lower_is_better else b


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
    model: Ints,
    task: Ints,
    lowest: Ints,
    scored: Mask,
    thresholds: Sequence[tuple[Fraction, int]],
) -> list[Point]:
    """Revenue of the standard scenario if an image is accepted when all its scores reach a threshold.

    Rows as for `outcome_table`; `lowest` is the image's lowest score in integer units, and each threshold is given with
    its number of units. An image without scores is open and earns nothing.
    """
    points = []
    for threshold, units in thresholds:
        decision = np.where(scored, np.where(lowest >= units, ACCEPTED, REJECTED), UNSCORED)
        totals = revenue_usd(tasks, outcome_table(tasks, models, model, task, decision).accepted)
        points.append(Point((("acceptance_threshold", threshold),), dict(zip(models, totals, strict=True))))
    return points


def profits(
    revenue_usd: Mapping[str, Fraction], held_s: Mapping[str, Fraction], usd_per_hour: Sequence[Fraction]
) -> list[Point]:
    """Revenue - cost of GPU time at several prices per GPU-hour, for models with a known time."""
    return [
        Point(
            (("gpu_usd_per_hour", price),),
            {name: revenue_usd[name] - held_s[name] * price / 3600 for name in revenue_usd if name in held_s},
        )
        for price in usd_per_hour
    ]
