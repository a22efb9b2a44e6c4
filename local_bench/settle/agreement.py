"""Judge-human, inter-judge and intra-judge agreement (ServImage, appendix H, tables 10 and 11).

A rating of None is unscored: it is excluded and counted, never treated as a disagreement. Where a statistic is not
defined (fewer than two units, or all ratings equal) its value is None and `undefined` gives the reason; 0 would claim
agreement at chance level, which was not measured.
"""

import math
from collections import Counter
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Literal, TypeVar

import numpy as np

from local_bench.settle.bootstrap import Floats, bootstrap, task_sums
from local_bench.settle.intervals import wilson

TOO_FEW = "fewer than two units have enough ratings"
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


def agreement_rate(a: Sequence[Hashable | None], b: Sequence[Hashable | None]) -> Agreement:
    """Share of units on which two raters agree, in [0, 1], with its Wilson interval (ServImage, table 10).

    For decisions and labels only: expectations over labels are never equal, so decide first. Undefined without a unit
    that both rated.
    """
    pairs = _pairs(a, b)
    n_excluded = len(a) - len(pairs)
    if not pairs:
        return Agreement(None, 0, n_excluded, "no unit was rated by both")
    same = sum(x == y for x, y in pairs)
    low, high = wilson(same, len(pairs))
    return Agreement(same / len(pairs), len(pairs), n_excluded, low=low, high=high)


def cohen_kappa(a: Sequence[bool | None], b: Sequence[bool | None], clusters: Sequence[int] | None = None) -> Agreement:
    """Cohen's kappa (1960) of two raters' decisions: (p_o - p_e) / (1 - p_e), at most 1.

    With `clusters` (the task of each unit, numbered from 0) it has the 95 % percentile interval of the cluster
    bootstrap. Undefined for fewer than two units and where both raters gave one and the same decision throughout. Where
    only one of them did, it is 0 however often they agree: report it together with the rate.
    """
    pairs = _pairs(a, b)
    n_excluded = len(a) - len(pairs)
    if len(pairs) < 2:
        return Agreement(None, len(pairs), n_excluded, TOO_FEW)
    cells = np.asarray([(x and y, x and not y, y and not x, not (x or y)) for x, y in pairs], dtype=np.float64)
    kappa = float(_kappa(cells.sum(axis=0))[0])
    if math.isnan(kappa):
        return Agreement(None, len(pairs), n_excluded, ALL_ALIKE)
    found = Agreement(kappa, len(pairs), n_excluded)
    if clusters is None:
        return found
    rated = [task for task, x, y in zip(clusters, a, b, strict=True) if x is not None and y is not None]
    (interval,) = bootstrap(task_sums(rated, cells, max(rated) + 1), _kappa)
    return replace(found, low=interval.low, high=interval.high)


def _kappa(sums: Floats) -> Floats:
    """Counts (..., 4) of both accepted, only the first, only the second, neither -> kappa (..., 1)."""
    both, first, second, neither = np.moveaxis(sums, -1, 0)
    n = both + first + second + neither
    by_chance = ((both + first) * (both + second) + (neither + second) * (neither + first)) / n**2
    with np.errstate(divide="ignore", invalid="ignore"):
        kappa = np.where(by_chance < 1, ((both + neither) / n - by_chance) / (1 - by_chance), np.nan)
    return np.asarray(kappa, dtype=np.float64)[..., None]


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
    counts = (ratings[:, :, None] == values).sum(axis=1)  # (units, values)
    weighted = counts / (counts.sum(axis=1, keepdims=True) - 1)
    coincidences = counts.T @ weighted - np.diag(weighted.sum(axis=0))  # (values, values)
    totals = coincidences.sum(axis=1)
    scale = {"nominal": values, "ordinal": np.cumsum(totals) - totals / 2, "interval": values}[level]
    distances = (scale[:, None] - scale) ** 2
    if level == "nominal":
        distances = np.sign(distances)
    by_chance = (np.outer(totals, totals) * distances).sum() / (totals.sum() - 1)
    return Agreement(float(1 - (coincidences * distances).sum() / by_chance), len(paired), n_excluded)


def spearman(x: Sequence[float | None], y: Sequence[float | None]) -> Agreement:
    """Spearman's rank correlation of two lists over the same models, in [-1, 1] (ServImage, table 11).

    Equal values share the average of their ranks. Undefined for fewer than two models and where all values of one side
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
    each model. The result does not depend on the order of the list, and is 1 for a list with itself. Undefined where
    fewer than k models are on both lists; with exactly k it is always 1.
    """
    assert k >= 1, k
    pairs = _pairs(x, y)
    n_excluded = len(x) - len(pairs)
    if len(pairs) < k:
        return Agreement(None, len(pairs), n_excluded, f"fewer than {k} models have both values")
    first, second = (_parts([pair[i] for pair in pairs], k) for i in (0, 1))
    shared = math.fsum(min(p, q) for p, q in zip(first, second, strict=True))
    return Agreement(shared / k, len(pairs), n_excluded)


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
    return math.fsum(answered) / len(answered) if answered else None


def _quorum(values: Sequence[Label | None]) -> list[Label]:
    answered = [value for value in values if value is not None]
    return answered if 2 * len(answered) >= len(values) else []


def test_retest(rounds: Sequence[Sequence[float | None]]) -> Repeatability:
    """Test-retest agreement: rounds x questions, the same questions in the same order in each of two or more rounds.

    A question that is unscored in any round is excluded and counted. Undefined if no question remains.
    """
    assert len(rounds) >= 2, len(rounds)
    by_question = list(zip(*rounds, strict=True))
    answered = [[a for a in answers if a is not None] for answers in by_question if None not in answers]
    n_excluded = len(by_question) - len(answered)
    if not answered:
        return Repeatability(Agreement(None, 0, n_excluded, "no question was answered in every round"), None)
    same = sum(len(set(answers)) == 1 for answers in answered)
    low, high = wilson(same, len(answered))
    differences = [abs(x - y) for answers in answered for x, y in combinations(answers, 2)]
    return Repeatability(
        Agreement(same / len(answered), len(answered), n_excluded, low=low, high=high),
        math.fsum(differences) / len(differences),
    )


_T = TypeVar("_T")


def _pairs(a: Sequence[_T | None], b: Sequence[_T | None]) -> list[tuple[_T, _T]]:
    return [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
