"""Confidence intervals of published figures; seeded, so the same table gives the same interval."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike

from local_bench.settle.bootstrap import Floats, ends, ratios, resampled_tables

RESAMPLES = 2000


def wilson(successes: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """Wilson score interval of a proportion (Wilson 1927); (0, 1) for n = 0. `n` may be an effective sample size."""
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = successes / n
    middle = p + z * z / (2 * n)
    half = z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    scale = 1 + z * z / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def wilson_clustered(successes: ArrayLike, n: ArrayLike, level: float = 0.95) -> tuple[float, float]:
    """Wilson interval of a rate with units clustered by task: successes and units per task.

    Uses the effective sample size that gives the cluster-robust standard error (Korn and Graubard 1998), at most the
    number of units; if all tasks have the same rate, the number of tasks.
    """
    above, below = (np.asarray(x, dtype=np.float64)[:, None] for x in (successes, n))
    total = float(below.sum())
    if total == 0:
        return 0.0, 1.0
    p = float(above.sum()) / total
    tasks = int((below > 0).sum())
    error = clustered_se(above, below)[0]
    effective = tasks if not error > 0 else min(total, p * (1 - p) / float(error) ** 2)
    return wilson(p * effective, effective, level)


def clustered_se(above: Floats, below: Floats) -> Floats:
    """Cluster-robust standard error of sum(above) / sum(below), for each column of sums by task (tasks, columns).

    The linearised ratio: sqrt(G / (G - 1) sum_g (a_g - r b_g)^2) / sum_g b_g (Cochran 1977, eq. 6.13, without the
    finite population correction), over G tasks with a nonzero denominator. NaN for fewer than two of these.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        total = below.sum(axis=0)
        total = np.where(total == 0, np.nan, total)
        residual = above - above.sum(axis=0) / total * below
        tasks = (below != 0).sum(axis=0)
        scale = np.where(tasks > 1, tasks / np.maximum(tasks - 1, 1), np.nan)
        return np.asarray(np.sqrt(scale * (residual**2).sum(axis=0)) / total, dtype=np.float64)


def bootstrap_revenue(earned: ArrayLike, values: ArrayLike, level: float = 0.95) -> tuple[int, int] | None:
    """Percentile bootstrap interval of the revenue of a set of orders, scaled to their total value; None for fewer
    than two orders.

    Orders are the clusters; earnings and values are resampled as pairs. The interval is that of the ratio and stays
    within [0, value of the orders].
    """
    return bootstrap_revenues([(earned, values)], level)[0]


def bootstrap_revenues(
    sets: Sequence[tuple[ArrayLike, ArrayLike]], level: float = 0.95
) -> list[tuple[int, int] | None]:
    """`bootstrap_revenue` of several sets of orders (earned, values); sets of equal size are resampled together. None
    also where both ends are one amount: nothing or everything was earned, of which a resample says nothing."""
    found: list[tuple[int, int] | None] = [None] * len(sets)
    by_size: dict[int, list[int]] = {}
    totals = [int(np.asarray(values).sum()) for _, values in sets]
    for i, (_, values) in enumerate(sets):
        n_orders = len(np.asarray(values))
        if n_orders >= 2 and totals[i] > 0:
            by_size.setdefault(n_orders, []).append(i)
    for members in by_size.values():
        tables = [np.stack([np.asarray(side, dtype=np.float64) for side in sets[i]], axis=1) for i in members]
        for i, drawn in zip(members, resampled_tables(tables, RESAMPLES, stacked=True), strict=True):
            tail, total = (1 - level) / 2, totals[i]
            low, high = ends(np.sort(np.nan_to_num(ratios(1)(drawn)[:, 0])), tail, 1 - tail)
            amounts = round(low * total), round(high * total)
            found[i] = amounts if amounts[0] < amounts[1] else None
    return found


def bootstrap_mean(groups: Sequence[Sequence[float]], level: float = 0.95) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the mean over all values, with groups (a task's images) as clusters; None for
    fewer than two groups."""
    filled = [group for group in groups if group]
    return bootstrap_means([([sum(group) for group in filled], [len(group) for group in filled])], level)[0]


def bootstrap_means(sets: Sequence[ArrayLike], level: float = 0.95) -> list[tuple[float, float] | None]:
    """`bootstrap_mean` of several sets of groups: (2, groups), the sums and the numbers of each group's values. Sets
    with equally many groups are resampled together."""
    found: list[tuple[float, float] | None] = [None] * len(sets)
    columns = [np.asarray(of, dtype=np.float64).reshape(2, -1) for of in sets]
    by_size: dict[int, list[int]] = {}
    for i, of in enumerate(columns):
        if of.shape[1] >= 2:
            by_size.setdefault(of.shape[1], []).append(i)
    tail = (1 - level) / 2
    for members in by_size.values():
        tables = [columns[i].T for i in members]
        for i, drawn in zip(members, resampled_tables(tables, RESAMPLES, stacked=True), strict=True):
            found[i] = ends(np.sort(np.nan_to_num(ratios(1)(drawn)[:, 0])), tail, 1 - tail)
    return found
