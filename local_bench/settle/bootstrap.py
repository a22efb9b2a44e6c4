"""Cluster bootstrap over tasks (Efron and Tibshirani 1993).

Every statistic here is a function of sums over tasks: a rate is accepted / requested, a share is revenue / value. A
resample is therefore a count per task, and counts @ sums are its sums, for all models and columns at once; two models
are always compared on the same resampled tasks.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from statistics import NormalDist
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

Floats = NDArray[np.float64]
Statistic = Callable[[Floats], Floats]
"""Sums (..., columns) -> statistics (..., n); NaN where undefined."""
Method = Literal["percentile", "bca"]

RESAMPLES = 1000
_CHUNK_BYTES = 64_000_000
_DRAWN_AT_ONCE = 250_000
_MANY_TASKS, _FEWER = 10_000, 8
"""Numbers of tasks with equal rows are drawn for this many tasks if there are this many times fewer distinct rows."""
_AT_ONCE = 2
"""Tables that are drawn from at the same time; numpy does not need Python's interpreter lock for it."""
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
    level: float
    method: Method
    """Method used: `percentile` also where the data have no BCa interval."""
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
    columns = table.reshape(len(codes), -1).T
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
    """Sums (n_resamples, columns) over `n_tasks` tasks drawn with replacement from `sums` (tasks, columns)."""
    return resampled_tables([sums], n_resamples, seed)[0]


def resampled_tables(
    tables: Sequence[Floats], n_resamples: int = RESAMPLES, seed: int = 0, stacked: bool = False
) -> list[Floats]:
    """`resampled_sums` of several tables of the same tasks; the draws for one do not depend on the others.

    Of at least 10,000 tasks with few distinct rows, the number of tasks with each row is drawn, which has a multinomial
    distribution, and else the tasks themselves, the same for all tables. With `stacked` their sums are computed at
    once, which is faster, and the last bits of sums of fractions can depend on the other tables."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        found = list(pool.map(partial(_drawn_by_kind, n_resamples=n_resamples, seed=seed), tables))
    rest = [i for i, drawn in enumerate(found) if drawn is None]
    if rest:
        of_rest = [tables[i] for i in rest]
        ends = np.cumsum([sums.shape[1] for sums in of_rest])[:-1]
        if stacked:
            of_rest = [np.hstack(of_rest)]
        parts: list[list[Floats]] = [[] for _ in of_rest]
        for counts in resampled_counts(len(tables[0]), n_resamples, seed):
            for part, sums in zip(parts, of_rest, strict=True):
                part.append(counts @ sums)
        drawn = [np.concatenate(part) for part in parts]
        for i, of in zip(rest, np.split(drawn[0], ends, axis=1) if stacked else drawn, strict=True):
            found[i] = of
    return [drawn for drawn in found if drawn is not None]


def _drawn_by_kind(sums: Floats, n_resamples: int, seed: int) -> Floats | None:
    """Resampled sums by the numbers of tasks with equal rows; None for few tasks or many distinct rows, where it would
    not be faster."""
    if len(sums) < _MANY_TASKS:
        return None
    kinds, first, n_of = np.zeros(len(sums), np.int64), np.zeros(1, np.int64), np.empty(0, np.int64)
    for column in sums.T:
        values, numbers = np.unique(column, return_inverse=True)
        _, first, kinds, n_of = np.unique(
            kinds * len(values) + numbers, return_index=True, return_inverse=True, return_counts=True
        )
        if len(first) > len(sums) // _FEWER:
            return None
    rng = np.random.default_rng(seed)
    step = max(1, _CHUNK_BYTES // (8 * len(first)))
    sizes = [min(step, n_resamples - start) for start in range(0, n_resamples, step)]
    share = n_of / len(sums)
    return np.concatenate([rng.multinomial(len(sums), share, n).astype(np.float64) @ sums[first] for n in sizes])


def bootstrap(
    sums: Floats,
    statistic: Statistic,
    *,
    method: Method = "percentile",
    level: float = 0.95,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Interval]:
    """Interval of each statistic over `sums` (tasks, columns).

    `bca` is bias-corrected and accelerated (Efron 1987, eq. 6.8), with the acceleration from the jackknife over tasks
    and ties with the estimate counted half. Where the correction is undefined (all resamples on one side of the
    estimate, or an undefined jackknife value) the percentile interval is used and `method` says so.
    """
    return bootstraps([(sums, statistic)], method=method, level=level, n_resamples=n_resamples, seed=seed)[0]


def bootstraps(
    tables: Sequence[tuple[Floats, Statistic]],
    *,
    method: Method = "percentile",
    level: float = 0.95,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[list[Interval]]:
    """`bootstrap` of each of several tables of the same tasks."""
    many = bool(tables) and len(tables[0][0]) >= 2
    drawn = resampled_tables([sums for sums, _ in tables], n_resamples, seed) if many else [None] * len(tables)
    return [
        _intervals(sums, statistic, totals, method, level)
        for (sums, statistic), totals in zip(tables, drawn, strict=True)
    ]


def _intervals(
    sums: Floats, statistic: Statistic, totals: Floats | None, method: Method, level: float
) -> list[Interval]:
    """Intervals from the sums over the resampled tasks, (n_resamples, columns); None for fewer than two tasks."""
    assert sums.ndim == 2, sums.shape
    n_tasks = len(sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        estimates = np.atleast_1d(statistic(sums.sum(axis=0)))
        if totals is None:
            return [Interval(_known(x), None, None, level, method, n_tasks, 0, 0, TOO_FEW_TASKS) for x in estimates]
        n_resamples = len(totals)
        drawn = statistic(totals).reshape(n_resamples, -1)
        accelerations = _accelerations(sums, statistic) if method == "bca" else np.full(len(estimates), np.nan)
    tail = (1 - level) / 2
    found = []
    for estimate, values, acceleration in zip(estimates, drawn.T, accelerations, strict=True):
        defined = np.sort(values[~np.isnan(values)])
        n_undefined = n_resamples - len(defined)
        why = NOTHING_BELOW if np.isnan(estimate) else SELDOM_DEFINED if 2 * len(defined) < n_resamples else None
        if why:
            found.append(Interval(_known(estimate), None, None, level, method, n_tasks, n_resamples, n_undefined, why))
            continue
        tails = _bca_tails(defined, estimate, acceleration, tail)
        used: Method = "percentile" if tails is None else "bca"
        low, high = ends(defined, *(tails or (tail, 1 - tail)))
        found.append(Interval(float(estimate), low, high, level, used, n_tasks, n_resamples, n_undefined))
    return found


def ends(ordered: Floats, below: float, above: float) -> tuple[float, float]:
    """Quantiles `below` and `above` of ascending values, rounded outwards."""
    last = len(ordered) - 1
    first = min(last, int(below * len(ordered) + 1e-9))
    return float(ordered[first]), float(ordered[max(first, min(last, int(np.ceil(above * len(ordered) - 1e-9)) - 1))])


def ratios(n: int) -> Statistic:
    """Statistic of n ratios of sums, from 2n columns: first all numerators, then all denominators."""
    return lambda sums: sums[..., :n] / np.where(sums[..., n:] == 0, np.nan, sums[..., n:])


def ratio_intervals(
    above: ArrayLike, below: ArrayLike, *, method: Method = "percentile", level: float = 0.95,
    n_resamples: int = RESAMPLES, seed: int = 0,
) -> list[Interval]:  # fmt: skip
    """Intervals of sum(above) / sum(below) for each column of two tables (tasks, columns) of sums by task."""
    over, under = (np.asarray(x, dtype=np.float64) for x in (above, below))
    over, under = over.reshape(len(over), -1), under.reshape(len(under), -1)
    sums = np.hstack([over, under])
    return bootstrap(sums, ratios(over.shape[1]), method=method, level=level, n_resamples=n_resamples, seed=seed)


def _accelerations(sums: Floats, statistic: Statistic) -> Floats:
    without = statistic(sums.sum(axis=0) - sums).reshape(len(sums), -1)  # tasks x statistics
    deviation = without.mean(axis=0) - without
    spread = (deviation**2).sum(axis=0)
    return np.asarray((deviation**3).sum(axis=0) / (6 * spread**1.5), dtype=np.float64)  # NaN if all are equal


def _bca_tails(ordered: Floats, estimate: float, acceleration: float, tail: float) -> tuple[float, float] | None:
    """Corrected lower and upper tail, or None if the correction is undefined."""
    below = (np.searchsorted(ordered, estimate) + np.searchsorted(ordered, estimate, side="right")) / 2 / len(ordered)
    if np.isnan(acceleration) or not 0 < below < 1:
        return None
    normal = NormalDist()
    bias = normal.inv_cdf(float(below))
    moved = []
    for part in (tail, 1 - tail):
        z = bias + normal.inv_cdf(part)
        if 1 - acceleration * z <= 0:
            return None
        moved.append(normal.cdf(float(bias + z / (1 - acceleration * z))))
    return moved[0], moved[1]


def _known(value: float) -> float | None:
    return None if np.isnan(value) else float(value)
