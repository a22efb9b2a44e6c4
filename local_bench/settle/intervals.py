"""Confidence intervals of published figures: closed, so that they depend on the data alone and not on its order.

Tasks are the clusters. A share or rate r = sum(a_t) / sum(b_t) over T tasks has the Wilson score interval (Wilson 1927) with
Student's t of T - 1 degrees of freedom in place of z, and with the effective sample size n = r (1 - r) / SE^2 (Korn and
Graubard 1998), where SE is the jackknife's over tasks. n is at most the number of tasks or, for weights as unequal as
prices, Kish's (sum b_t)^2 / sum b_t^2; this is also n where all tasks are alike, such as 0 of n and n of n.
`docs/uncertainty.md` has the coverage, `scripts/bench_coverage` measures it.
"""

from collections.abc import Callable, Iterable
from math import fsum, inf, sqrt
from statistics import NormalDist

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

Floats = NDArray[np.float64]
LEVEL = 0.95


def wilson(successes: float, n: float, level: float = LEVEL, quantile: float | None = None) -> tuple[float, float]:
    """Wilson score interval of a proportion of independent units; (0, 1) for n = 0. `n` may be an effective sample
    size, `quantile` that of another distribution than the normal."""
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2) if quantile is None else quantile
    p = successes / n
    middle = p + z * z / (2 * n)
    half = z * sqrt(max(0.0, p * (1 - p)) / n + z * z / (4 * n * n))
    scale = 1 + z * z / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def share_interval(earned: ArrayLike, values: ArrayLike, level: float = LEVEL) -> tuple[float, float] | None:
    """Interval of sum(earned) / sum(values), such as revenue and prices by task; None for fewer than two tasks with a
    value. 0 <= earned <= values."""
    return _closed(earned, values, level, kish)


def rate_interval(successes: ArrayLike, n: ArrayLike, level: float = LEVEL) -> tuple[float, float] | None:
    """Interval of a rate of units clustered by task: successes (or their sums in [0, 1]) and units by task; None for
    fewer than two tasks with units."""
    return _closed(successes, n, level, len)


def mean_interval(
    sums: ArrayLike, n: ArrayLike, scale: tuple[float, float] | None = None, level: float = LEVEL
) -> tuple[float, float] | None:
    """Interval of the mean of values clustered by task, from sums and numbers of values by task: on a bounded scale
    (its ends) that of a rate, else the mean +- t SE. None for fewer than two tasks with values, and on an unbounded
    scale for tasks that are all alike."""
    above, below = _tasks(sums, n)
    if len(below) < 2:
        return None
    if scale is not None:
        low, high = scale
        ends = _closed((above - low * below) / (high - low), below, level, lambda _: inf)
        return None if ends is None else (low + ends[0] * (high - low), low + ends[1] * (high - low))
    mean, error = ratio_and_error(above, below)
    half = student(len(below) - 1, level) * error
    return (mean - half, mean + half) if half > 0 else None


def student(df: float, level: float = LEVEL) -> float:
    """The two-sided quantile of Student's t."""
    return float(stdtrit(df, (1 + level) / 2))


def ratio_and_error(above: ArrayLike, below: ArrayLike) -> tuple[float, float]:
    """sum(above) / sum(below) over at least two tasks with nonzero denominators, and its jackknife standard error."""
    a, b = _tasks(above, below)
    over, under = exact_sum(a), exact_sum(b)
    without = (over - a) / (under - b)
    middle = exact_sum(without) / len(without)
    return over / under, sqrt((len(a) - 1) / len(a) * exact_sum((without - middle) ** 2))


def kish(weights: ArrayLike) -> float:
    """Kish's effective sample size (1965) of nonzero weights."""
    of = np.asarray(weights, dtype=np.float64)
    return exact_sum(of) ** 2 / exact_sum(of**2)


def exact_sum(values: Iterable[float]) -> float:
    """The sum, rounded once, so that it does not depend on the order or on the processor."""
    return fsum(values.tolist() if isinstance(values, np.ndarray) else values)


def _closed(
    successes: ArrayLike, n: ArrayLike, level: float, most: Callable[[Floats], float]
) -> tuple[float, float] | None:
    """`most` is the largest effective sample size of tasks with these denominators."""
    a, b = _tasks(successes, n)
    if len(b) < 2:
        return None
    rate, error = ratio_and_error(a, b)
    spread = rate * (1 - rate)
    effective = min(most(b), spread / error**2) if spread > 1e-12 and error > 1e-9 else kish(b)
    return wilson(rate * effective, effective, level, student(len(b) - 1, level))


def _tasks(above: ArrayLike, below: ArrayLike) -> tuple[Floats, Floats]:
    """The tasks with a nonzero denominator."""
    a, b = (np.asarray(of, dtype=np.float64) for of in (above, below))
    return a[b != 0], b[b != 0]


# previous functions, until their callers have changed

from collections.abc import Sequence  # noqa: E402
from local_bench.settle.bootstrap import ends, ratios, resampled_tables  # noqa: E402

RESAMPLES = 2000


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
