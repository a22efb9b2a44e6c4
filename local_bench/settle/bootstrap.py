"""Sums by task, and the percentile cluster bootstrap over tasks (Efron and Tibshirani 1993) for statistics without a
closed interval. Every statistic is a function of sums over tasks, so that a resample is a count per task."""

from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import ArrayLike, NDArray

from local_bench.settle.intervals import LEVEL, Floats

Statistic = Callable[[Floats], Floats]
"""Sums (..., columns) -> the statistic (...); NaN where undefined."""
RESAMPLES = 1000
_CHUNK_BYTES = 64_000_000


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
    """Yield counts of each task per resample, in chunks (chunk, n_tasks). The draws depend on the seed and the number
    of tasks only."""
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK_BYTES // (8 * n_tasks))
    for start in range(0, n_resamples, step):
        n = min(step, n_resamples - start)
        drawn = rng.integers(0, n_tasks, (n, n_tasks)) + np.arange(n)[:, None] * n_tasks
        yield np.bincount(drawn.ravel(), minlength=n * n_tasks).reshape(n, n_tasks).astype(np.float64)


def percentile(
    sums: Floats, statistic: Statistic, *, level: float = LEVEL, n_resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float] | None:
    """Percentile interval of a statistic of `sums` (tasks, columns); None for fewer than two tasks, and where it is
    undefined on more than half of the resamples."""
    if len(sums) < 2:
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.concatenate([statistic(counts @ sums) for counts in resampled_counts(len(sums), n_resamples, seed)])
    defined = np.sort(drawn[~np.isnan(drawn)])
    tail = (1 - level) / 2
    return ends(defined, tail, 1 - tail) if 2 * len(defined) >= n_resamples else None


def ends(ordered: Floats, below: float, above: float) -> tuple[float, float]:
    """Quantiles `below` and `above` of ascending values, rounded outwards."""
    last = len(ordered) - 1
    first = min(last, int(below * len(ordered) + 1e-9))
    return float(ordered[first]), float(ordered[max(first, min(last, int(np.ceil(above * len(ordered) - 1e-9)) - 1))])


def by_content(tasks: ArrayLike, *columns: ArrayLike) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Indices (rows,) that sort the rows by task, and the tasks by the values of their rows; and the numbers (rows,) of
    the sorted rows' tasks. `tasks` (rows,) identify the tasks, `columns` (rows,) are numbers."""
    task_of_row = np.asarray(tasks)
    table = np.column_stack([np.asarray(column, dtype=np.float64) for column in columns])
    order = np.lexsort((*table.T, task_of_row))
    groups = np.split(order, np.flatnonzero(task_of_row[order][1:] != task_of_row[order][:-1]) + 1)
    groups.sort(key=lambda rows: table[rows].tobytes())
    return np.concatenate(groups), np.repeat(np.arange(len(groups)), [len(rows) for rows in groups])
