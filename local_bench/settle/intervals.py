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


def bootstrap_total(per_task: Sequence[int], level: float = 0.95) -> tuple[int, int]:
    """The percentile bootstrap interval of a sum over tasks, resampling whole tasks (their images hang together)."""
    if not per_task:
        return 0, 0
    values = np.asarray(per_task, dtype=np.int64)
    rng = np.random.default_rng(0)
    totals = np.sort([int(values[rng.integers(0, len(values), len(values))].sum()) for _ in range(RESAMPLES)])
    tail = (1 - level) / 2
    return int(totals[int(tail * RESAMPLES)]), int(totals[int((1 - tail) * RESAMPLES) - 1])
