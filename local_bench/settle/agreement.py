"""Judge-human, inter-judge and intra-judge agreement (ServImage, appendix H, tables 10 and 11).

A rating of None is unscored: it is excluded and counted, never treated as a disagreement. Where a statistic is not
defined (fewer than two units, or all ratings equal) its value is None and `undefined` gives the reason; 0 would claim
agreement at chance level, which was not measured.
"""

import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, permutations
from statistics import fmean
from typing import Literal, TypeVar

import numpy as np

from local_bench.settle.intervals import mean_interval, rate_interval

TOO_FEW = "fewer than two units have enough ratings"
MIN_MODELS = 4
"""Independent rankings of three models agree with rho of 0.8 or more in one case of six."""
_ALL_ORDERS = 8
"""Maximum number of models of which all rankings are enumerated."""
ALL_ALIKE = "all ratings are the same, so no disagreement was possible"
A_CONSTANT = "one side has the same value for all models, which gives no ranking"

Level = Literal["nominal", "ordinal", "interval"]
Label = TypeVar("Label", bound=float)


@dataclass(frozen=True)
class Agreement:
    """An agreement statistic over units, with the number of units behind it."""

    value: float | None
    """None if it is not defined."""
    n: int
    """Units included."""
    n_unscored: int
    """Units excluded because a rating is missing."""
    undefined: str | None = None
    """Reason for a value of None."""
    low: float | None = None
    """Lower end of the 95 % interval; None if none was computed."""
    high: float | None = None
    by_chance: float | None = None
    """Of two independent rankings without ties: for rho the probability of a value at least as high, for the overlap of
    the top k its expectation."""

    def __post_init__(self) -> None:
        assert (self.value is None) != (self.undefined is None)


@dataclass(frozen=True)
class Repeatability:
    """Test-retest agreement of one judge with itself."""

    same: Agreement
    """Share of questions with the same answer in every round."""
    mean_abs_difference: float | None
    """|answer - answer| over all pairs of rounds, averaged over the questions, in the unit of the answers; None if no
    question was included."""


def agreement_rate(a: Sequence[Hashable | None], b: Sequence[Hashable | None], tasks: Sequence[Hashable]) -> Agreement:
    """Share of units on which two raters agree, in [0, 1], with its interval over tasks (ServImage, table 10).

    `tasks` has the task of each unit, which is its cluster. For decisions and labels only: expectations over labels are
    never equal, so decide first. Undefined without a unit that both rated.
    """
    rated = [(x, y, task) for x, y, task in zip(a, b, tasks, strict=True) if x is not None and y is not None]
    if not rated:
        return Agreement(None, 0, len(a), "no unit was rated by both")
    units, same = Counter(task for *_, task in rated), Counter(task for x, y, task in rated if x == y)
    low, high = rate_interval([same[task] for task in units], list(units.values())) or (None, None)
    return Agreement(same.total() / len(rated), len(rated), len(a) - len(rated), low=low, high=high)


def mean_difference(
    of_tasks: Mapping[str, Sequence[float]], scale: tuple[float, float] | None = None
) -> tuple[float | None, tuple[float, float] | None]:
    """The mean of the differences of two raters' values by task, and its 95 % interval over tasks (`mean_interval`);
    `scale` has the ends of the values. None without a difference."""
    flat = [difference for of_task in of_tasks.values() for difference in of_task]
    span = None if scale is None else (scale[0] - scale[1], scale[1] - scale[0])
    ends = mean_interval(list(map(sum, of_tasks.values())), list(map(len, of_tasks.values())), span)
    return fmean(flat) if flat else None, ends


def cohen_kappa(
    a: Sequence[bool | None], b: Sequence[bool | None], tasks: Sequence[Hashable] | None = None
) -> Agreement:
    """Cohen's kappa (1960) of two raters' decisions: (p_o - p_e) / (1 - p_e), at most 1.

    With `tasks` (the task of each unit) its interval is that of the rate p_o at the observed p_e, and not below -1,
    which is the least that kappa can be. Undefined for fewer than two units and where both raters gave one and the same
    decision throughout. Where only one of them did, it is 0 however often they agree: report it together with the rate.
    """
    pairs = _pairs(a, b)
    n, n_excluded = len(pairs), len(a) - len(pairs)
    if n < 2:
        return Agreement(None, n, n_excluded, TOO_FEW)
    first, second = sum(x for x, _ in pairs), sum(y for _, y in pairs)
    by_chance = (first * second + (n - first) * (n - second)) / n**2
    if by_chance == 1:
        return Agreement(None, n, n_excluded, ALL_ALIKE)
    rate = agreement_rate(a, b, range(len(a)) if tasks is None else tasks)
    kappa, low, high = (
        None if p is None else max(-1.0, (p - by_chance) / (1 - by_chance)) for p in (rate.value, rate.low, rate.high)
    )
    return Agreement(kappa, n, n_excluded, low=None if tasks is None else low, high=None if tasks is None else high)


def krippendorff_alpha(units: Sequence[Sequence[float | None]], level: Level = "nominal") -> Agreement:
    """Krippendorff's alpha for any number of raters: units x raters, None if a rater did not rate; at most 1.

    Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011). A unit with fewer than two ratings has no pair
    and is excluded. Undefined for fewer than two units with pairs, and where all their ratings are the same.
    """
    paired = [unit for unit in units if sum(value is not None for value in unit) >= 2]
    n_excluded = len(units) - len(paired)
    if len(paired) < 2:
        return Agreement(None, len(paired), n_excluded, TOO_FEW)
    values = np.array(sorted({value for unit in paired for value in unit if value is not None}), dtype=np.float64)
    if len(values) == 1:
        return Agreement(None, len(paired), n_excluded, ALL_ALIKE)
    ratings = np.asarray(paired, dtype=np.float64)  # (units, raters), NaN for None
    counts = (ratings[:, :, None] == values).sum(axis=1, dtype=np.float64)  # (units, values)
    n = counts.sum(axis=1)
    alike = ((counts[n == k], k) for k in np.unique(n))  # sums of integers are the same on every processor
    coincidences = sum(((c.T @ c - np.diag(c.sum(axis=0))) / (k - 1) for c, k in alike), np.zeros([len(values)] * 2))
    totals = coincidences.sum(axis=1)
    scale = {"nominal": values, "ordinal": np.cumsum(totals) - totals / 2, "interval": values}[level]
    distances = scale[:, None] != scale if level == "nominal" else (scale[:, None] - scale) ** 2
    by_chance = (np.outer(totals, totals) * distances).sum() / (totals.sum() - 1)
    return Agreement(float(1 - (coincidences * distances).sum() / by_chance), len(paired), n_excluded)


def rank_correlation(x: Sequence[float | None], y: Sequence[float | None]) -> Agreement:
    """Spearman's rho of two rankings of models (ServImage, table 11) with the probability of one as high by chance,
    exact for up to 8 models without ties. Undefined for fewer than `MIN_MODELS`."""
    from scipy.stats import rankdata, spearmanr

    correlation, pairs = spearman(x, y), _pairs(x, y)
    if len(pairs) < MIN_MODELS:
        return Agreement(None, len(pairs), len(x) - len(pairs), f"fewer than {MIN_MODELS} models have both values")
    if correlation.value is None:
        return correlation
    first, second = (np.asarray(column, dtype=np.float64) for column in zip(*pairs, strict=True))
    if len(pairs) > _ALL_ORDERS:
        return replace(correlation, by_chance=float(spearmanr(first, second, alternative="greater").pvalue))
    # with equal ranks on one side, rho orders the permutations as the sum of products of the ranks does
    ranks, others = rankdata(first), rankdata(second)
    sums = np.array(list(permutations(others))) @ ranks
    return replace(correlation, by_chance=float((sums >= ranks @ others - 1e-9).mean()))


def spearman(x: Sequence[float | None], y: Sequence[float | None]) -> Agreement:
    """Spearman's rank correlation of two lists of units, in [-1, 1].

    Equal values share the average of their ranks. Undefined for fewer than two units and where all values of one side
    are equal.
    """
    from scipy.stats import spearmanr

    pairs = _pairs(x, y)
    n_excluded = len(x) - len(pairs)
    if len(pairs) < 2:
        return Agreement(None, len(pairs), n_excluded, TOO_FEW)
    first, second = zip(*pairs, strict=True)
    if len(set(first)) == 1 or len(set(second)) == 1:
        return Agreement(None, len(pairs), n_excluded, A_CONSTANT)
    return Agreement(float(spearmanr(first, second).statistic), len(pairs), n_excluded)


def top_k_overlap(x: Sequence[float | None], y: Sequence[float | None], k: int) -> Agreement:
    """Share of models that two lists over the same models have in common among their k highest, in [0, 1].

    Ties: models equal at the k-th rank share the remaining ranks in equal parts, and the overlap is the smaller part of
    each model. The result does not depend on the order of the list, and is 1 for a list with itself; by chance it is
    k / n. Undefined where fewer than `MIN_MODELS`, or not more than k, are on both lists.
    """
    assert k >= 1, k
    pairs = _pairs(x, y)
    n_excluded = len(x) - len(pairs)
    least = max(MIN_MODELS, k + 1)
    if len(pairs) < least:
        return Agreement(None, len(pairs), n_excluded, f"fewer than {least} models have both values")
    first, second = (_parts([pair[i] for pair in pairs], k) for i in (0, 1))
    shared = math.fsum(min(p, q) for p, q in zip(first, second, strict=True))
    return Agreement(shared / k, len(pairs), n_excluded, by_chance=k / len(pairs))


def _parts(values: Sequence[float], k: int) -> list[float]:
    """Part of a top-k rank of each model."""
    edge = sorted(values, reverse=True)[k - 1]
    above = sum(value > edge for value in values)
    part = (k - above) / sum(value == edge for value in values)
    return [1.0 if value > edge else part if value == edge else 0.0 for value in values]


def majority(values: Sequence[Label | None]) -> Label | None:
    """Majority label of several judges; a tie takes the lower label, which is the stricter one.

    None if fewer than half of the judges answered, or there is no judge.
    """
    votes = Counter(_quorum(values))
    return min(votes, key=lambda label: (-votes[label], label)) if votes else None


def panel_mean(values: Sequence[float | None]) -> float | None:
    """Mean answer of several judges; None if fewer than half of them answered."""
    answered = _quorum(values)
    mean = math.fsum(answered) / max(1, len(answered))
    exact = float(f"{mean:.15g}")  # 3.0 for 2.9999999999999996, the mean of rounded thirteenths: it decides acceptance
    return None if not answered else exact if abs(exact - mean) <= math.ulp(mean) else mean


def _quorum(values: Sequence[Label | None]) -> list[Label]:
    answered = [value for value in values if value is not None]
    return answered if 2 * len(answered) >= len(values) else []


def test_retest(rounds: Sequence[Sequence[float | None]], tasks: Sequence[Hashable]) -> Repeatability:
    """Test-retest agreement: rounds x questions, the same questions in the same order in each of two or more rounds;
    `tasks` has the task of each question.

    A question that is unscored in any round is excluded and counted. Undefined if no question remains.
    """
    assert len(rounds) >= 2, len(rounds)
    by_question = list(zip(*rounds, strict=True))
    same = [None if None in answers else len(set(answers)) == 1 for answers in by_question]
    answered = [[a for a in answers if a is not None] for answers in by_question if None not in answers]
    if not answered:
        return Repeatability(Agreement(None, 0, len(same), "no question was answered in every round"), None)
    differences = [abs(x - y) for answers in answered for x, y in combinations(answers, 2)]
    rate = agreement_rate(same, [True] * len(same), tasks)
    return Repeatability(rate, math.fsum(differences) / len(differences))


_T = TypeVar("_T")


def _pairs(a: Sequence[_T | None], b: Sequence[_T | None]) -> list[tuple[_T, _T]]:
    return [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
