"""Confidence intervals of published figures: closed, so that they depend on the data alone and not on its order.

Tasks are the clusters. A share or rate r = sum(a_t) / sum(b_t) over T tasks has the Wilson score interval (Wilson 1927)
with Student's t of T - 1 degrees of freedom in place of z, and with the effective sample size n = r (1 - r) / SE^2
(Korn and Graubard 1998), where SE is the jackknife's over tasks. For weights as unequal as prices n is at most Kish's
(sum b_t)^2 / sum b_t^2, for units of a rate at most the geometric mean of Kish's n and T; where all tasks are alike,
such as 0 of n and n of n, it is Kish's n.
`benchmarks/coverage.md` has the coverage, `scripts/bench_coverage` measures it.

Statistics without a closed interval have the percentile cluster bootstrap over tasks (Efron and Tibshirani 1993). They
are functions of sums over tasks, so that a resample is a count per task.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from math import fsum, inf, sqrt
from statistics import NormalDist, fmean, variance

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
    return _closed(successes, n, level, lambda b: sqrt(kish(b) * len(b)))


def mean_interval(
    sums: ArrayLike, n: ArrayLike, scale: tuple[float, float] | None = None, level: float = LEVEL
) -> tuple[float, float] | None:
    """Interval of the mean of values clustered by task, from sums and numbers of values by task: on a bounded scale
    (its ends) that of a rate, else the mean +- t SE, both with Kish's n - 1 degrees of freedom. None for fewer than two
    tasks with values, and on an unbounded scale for tasks that are all alike."""
    above, below = _tasks(sums, n)
    if len(below) < 2:
        return None
    if scale is not None:
        low, high = scale
        ends = _closed((above - low * below) / (high - low), below, level, lambda _: inf, kish(below) - 1)
        return None if ends is None else (low + ends[0] * (high - low), low + ends[1] * (high - low))
    mean, error = ratio_and_error(above, below)
    half = student(max(1.0, kish(below) - 1), level) * error
    return (mean - half, mean + half) if half > 1e-9 * abs(mean) else None


def amounts(ends: tuple[float, float] | None, total: float) -> tuple[int, int] | None:
    """The interval of a share of `total` as amounts in its unit, such as micro-USD, rounded."""
    return None if ends is None else (round(ends[0] * total), round(ends[1] * total))


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
    numbers = np.asarray(weights, dtype=np.float64)
    return exact_sum(numbers) ** 2 / exact_sum(numbers**2)


def exact_sum(values: Iterable[float]) -> float:
    """The sum, rounded once, so that it does not depend on the order or on the processor."""
    return fsum(values.tolist() if isinstance(values, np.ndarray) else values)


def exact_dot(a: Floats, b: Floats) -> float:
    """The sum of the products, which `a @ b` rounds in another way on another processor."""
    return exact_sum(a * b)


def exact_sums(table: Floats) -> Callable[[Floats], Floats]:
    """`counts @ table` (rows, columns) for `counts` (selections, rows) of at most as many rows each, on every processor
    the same: of multiples of a power of two all sums are exact, and what these leave of `table` is added separately."""
    parts = list[Floats]()
    while len(parts) < 2 and (table.any() or not parts):  # one part of integers
        exponents = np.frexp(len(table) * np.abs(table).max(axis=0, initial=0.0))[1] - 52
        step = np.ldexp(1.0, np.maximum(exponents, -1074))  # 2^-1074: the smallest number
        parts.append(np.rint(table / step) * step)
        table = table - parts[-1]
    return lambda counts: reduce(np.add, (counts @ part for part in parts))


def _closed(
    successes: ArrayLike, n: ArrayLike, level: float, most: Callable[[Floats], float], df: float | None = None
) -> tuple[float, float] | None:
    """`most` is the largest effective sample size of tasks with these denominators, `df` the degrees of freedom if not
    T - 1."""
    a, b = _tasks(successes, n)
    if len(b) < 2:
        return None
    rate, error = ratio_and_error(a, b)
    spread = rate * (1 - rate)
    effective = min(most(b), spread / error**2) if spread > 1e-12 and error > 1e-9 else kish(b)
    return wilson(rate * effective, effective, level, student(len(b) - 1 if df is None else max(1.0, df), level))


def _tasks(above: ArrayLike, below: ArrayLike) -> tuple[Floats, Floats]:
    """The tasks with a nonzero denominator."""
    a, b = (np.asarray(side, dtype=np.float64) for side in (above, below))
    return a[b != 0], b[b != 0]


def stratified_interval(
    tasks: Sequence[tuple[float, Sequence[float]]], most: float | None = None
) -> tuple[float, float] | None:
    """Interval over fixed tasks, of which only the cases are a sample (IDEA-Bench, ICE-Bench): of sum(w_t mean_t) of
    tasks (w_t, values of the cases), with SE^2 = sum(w_t^2 s_t^2 / n_t) over tasks of n_t cases with variance s_t^2
    (Cochran 1977, eq. 5.7) and Student's t of Satterthwaite's degrees of freedom (1946): for values from 0 to `most`
    Wilson's with the effective sample size p (1 - p) / SE^2, else +- t SE. None without tasks, with a task of one case,
    which has no variance, and without a scale if no task's cases differ."""
    if not tasks or any(len(values) < 2 for _, values in tasks):
        return None
    score = fsum(w * fmean(values) for w, values in tasks)
    parts = [(w * w * variance(values) / len(values), len(values) - 1) for w, values in tasks]
    square = fsum(v for v, _ in parts)
    df = square**2 / fsum(v * v / n for v, n in parts) if square else sum(n for _, n in parts)
    t = student(df)
    if most is None:
        half = t * sqrt(square)
        return (score - half, score + half) if half else None
    top = most * fsum(w for w, _ in tasks)
    p = min(1.0, max(0.0, score / top))
    cases = kish([w / len(values) for w, values in tasks for _ in values])
    n = p * (1 - p) * top**2 / square if square and 0 < p < 1 else cases
    low, high = wilson(p * n, n, quantile=t)
    return low * top, high * top


Statistic = Callable[[Floats], Floats]
"""Sums (..., columns) -> the statistic (...); NaN where undefined."""
RESAMPLES = 1000
_CHUNK_BYTES = 64_000_000


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
    sums: Floats, statistic: Statistic, *, n_resamples: int = RESAMPLES, seed: int = 0
) -> tuple[float, float] | None:
    """95 % percentile interval of a statistic of `sums` (tasks, columns); None for fewer than two tasks and where it is
    undefined on more than half of the resamples."""
    if len(sums) < 2:
        return None
    counts, sums_of = resampled_counts(len(sums), n_resamples, seed), exact_sums(sums)
    with np.errstate(divide="ignore", invalid="ignore"):
        drawn = np.concatenate([statistic(sums_of(chunk)) for chunk in counts])
    defined = np.sort(drawn[~np.isnan(drawn)])
    return ends(defined, (1 - LEVEL) / 2, (1 + LEVEL) / 2) if 2 * len(defined) >= n_resamples else None


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
