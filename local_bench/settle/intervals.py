"""Intervals for what is published: seeded, so that the same table gives the same ends."""

from collections.abc import Sequence
from statistics import NormalDist

import numpy as np

RESAMPLES = 2000


def wilson(successes: int, n: int, level: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of a proportion (Wilson 1927); (0, 1) for n = 0."""
    if n == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + level) / 2)
    p = successes / n
    middle = p + z * z / (2 * n)
    half = z * (p * (1 - p) / n + z * z / (4 * n * n)) ** 0.5
    scale = 1 + z * z / n
    return max(0.0, (middle - half) / scale), min(1.0, (middle + half) / scale)


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
    pairs = np.asarray([above, below], dtype=np.float64)  # micro-USD are exact in float64 up to 9 billion dollars
    rng = np.random.default_rng(0)
    ratios = np.empty(RESAMPLES)
    for i in range(RESAMPLES):  # one resample at a time: 2,000 x thousands of tasks would not fit small machines
        over, under = pairs[:, rng.integers(0, pairs.shape[1], pairs.shape[1])].sum(axis=1)
        ratios[i] = over / under if under else 0.0
    ratios.sort()
    tail = (1 - level) / 2
    return float(ratios[int(tail * RESAMPLES)]), float(ratios[int((1 - tail) * RESAMPLES) - 1])
