"""Paired comparison of models on the same tasks, with correction for multiple comparisons.

The interval of a difference is that of the cluster bootstrap, both models on the same resampled tasks. Its p-value is
that of a sign-flip permutation test over tasks: under the null hypothesis the sign of each task's difference is
random. With few tasks all flips are enumerated and the test is exact; otherwise 9,999 are drawn (Phipson and Smyth
2010: the observed table counts as one of them, so p is never 0).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from local_bench.settle.bootstrap import RESAMPLES, Floats, Interval, Method, bootstraps

FLIPS = 9_999
EXACT_UP_TO = 13
"""Maximum number of differing tasks of the exact test: 2^13 flips are fewer than `FLIPS`."""
_CHUNK_BYTES = 64_000_000


@dataclass(frozen=True)
class Difference:
    """`a` - `b` on the tasks of both."""

    a: str
    b: str
    estimate: float | None
    """In the unit of the statistic; None if one of the two is undefined."""
    low: float | None
    """Lower end of the cluster bootstrap interval."""
    high: float | None
    method: Method
    p: float | None
    """Two-sided, uncorrected."""
    p_holm: float | None
    """Corrected for all pairs, family-wise error rate (Holm 1979)."""
    p_bh: float | None
    """Corrected for all pairs, false discovery rate (Benjamini and Hochberg 1995)."""
    n_tasks: int
    n_differ: int
    """Tasks on which the two differ."""
    at_least: float | None = None
    """Difference with everything unscored decided against `a` and for `b`; None without `bounds`."""
    at_most: float | None = None


@dataclass(frozen=True)
class Statistics:
    """One statistic of several models, as sums by task."""

    models: Sequence[str]
    above: Floats
    """(tasks, models): the statistic of each task, or its numerator."""
    below: Floats | None = None
    """(tasks, models): its denominator, such as the requested images."""
    bounds: Sequence[tuple[float, float]] | None = None
    """Each model's value with everything unscored at its worst and at its best."""


def paired_differences(
    models: Sequence[str],
    above: Floats,
    below: Floats | None = None,
    *,
    bounds: Sequence[tuple[float, float]] | None = None,
    method: Method = "percentile",
    level: float = 0.95,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[Difference]:
    """Compare every pair of models, in order: differences of sums, or with `below` of ratios of sums.

    `above` and `below` are sums by task (tasks, models), such as accepted and requested. `bounds` has each model's
    value with everything unscored at its worst and at its best; they bound the difference. Where two models have
    different denominators, their ratios are tested by linearised contributions: a_g - r b_g, r the pooled ratio.
    """
    of = Statistics(models, above, below, bounds)
    return differences([of], method=method, level=level, n_resamples=n_resamples, seed=seed)[0]


def differences(
    statistics: Sequence[Statistics],
    *,
    method: Method = "percentile",
    level: float = 0.95,
    n_resamples: int = RESAMPLES,
    seed: int = 0,
) -> list[list[Difference]]:
    """`paired_differences` of each statistic. The draws depend on the number of tasks and the seed alone and are made
    once for all statistics with the same number of tasks."""
    found: list[list[Difference]] = [[] for _ in statistics]
    by_size: dict[int, list[int]] = {}
    for i, of in enumerate(statistics):
        assert of.above.shape[1] == len(of.models)
        if len(of.models) > 1:
            by_size.setdefault(len(of.above), []).append(i)
    for members in by_size.values():
        pairs = [np.asarray(list(combinations(range(len(statistics[i].models)), 2))).T for i in members]
        tables = [_with_denominators(statistics[i]) for i in members]
        by_table = bootstraps(
            [(sums, _pairwise(statistics[i], *of)) for i, sums, of in zip(members, tables, pairs, strict=True)],
            method=method, level=level, n_resamples=n_resamples, seed=seed,
        )  # fmt: skip
        contributions = [
            _contributions(statistics[i].above, statistics[i].below, *of) for i, of in zip(members, pairs, strict=True)
        ]
        p = iter(sign_flip(np.hstack(contributions), seed))
        for i, sums, both, intervals in zip(members, tables, pairs, by_table, strict=True):
            found[i] = _differences(statistics[i], sums, both, intervals, [next(p) for _ in intervals])
    return found


def _with_denominators(of: Statistics) -> Floats:
    return of.above if of.below is None else np.hstack([of.above, of.below])


def _pairwise(of: Statistics, first: NDArray[np.intp], second: NDArray[np.intp]) -> Callable[[Floats], Floats]:
    """The statistic's differences from sums (..., columns of `_with_denominators`)."""
    n = len(of.models)

    def difference(sums: Floats) -> Floats:
        figures = sums if of.below is None else sums[..., :n] / np.where(sums[..., n:] == 0, np.nan, sums[..., n:])
        return np.asarray(figures[..., first] - figures[..., second], dtype=np.float64)

    return difference


def _differences(
    of: Statistics, sums: Floats, pairs: NDArray[np.intp], intervals: Sequence[Interval], tested: Sequence[float]
) -> list[Difference]:
    first, second = pairs
    n = len(of.models)
    # column i - n is the denominator, or i itself without denominators
    differ = (sums[:, first] != sums[:, second]) | (sums[:, first - n] != sums[:, second - n])
    p = [None if known.estimate is None else value for known, value in zip(intervals, tested, strict=True)]
    holm, bh = adjusted_holm(p), adjusted_bh(p)
    found = []
    for k, (i, j) in enumerate(pairs.T.tolist()):
        at_least, at_most = (None, None)
        if of.bounds is not None:
            at_least, at_most = of.bounds[i][0] - of.bounds[j][1], of.bounds[i][1] - of.bounds[j][0]
        known, n_differ = intervals[k], int(differ[:, k].sum())
        ends = (known.estimate, known.low, known.high, known.method)
        found.append(
            Difference(
                of.models[i], of.models[j], *ends, p[k], holm[k], bh[k], len(of.above), n_differ, at_least, at_most
            )
        )  # fmt: skip
    return found


def _contributions(above: Floats, below: Floats | None, i: NDArray[np.intp], j: NDArray[np.intp]) -> Floats:
    """Contribution of each task to the difference of each pair (tasks, pairs), linearised at the pooled ratio."""
    if below is None:
        return np.asarray(above[:, i] - above[:, j], dtype=np.float64)
    over, under = above.sum(axis=0), below.sum(axis=0)
    under = np.where(under == 0, np.nan, under)
    with np.errstate(divide="ignore", invalid="ignore"):
        both = (over[i] + over[j]) / (under[i] + under[j])
        mine = (above[:, i] - both * below[:, i]) / under[i]
        return np.asarray(mine - (above[:, j] - both * below[:, j]) / under[j], dtype=np.float64)


def sign_flip(differences: Floats, seed: int = 0) -> list[float]:
    """Two-sided sign-flip p-values of the column sums (tasks, columns).

    Exact for up to 13 nonzero tasks in a column; 1 without any. NaN counts as 0.
    """
    table = np.nan_to_num(differences)
    sums = np.abs(table.sum(axis=0))
    p = np.ones(table.shape[1])
    n_differ = (table != 0).sum(axis=0)
    for k in np.flatnonzero((n_differ > 0) & (n_differ <= EXACT_UP_TO)):
        own = table[table[:, k] != 0, k]
        bits = np.arange(2 ** len(own))[:, None] >> np.arange(len(own)) & 1
        p[k] = (np.abs((1 - 2 * bits) @ own) >= _just_below(sums[k])).mean()
    many = np.flatnonzero(n_differ > EXACT_UP_TO)
    if len(many):
        p[many] = (1 + _as_large(table[:, many], sums[many], seed)) / (1 + FLIPS)
    return [float(x) for x in p]


def _as_large(table: Floats, sums: Floats, seed: int) -> NDArray[np.int64]:
    rng = np.random.default_rng(seed)
    n_tasks = len(table)
    step = max(1, min(FLIPS, _CHUNK_BYTES // (9 * n_tasks)))
    found = np.zeros(table.shape[1], dtype=np.int64)
    total = table.sum(axis=0)
    for start in range(0, FLIPS, step):
        now = min(step, FLIPS - start)
        heads = np.unpackbits(rng.integers(0, 256, (now, (n_tasks + 7) // 8), dtype=np.uint8), axis=1, count=n_tasks)
        found += (np.abs(total - 2 * (heads.astype(np.float64) @ table)) >= _just_below(sums)).sum(axis=0)
    return found


def _just_below(sums: Floats) -> Floats:
    """Tolerance for the rounding of a sum in another order."""
    return np.asarray(sums * (1 - 1e-12), dtype=np.float64)


def adjusted_holm(p: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down p-values (1979), in the given order; None is not a test and is not counted."""
    known = sorted((value, i) for i, value in enumerate(p) if value is not None)
    adjusted: list[float | None] = [None] * len(p)
    highest = 0.0
    for rank, (value, i) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * value))
        adjusted[i] = highest
    return adjusted


def adjusted_bh(p: Sequence[float | None]) -> list[float | None]:
    """Benjamini and Hochberg's step-up p-values (1995), in the given order; None as for `adjusted_holm`."""
    from scipy.stats import false_discovery_control

    known = [value for value in p if value is not None]
    adjusted = iter(false_discovery_control(known).tolist() if known else [])
    return [None if value is None else next(adjusted) for value in p]
