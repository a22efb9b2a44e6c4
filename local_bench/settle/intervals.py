"""Intervals for what is published: seeded, so that the same table gives the same ends."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

from local_bench.settle.bootstrap import Floats, ends, ratios, resampled_sums

RESAMPLES = 2000


def wilson(successes: float, n: float, level: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of a proportion (Wilson 1927); (0, 1) for n = 0."""
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = successes / n
    middle = p + z * z / (2 * n)
    half = z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    scale = 1 + z * z / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


def wilson_clustered(successes: Sequence[float], n: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """The Wilson interval of a rate whose units hang together within tasks: successes and units by task.

    As many independent units are supposed as would give the clustered standard error (Korn and Graubard 1998), never
    more than there are; where all tasks have one and the same rate, as many as there are tasks.
    """
    asked = sum(n)
    if asked == 0:
        return 0.0, 1.0
    p = sum(successes) / asked
    tasks = sum(x > 0 for x in n)
    error = clustered_se(np.asarray(successes, dtype=np.float64)[:, None], np.asarray(n, dtype=np.float64)[:, None])[0]
    worth = tasks if not error > 0 else min(asked, p * (1 - p) / float(error) ** 2)
    return wilson(p * worth, worth, level)


def clustered_se(above: Floats, below: Floats) -> Floats:
    """The cluster-robust standard error of sum(above) / sum(below), for each column of sums by task (tasks, columns).

    The linearised ratio: sqrt(G / (G - 1) sum_g (a_g - r b_g)^2) / sum_g b_g (Cochran 1977, eq. 6.13, without the
    finite population's correction), G tasks that have anything below. NaN for fewer than two of these.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        total = below.sum(axis=0)
        total = np.where(total == 0, np.nan, total)
        apart = above - above.sum(axis=0) / total * below
        tasks = (below != 0).sum(axis=0)
        scale = np.where(tasks > 1, tasks / np.maximum(tasks - 1, 1), np.nan)
        return np.asarray(np.sqrt(scale * (apart**2).sum(axis=0)) / total, dtype=np.float64)


def bootstrap_revenue(earned: Sequence[int], values: Sequence[int], level: float = 0.95) -> tuple[int, int] | None:
    """The percentile bootstrap interval of what a set of orders earns, scaled to their whole value; None for fewer
    than two orders.

    Whole orders are resampled (their images hang together), earnings and values as pairs: the interval is that of the
    ratio, so it never leaves [0, the orders' value].
    """
    total = sum(values)
    if len(values) < 2 or total == 0:
        return None
    low, high = _ratio_ends(earned, values, level)
    return round(low * total), round(high * total)


def bootstrap_mean(groups: Sequence[Sequence[float]], level: float = 0.95) -> tuple[float, float] | None:
    """The percentile bootstrap interval of the mean over all values, resampling whole groups (a task's images); None
    for fewer than two groups."""
    filled = [group for group in groups if group]
    if len(filled) < 2:
        return None
    return _ratio_ends([sum(group) for group in filled], [len(group) for group in filled], level)


def _ratio_ends(above: Sequence[float], below: Sequence[float], level: float) -> tuple[float, float]:
    """Ends of the percentile interval of sum(above) / sum(below) over resampled pairs."""
    sums = np.asarray([above, below], dtype=np.float64).T
    drawn = ratios(1)(resampled_sums(sums, RESAMPLES))[:, 0]
    tail = (1 - level) / 2
    return ends(np.sort(np.nan_to_num(drawn)), tail, 1 - tail)
