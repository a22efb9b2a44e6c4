"""Paired comparison of models on the same tasks, with correction for multiple comparisons.

The p-value of a difference is that of a sign-flip permutation test over tasks: under the null hypothesis the sign of
each task's difference is random. With few tasks all flips are enumerated and the test is exact; otherwise they are
drawn (Phipson and Smyth 2010: the observed table counts as one of them, so p is never 0). The interval has the
differences that the same flips do not reject, where a difference of theta shifts each task in proportion to its weight,
such as its price. The flips that do not reject theta are those for which it lies between the differences on the flipped
and on the other tasks, so that both ends are quantiles of these.

Flips assume that a task's difference is symmetric, which it is not where one model is better at expensive and one at
cheap tasks. p is therefore the larger of two, the other that of the jackknife's t with Kish's n - 1 degrees of freedom
(`settle.intervals`), and the interval reaches from the lower of two lower ends to the higher of two upper ones: 0 is
outside the 95 % interval exactly where p < 0.05.

Both see only the differences that occurred, of which there are few between two models that are nearly always, or nearly
never, accepted. On a bounded scale the interval therefore also contains the one of Newcombe (1998, method 10; Zou and
Donner 2008), from the two models' own intervals, but for what is beyond 0 where p < 0.05.
"""

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations
from math import ceil, sqrt

import numpy as np
from scipy.special import ndtri, stdtr

from local_bench.settle.intervals import (
    LEVEL,
    Floats,
    exact_sum,
    exact_sums,
    kish,
    mean_interval,
    ratio_and_error,
    share_interval,
    student,
)

FLIPS = 99_999
"""Enough for the smallest p-value of 100 models, 1e-5, to be significant among all pairs."""
EXACT_UP_TO = 16
"""Maximum number of tasks of which all flips are enumerated."""
_DRAWS = 2_000_000_000
"""Maximum number of drawn signs; of more tasks fewer flips are drawn, at least a tenth."""
_CHUNK_BYTES = 64_000_000
_COLUMNS = 64
"""Maximum number of models whose sums are in memory at the same time, if they are of several statistics."""
_POWER = 0.8


@dataclass(frozen=True)
class Difference:
    """`a` - `b` on the tasks of both, in the unit of the statistic."""

    a: str
    b: str
    estimate: float | None
    """None if one of the two is undefined."""
    low: float | None
    """Lower end of the interval of this comparison alone, to which `p` belongs; None where it has none, and where no
    task differs."""
    high: float | None
    p: float | None
    """Two-sided, uncorrected."""
    p_holm: float | None
    """Corrected for all pairs, family-wise error rate (Holm 1979); models with the same images and decisions are
    one."""
    p_bh: float | None
    """Corrected for all pairs, false discovery rate (Benjamini and Hochberg 1995)."""
    n_tasks: int
    n_differ: int
    """Tasks on which the two differ."""
    detectable: float | None
    """The difference that a run like this finds significant with a power of 80 %: about 0.71 of the interval's width;
    None where no difference is."""
    at_least: float | None = None
    """Difference with everything unscored decided against `a` and for `b`; None without `Statistics.best`."""
    at_most: float | None = None

    @property
    def too_few_differ(self) -> bool:
        """Whether no result on this number of differing tasks could be significant."""
        return 2.0**-self.n_differ * 2 >= 1 - LEVEL


@dataclass(frozen=True)
class Statistics:
    """One statistic of several models, sum(above) / sum(below) over tasks, in the same order of tasks for all."""

    models: Sequence[str]
    above: Floats
    """(tasks, models): the numerator of each task, such as its revenue."""
    below: Floats
    """(tasks, models): the denominator, such as its price or the number of its images."""
    unit: float = 1.0
    """Factor of all results: the total price gives revenue."""
    widest: float | None = 1.0
    """The largest possible difference of the ratios; None if there is none."""
    least: float | None = None
    """Of means of values on a scale, where it begins; None of shares and rates, whose own intervals are wider."""
    alike: Sequence[Hashable] | None = None
    """A key of each model that is the same for models with the same images and decisions."""
    best: Floats | None = None
    """(tasks, models): the numerator with everything unscored accepted, where `above` counts it as rejected. The
    interval then contains those of both extremes (all for `a` and none for `b`, and the reverse), and p is the largest
    of the three, or 1 where the extremes are on both sides of 0."""


def differences(statistics: Sequence[Statistics], *, level: float = LEVEL, seed: int = 0) -> list[list[Difference]]:
    """Compare every pair of models of each statistic, in order. The flips depend on the number of tasks and the seed
    alone; `b` - `a` is exactly -(`a` - `b`). Where two models have different denominators, their ratios are compared by
    linearised contributions, a_t - r b_t, r the pooled ratio."""
    compared_by_statistic: list[list[Difference]] = [[] for _ in statistics]
    of_shape: dict[tuple[int, ...], list[int]] = {}
    for i, statistic in enumerate(statistics):
        assert statistic.below.shape == statistic.above.shape == (len(statistic.above), len(statistic.models))
        if len(statistic.models) > 1:
            of_shape.setdefault(statistic.above.shape, []).append(i)
    for (_, n_models), members in of_shape.items():
        n_at_once = max(1, _COLUMNS // n_models)
        for some in (members[at : at + n_at_once] for at in range(0, len(members), n_at_once)):
            sides = [_sides(statistics[i]) for i in some]
            flipped, exact = _flipped([side for both in sides for side in both], seed)
            for k, i in enumerate(some):
                compared = _compared(statistics[i], sides[k], (flipped[2 * k], flipped[2 * k + 1]), exact, level)
                keys = statistics[i].alike
                compared_by_statistic[i] = adjusted(compared, None if keys is None else list(combinations(keys, 2)))
    return compared_by_statistic


def adjusted(pairs: Sequence[Difference], alike: Sequence[tuple[Hashable, Hashable]] | None = None) -> list[Difference]:
    """The differences with p-values corrected for all of them. `alike`: a key of the images and decisions of each
    difference's models. Pairs of the same two keys are one hypothesis, and a pair of equal keys is none."""
    keys = [frozenset((i, str(i))) for i in range(len(pairs))] if alike is None else list(map(frozenset, alike))
    tests = {key: difference.p for key, difference in zip(keys, pairs, strict=True) if len(key) == 2}
    holm, bh = (dict(zip(tests, adjust(list(tests.values())), strict=True)) for adjust in (adjusted_holm, adjusted_bh))
    return [
        replace(difference, p_holm=holm.get(key, difference.p), p_bh=bh.get(key, difference.p))
        for key, difference in zip(keys, pairs, strict=True)
    ]


def _sides(table: Statistics) -> tuple[Floats, Floats]:
    """Numerators and denominators, (tasks, models); with unscored ones (tasks, 2 * models), the second half at best."""
    if table.best is None or not (table.best != table.above).any():
        return table.above, table.below
    return np.hstack([table.above, table.best]), np.hstack([table.below, table.below])


def _compared(
    table: Statistics, sides: tuple[Floats, Floats], heads: tuple[Floats, Floats], exact: bool, level: float
) -> list[Difference]:
    over, under = (np.array([exact_sum(column) for column in side.T]) for side in sides)
    own, widest = _own_errors(sides, table, level), np.inf if table.widest is None else table.widest

    def tested(i: int, j: int) -> tuple[float, float, tuple[float, float]]:
        """Difference, p and interval of two columns of `sides`."""
        scale = (over[i] + over[j]) / (under[i] + under[j]), under[i], under[j]
        contribution, weight = _linear(*sides, i, j, *scale)
        by_flips = _by_flips(*_linear(*heads, i, j, *scale), contribution, exact, level)
        by_t = _by_t(contribution, weight, level)
        ends = _widened((min(by_flips[1], by_t[1]), max(by_flips[2], by_t[2])), own[i], own[j])
        return float(over[i] / under[i] - over[j] / under[j]), max(by_flips[0], by_t[0]), ends

    def value(i: int) -> float:
        return float(table.unit * over[i] / under[i])

    results, best = [], len(over) - len(table.models)  # 0 where nothing is unscored
    for i, j in combinations(range(len(table.models)), 2):
        both = np.stack([table.above, table.below])
        differ = (np.abs(both[..., i] - both[..., j]) > 1e-12 * np.abs(both[..., i])).any(axis=0)  # not by rounding
        at_least = at_most = estimate = p = low = high = detectable = None
        if under[i] and under[j]:
            results_of = [tested(i, j), *([tested(i, best + j), tested(best + i, j)] if best else [])]
            estimate = table.unit * results_of[0][0]
            if table.best is not None:
                at_least, at_most = sorted((value(i) - value(best + j), value(best + i) - value(j)))
            is_one_sided = len({np.sign(difference) for difference, _, _ in results_of}) == 1
            p = max(p for _, p, _ in results_of) if is_one_sided else 1.0
            ends = min(ends[0] for _, _, ends in results_of), max(ends[1] for _, _, ends in results_of)
            low, high = (float(np.clip(end, -widest, widest)) * table.unit for end in ends)
            low, high = (None if np.isinf(end) else end for end in (low, high))
            if not differ.any() and ends == results_of[0][2]:
                low = high = None  # equal outcomes do not say that there is no difference
            if low is not None and high is not None:
                detectable = (high - low) / 2 * float(1 + ndtri(_POWER) / ndtri((1 + level) / 2))
                detectable = detectable if detectable <= widest * table.unit else None
        n = len(table.above), int(differ.sum())
        ends_of = estimate, low, high, p, None, None
        results.append(Difference(table.models[i], table.models[j], *ends_of, *n, detectable, at_least, at_most))
    return results


@dataclass(frozen=True)
class _OwnError:
    """One model's ratio, how far its own interval reaches below and above it, and each task's contribution to it."""

    ratio: float
    below: float
    above: float
    contribution: Floats


def _own_errors(sides: tuple[Floats, Floats], table: Statistics, level: float) -> list[_OwnError | None]:
    """None for a model without an interval, and where the values are not on the scale."""
    errors, least = list[_OwnError | None](), table.least or 0.0
    top = np.inf if table.widest is None else least + table.widest
    for a, b in zip(*(side.T for side in sides), strict=True):
        is_bounded = bool(np.isfinite(top) and ((a >= least * b) & (a <= top * b * (1 + 1e-9))).all())
        own = share_interval if table.least is None else partial(mean_interval, scale=(0.0, 1.0))
        ends = own((a - least * b) / (top - least), b, level=level) if is_bounded else None
        if ends is None:
            errors.append(None)
            continue
        ratio = exact_sum(a) / exact_sum(b)
        low, high = (least + (top - least) * end for end in ends)
        contribution = np.where(np.abs(a - ratio * b) <= 1e-12 * a, 0.0, a - ratio * b)  # rounding has no correlation
        errors.append(_OwnError(ratio, max(0.0, ratio - low), max(0.0, high - ratio), contribution))
    return errors


def _widened(ends: tuple[float, float], a: _OwnError | None, b: _OwnError | None) -> tuple[float, float]:
    """The interval of a - b with Newcombe's, which has no part on the other side of 0 than all of `ends`."""
    if a is None or b is None:
        return ends
    spread = sqrt(exact_sum(a.contribution**2) * exact_sum(b.contribution**2))
    r = exact_sum(a.contribution * b.contribution) / spread if spread else 0.0

    def reach(x: float, y: float) -> float:
        return sqrt(max(0.0, x * x + y * y - 2 * r * (x * y)))

    low, high = a.ratio - b.ratio - reach(a.below, b.above), a.ratio - b.ratio + reach(a.above, b.below)
    return (
        ends[0] if ends[0] > 0 >= low else min(ends[0], low),
        ends[1] if ends[1] < 0 <= high else max(ends[1], high),
    )


def _linear(
    above: Floats, below: Floats, i: int, j: int, pooled: float, under_i: float, under_j: float
) -> tuple[Floats, Floats]:
    """Each row's contribution to the difference of the ratios, linearised at the pooled one, and its weight."""
    contribution = (above[:, i] - pooled * below[:, i]) / under_i - (above[:, j] - pooled * below[:, j]) / under_j
    return contribution, (below[:, i] / under_i + below[:, j] / under_j) / 2


def _by_flips(
    flipped: Floats, weight: Floats, contribution: Floats, exact: bool, level: float
) -> tuple[float, float, float]:
    """p and the ends of the interval, from sums over the flipped tasks of contributions and weights (flips,)."""
    rounding = 1e-12 * float(np.abs(contribution).sum())
    rest = exact_sum(contribution) - flipped
    flipped, rest = (np.where(np.abs(side) <= rounding, 0.0, side) for side in (flipped, rest))
    with np.errstate(divide="ignore", invalid="ignore"):
        sides = flipped / weight, rest / (1 - weight)
    whole = (weight <= 1e-12) | (weight >= 1 - 1e-12)  # no task is flipped, or all are
    least, most = np.where(whole, -np.inf, np.fmin(*sides)), np.where(whole, np.inf, np.fmax(*sides))
    n = len(least) + (not exact)  # the observed table is one of them
    m = ceil((1 - level) * n - 1e-9) - (not exact)
    p = (int(((least <= 0) & (most >= 0)).sum()) + (not exact)) / n
    if m < 1:
        return p, -np.inf, np.inf
    return p, float(np.partition(least, m - 1)[m - 1]), -float(np.partition(-most, m - 1)[m - 1])


def _by_t(contribution: Floats, weight: Floats, level: float) -> tuple[float, float, float]:
    """p and the ends of the interval by the jackknife over tasks."""
    if np.count_nonzero(weight) < 2:
        return 0.0, np.inf, -np.inf
    mean, error = ratio_and_error(contribution, weight)
    df = max(1.0, kish(weight) - 1)
    half = student(df, level) * error
    p = float(2 * stdtr(df, -abs(mean) / error)) if error > 1e-12 * abs(mean) else 0.0
    return p, mean - half, mean + half


def _flipped(tables: Sequence[Floats], seed: int) -> tuple[list[Floats], bool]:
    """Sums over the flipped tasks, (flips, columns), of each table (tasks, columns), and whether these are all
    flips."""
    n_tasks = len(tables[0])
    sums_of, edges = exact_sums(np.hstack(tables)), np.cumsum([table.shape[1] for table in tables])[:-1]
    if n_tasks <= EXACT_UP_TO:
        bits = (np.arange(2**n_tasks)[:, None] >> np.arange(n_tasks) & 1).astype(np.float64)
        return np.split(sums_of(bits), edges, axis=1), True
    rng = np.random.default_rng(seed)
    flips = max(FLIPS // 10, min(FLIPS, _DRAWS // n_tasks))
    step = max(1, min(flips, _CHUNK_BYTES // (9 * n_tasks)))
    parts: list[Floats] = []
    for start in range(0, flips, step):
        now = min(step, flips - start)
        heads = np.unpackbits(rng.integers(0, 256, (now, (n_tasks + 7) // 8), dtype=np.uint8), axis=1, count=n_tasks)
        parts.append(sums_of(heads.astype(np.float64)))
    return np.split(np.concatenate(parts), edges, axis=1), False


def adjusted_holm(p: Sequence[float | None]) -> list[float | None]:
    """Holm's step-down p-values (1979), in the given order; None is not a test and is not counted."""
    ascending = sorted((value, i) for i, value in enumerate(p) if value is not None)
    adjusted: list[float | None] = [None] * len(p)
    highest = 0.0
    for rank, (value, i) in enumerate(ascending):
        highest = max(highest, min(1.0, (len(ascending) - rank) * value))
        adjusted[i] = highest
    return adjusted


def adjusted_bh(p: Sequence[float | None]) -> list[float | None]:
    """Benjamini and Hochberg's step-up p-values (1995), in the given order; None as for `adjusted_holm`."""
    from scipy.stats import false_discovery_control

    tested = [value for value in p if value is not None]
    adjusted = iter(false_discovery_control(tested).tolist() if tested else [])
    return [None if value is None else next(adjusted) for value in p]
