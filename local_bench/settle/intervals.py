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


def bootstrap_revenue(earned: Sequence[int], values: Sequence[int], level: float = 0.95) -> tuple[int, int]:
    """The percentile bootstrap interval of what a set of orders earns, scaled to their whole value.

    Whole orders are resampled (their images hang together), earnings and values as pairs: the interval is that of the
    ratio, so it never leaves [0, the orders' value].
    """
    total = sum(values)
    if total == 0:
        return 0, 0
    pairs = np.asarray([earned, values], dtype=np.float64)  # micro-USD are exact in float64 up to 9 billion dollars
    rng = np.random.default_rng(0)
    picks = rng.integers(0, pairs.shape[1], (RESAMPLES, pairs.shape[1]))
    sums = pairs[:, picks].sum(axis=2)  # (2, RESAMPLES)
    shares = np.sort(np.divide(sums[0], sums[1], out=np.zeros(RESAMPLES), where=sums[1] > 0))
    tail = (1 - level) / 2
    ends = shares[int(tail * RESAMPLES)], shares[int((1 - tail) * RESAMPLES) - 1]
    return round(float(ends[0]) * total), round(float(ends[1]) * total)
