"""How far a ranking hangs on what was assumed: its figures over a grid of settings, and who changes places."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, product

import numpy as np

from local_bench.settle.hype import Reliability, review_usd
from local_bench.settle.settlement import earned
from local_bench.settle.table import ACCEPTED, REJECTED, UNSCORED, Ints, Mask, Orders, outcome_table

Setting = tuple[tuple[str, Fraction], ...]
"""(what is set, to what), in the order of the grid's axes."""


@dataclass(frozen=True)
class Point:
    """The models' figures under one setting; None where there is none."""

    setting: Setting
    values: Mapping[str, Fraction | None]


@dataclass(frozen=True)
class Flip:
    """Two models that change places: `ahead` leads at the base, and is strictly behind at these settings."""

    ahead: str
    behind: str
    settings: tuple[Setting, ...]


def flips(base: Mapping[str, Fraction | None], grid: Sequence[Point], lower_is_better: bool) -> list[Flip]:
    """Every pair whose order at the base is turned round somewhere on the grid, by name. A tie turns nothing round, nor
    does a figure that is not there."""
    found = []
    for pair in combinations(sorted(base), 2):
        side = _leader(base, *pair, lower_is_better)
        if side is None:
            continue
        ahead, behind = pair if side == pair[0] else pair[::-1]
        turned = [p.setting for p in grid if _leader(p.values, ahead, behind, lower_is_better) == behind]
        if turned:
            found.append(Flip(ahead, behind, tuple(turned)))
    return found


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
    """HYPE-EDIT-1's effective cost (eq. 6) at every combination of how long a look takes, what it is paid and how often
    one tries; the models that have a price."""
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
    of: Orders,
    models: Sequence[str],
    model: Ints,
    task: Ints,
    lowest: Ints,
    scored: Mask,
    thresholds: Sequence[tuple[Fraction, int]],
) -> list[Point]:
    """The standard scenario's revenue where an image is accepted when all its scores reach a threshold.

    Rows are those of `table`; `lowest` is an image's lowest score in whole units, and a threshold comes with its own
    number of units. An image without scores is open, and earns nothing.
    """
    points = []
    for threshold, units in thresholds:
        decision = np.where(scored, np.where(lowest >= units, ACCEPTED, REJECTED), UNSCORED)
        totals = earned(outcome_table(of, models, model, task, decision))
        values: dict[str, Fraction | None] = {m: e.revenue_usd for m, e in zip(models, totals, strict=True)}
        points.append(Point((("acceptance_threshold", threshold),), values))
    return points


def profits(
    revenue_usd: Mapping[str, Fraction], held_s: Mapping[str, Fraction], usd_per_hour: Sequence[Fraction]
) -> list[Point]:
    """Revenue less held GPU-seconds at several prices of a GPU-hour; the models whose time is known."""
    return [
        Point(
            (("gpu_usd_per_hour", price),),
            {name: revenue_usd[name] - held_s[name] * price / 3600 for name in revenue_usd if name in held_s},
        )
        for price in usd_per_hour
    ]
