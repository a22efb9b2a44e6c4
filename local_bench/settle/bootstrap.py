"""Percentile cluster bootstrap over tasks (Efron and Tibshirani 1993), for statistics without a closed interval.

Every statistic is a function of sums over tasks. A resample is therefore a count per task, and counts @ sums are its
sums, for all columns at once.
"""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from local_bench.settle.intervals import LEVEL, Floats

__all__ = [
    "Floats",
    "Interval",
    "bootstrap",
    "ends",
    "numbered",
    "ratios",
    "resampled_counts",
    "resampled_sums",
    "task_sums",
]

Statistic = Callable[[Floats], Floats]
"""Sums (..., columns) -> statistics (..., n); NaN where undefined."""

RESAMPLES = 1000
_CHUNK_BYTES = 64_000_000
_DRAWN_AT_ONCE = 250_000
TOO_FEW_TASKS = "fewer than two tasks"
NOTHING_BELOW = "the denominator is 0"
SELDOM_DEFINED = "undefined on more than half of the resamples"


@dataclass(frozen=True)
class Interval:
    """A statistic with its bootstrap interval; `low` and `high` are None together, with the reason in `undefined`."""

    estimate: float | None
    """None if the statistic is undefined."""
    low: float | None
    high: float | None
    n_tasks: int
    n_resamples: int
    n_undefined: int = 0
    """Excluded resamples, on which the statistic is undefined."""
    undefined: str | None = None


def numbered(tasks: ArrayLike) -> tuple[NDArray[np.intp], int]:
    """Numbers from 0 of the tasks of rows, (rows,), in the order in which they first occur, and how many there are."""
    distinct, first, index = np.unique(tasks, return_index=True, return_inverse=True)
    rank = np.empty(len(distinct), dtype=np.intp)
    rank[np.argsort(first)] = np.arange(len(distinct))
    return rank[index], len(distinct)


def task_sums(tasks: ArrayLike, values: ArrayLike, n_tasks: int) -> Floats:
    """Sums by task (n_tasks, columns) of `values` (rows,) or (rows, columns); `tasks` (rows,) are task numbers from 0.

    Integer micro-USD are exact up to 9 billion dollars per sum.
    """
    codes, table = np.asarray(tasks, dtype=np.intp), np.asarray(values, dtype=np.float64)
    columns = (table[:, None] if table.ndim == 1 else table).T
    return np.stack([np.bincount(codes, column, n_tasks) for column in columns], axis=1)


def resampled_counts(n_tasks: int, n_resamples: int = RESAMPLES, seed: int = 0) -> Iterator[Floats]:
    """Yield counts of each task per resample, in chunks (chunk, n_tasks) of one reused array. The draws depend on the
    seed and the number of tasks only."""
    rng = np.random.default_rng(seed)
    step = max(1, min(n_resamples, _CHUNK_BYTES // (8 * n_tasks)))
    rows = max(1, min(step, _DRAWN_AT_ONCE // n_tasks))
    counts = np.empty((step, n_tasks))
    parts = [
        (start, first, min(rows, n_resamples - start - first, step - first))
        for start in range(0, n_resamples, step)
        for first in range(0, min(step, n_resamples - start), rows)
    ]
    with ThreadPoolExecutor(1) as pool:  # the next part is drawn while one is counted
        following = pool.submit(rng.integers, 0, n_tasks, (parts[0][2], n_tasks))
        for i, (start, first, n) in enumerate(parts):
            drawn = following.result()
            if i + 1 < len(parts):
                following = pool.submit(rng.integers, 0, n_tasks, (parts[i + 1][2], n_tasks))
            if n > 1:
                drawn = drawn + np.arange(n)[:, None] * n_tasks
            counts[first : first + n] = np.bincount(drawn.ravel(), minlength=n * n_tasks).reshape(n, n_tasks)
            if first + n == min(step, n_resamples - start):
                yield counts[: first + n]


def resampled_sums(sums: Floats, n_resamples: int = RESAMPLES, seed: int = 0) -> Floats:
    """Sums (n_resamples, columns) over as many tasks drawn with replacement from `sums` (tasks, columns)."""
    return np.concatenate([counts @ sums for counts in resampled_counts(len(sums), n_resamples, seed)])


def bootstrap(
    sums: Floats, statistic: Statistic, *, level: float = LEVEL, n_resamples: int = RESAMPLES, seed: int = 0
) -> list[Interval]:
    """Percentile interval of each statistic over `sums` (tasks, columns)."""
    n_tasks = len(sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        estimates = np.atleast_1d(statistic(sums.sum(axis=0)))
        if n_tasks < 2:
            return [Interval(_known(x), None, None, n_tasks, 0, 0, TOO_FEW_TASKS) for x in estimates]
        drawn = statistic(resampled_sums(sums, n_resamples, seed)).reshape(n_resamples, -1)
    tail = (1 - level) / 2
    found = []
    for estimate, values in zip(estimates, drawn.T, strict=True):
        defined = np.sort(values[~np.isnan(values)])
        n_undefined = n_resamples - len(defined)
        why = NOTHING_BELOW if np.isnan(estimate) else SELDOM_DEFINED if 2 * len(defined) < n_resamples else None
        low, high = (None, None) if why else ends(defined, tail, 1 - tail)
        found.append(Interval(_known(estimate), low, high, n_tasks, n_resamples, n_undefined, why))
    return found


def ratios(n: int) -> Statistic:
    """Statistic of n ratios of sums, from 2n columns: first all numerators, then all denominators."""
    return lambda sums: sums[..., :n] / np.where(sums[..., n:] == 0, np.nan, sums[..., n:])


def ends(ordered: Floats, below: float, above: float) -> tuple[float, float]:
    """Quantiles `below` and `above` of ascending values, rounded outwards."""
    last = len(ordered) - 1
    first = min(last, int(below * len(ordered) + 1e-9))
    return float(ordered[first]), float(ordered[max(first, min(last, int(np.ceil(above * len(ordered) - 1e-9)) - 1))])


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
