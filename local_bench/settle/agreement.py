"""How far judges and people agree, and how far a judge agrees with itself (ServImage, appendix H, tables 10 and 11).

A rating of None is unscored: it is left out and counted, never read as a disagreement. Where a figure is not defined
(fewer than two units, or ratings that are all the same) its value is None and `undefined` says why: 0 would claim
that the raters agree no better than chance, and nobody has shown that.
"""

import math
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Literal, TypeVar

import numpy as np
from numpy.typing import NDArray

from local_bench.settle.intervals import wilson

RESAMPLES = 1000
TOO_FEW = "fewer than two units have what it takes"
ALL_ALIKE = "all ratings are the same, so that nothing could have disagreed"
A_CONSTANT = "one side gives everybody the same, so that it has no order"

Level = Literal["nominal", "ordinal", "interval"]
Weights = Literal["linear", "quadratic"]
Unit = TypeVar("Unit")
Label = TypeVar("Label", bound=float)


@dataclass(frozen=True)
class Agreement:
    """A figure of agreement over units, and what it stands on."""

    value: float | None
    """None where it is not defined."""
    n: int
    """Units that counted."""
    n_unscored: int
    """Units left out because a rating is missing."""
    undefined: str | None = None
    """Why there is no value."""
    low: float | None = None
    """Lower end of the 95 % interval, where there is one; `interval` makes one for the others."""
    high: float | None = None

    def __post_init__(self) -> None:
        assert (self.value is None) != (self.undefined is None)


@dataclass(frozen=True)
class Repeatability:
    """How far a judge who is asked the same again says the same."""

    same: Agreement
    """The share of questions that were answered the same in every round."""
    mean_abs_difference: float | None
    """|answer - answer| over all pairs of rounds, averaged over the questions, in the answers' own unit; None where no
    question counted."""


def agreement_rate(a: Sequence[Hashable | None], b: Sequence[Hashable | None]) -> Agreement:
    """The share of units on which two raters say the same, in [0, 1], with its Wilson interval (ServImage, table 10).

    Made for decisions and labels: expectations over labels are never equal, so decide first. Undefined without a
    unit that both rated.
    """
    pairs = _pairs(a, b)
    left_out = len(a) - len(pairs)
    if not pairs:
        return Agreement(None, 0, left_out, "no unit was rated by both")
    same = sum(x == y for x, y in pairs)
    low, high = wilson(same, len(pairs))
    return Agreement(same / len(pairs), len(pairs), left_out, low=low, high=high)


def cohen_kappa(a: Sequence[float | None], b: Sequence[float | None], weights: Weights | None = None) -> Agreement:
    """Cohen's kappa (1960): agreement of two raters beyond chance, 1 - observed / expected disagreement, at most 1.

    `weights` makes it weighted kappa (Cohen 1968): a disagreement counts |x - y| or (x - y)^2, by the labels' own
    numbers, so that a label which nobody used still keeps its place on the scale. Undefined for fewer than two units
    and where both raters gave one and the same label throughout. Where only one of them did, it is 0 however often
    they agree: read it beside the rate.
    """
    pairs = _pairs(a, b)
    left_out = len(a) - len(pairs)
    if len(pairs) < 2:
        return Agreement(None, len(pairs), left_out, TOO_FEW)
    firsts, seconds = Counter(x for x, _ in pairs), Counter(y for _, y in pairs)
    observed = math.fsum(_apart(x, y, weights) for x, y in pairs) / len(pairs)
    expected = (
        math.fsum(m * n * _apart(x, y, weights) for x, m in firsts.items() for y, n in seconds.items())
        / len(pairs) ** 2
    )
    if expected == 0:
        return Agreement(None, len(pairs), left_out, ALL_ALIKE)
    return Agreement(1 - observed / expected, len(pairs), left_out)


def _apart(x: float, y: float, weights: Weights | None) -> float:
    if weights is None:
        return float(x != y)
    return float(abs(x - y) if weights == "linear" else (x - y) ** 2)


def krippendorff_alpha(units: Sequence[Sequence[float | None]], level: Level = "nominal") -> Agreement:
    """Krippendorff's alpha for any number of raters: units x raters, None where a rater did not rate.

    Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011): 1 - observed / expected disagreement over the
    coincidences of values within units; at most 1. A unit with fewer than two ratings has no pair and is left out.
    Undefined for fewer than two units with pairs, and where all their ratings are the same.
    """
    rated = [[value for value in unit if value is not None] for unit in units]
    paired = [values for values in rated if len(values) >= 2]
    left_out = len(units) - len(paired)
    if len(paired) < 2:
        return Agreement(None, len(paired), left_out, TOO_FEW)
    values = sorted({value for unit in paired for value in unit})
    if len(values) == 1:
        return Agreement(None, len(paired), left_out, ALL_ALIKE)
    place = {value: i for i, value in enumerate(values)}
    coincidences = np.zeros((len(values), len(values)))
    for unit in paired:
        counts = Counter(place[value] for value in unit)
        for i, n_i in counts.items():
            for j, n_j in counts.items():
                coincidences[i, j] += n_i * (n_j - (i == j)) / (len(unit) - 1)
    totals = coincidences.sum(axis=0)
    n = totals.sum()
    distances = _distances(np.asarray(values, dtype=np.float64), totals, level)
    observed = float((coincidences * distances).sum())
    expected = float((np.outer(totals, totals) * distances).sum())
    return Agreement(1 - float(n - 1) * observed / expected, len(paired), left_out)


def _distances(values: NDArray[np.float64], totals: NDArray[np.float64], level: Level) -> NDArray[np.float64]:
    """Squared differences between all values (ascending), each of which stands there as often as `totals` says."""
    if level == "nominal":
        return np.asarray(values[:, None] != values[None, :], dtype=np.float64)
    if level == "interval":
        return np.asarray((values[:, None] - values[None, :]) ** 2, dtype=np.float64)
    middles = np.cumsum(totals) - totals / 2  # the sum from c to k less half of both ends
    return np.asarray((middles[:, None] - middles[None, :]) ** 2, dtype=np.float64)


def spearman(x: Sequence[float | None], y: Sequence[float | None]) -> Agreement:
    """Spearman's rank correlation of two lists over the same models, in [-1, 1] (ServImage, table 11).

    Equal values share the average of their ranks; rho is Pearson's correlation of the ranks. Undefined for fewer than
    two models and where one side gives all of them the same.
    """
    pairs = _pairs(x, y)
    left_out = len(x) - len(pairs)
    if len(pairs) < 2:
        return Agreement(None, len(pairs), left_out, TOO_FEW)
    first, second = (_centred_ranks([pair[i] for pair in pairs]) for i in (0, 1))
    spread = math.sqrt(math.fsum(r * r for r in first) * math.fsum(r * r for r in second))
    if spread == 0:
        return Agreement(None, len(pairs), left_out, A_CONSTANT)
    rho = math.fsum(r * s for r, s in zip(first, second, strict=True)) / spread
    return Agreement(max(-1.0, min(1.0, rho)), len(pairs), left_out)


def _centred_ranks(values: Sequence[float]) -> list[float]:
    """Ranks from the lowest, the average where values are equal, less the mean rank."""
    counts = Counter(values)
    rank, below = {}, 0
    for value in sorted(counts):
        rank[value] = below + (counts[value] - len(values)) / 2
        below += counts[value]
    return [rank[value] for value in values]


def top_k_overlap(x: Sequence[float | None], y: Sequence[float | None], k: int) -> Agreement:
    """The share of models that two lists over the same models have in common among their k highest, in [0, 1].

    Ties: models that are equal at the k-th place share the places left there in equal parts, and two lists have in
    common the smaller part of each model. So the order of the list decides nothing, and a list agrees with itself
    fully. Undefined where fewer than k models are on both lists; with exactly k it is always 1.
    """
    assert k >= 1, k
    pairs = _pairs(x, y)
    left_out = len(x) - len(pairs)
    if len(pairs) < k:
        return Agreement(None, len(pairs), left_out, f"fewer than {k} models have both values")
    first, second = (_parts([pair[i] for pair in pairs], k) for i in (0, 1))
    shared = math.fsum(min(p, q) for p, q in zip(first, second, strict=True))
    return Agreement(shared / k, len(pairs), left_out)


def _parts(values: Sequence[float], k: int) -> list[float]:
    """The part of a top-k place that each model has."""
    edge = sorted(values, reverse=True)[k - 1]
    above = sum(value > edge for value in values)
    part = (k - above) / sum(value == edge for value in values)
    return [1.0 if value > edge else part if value == edge else 0.0 for value in values]


def majority(values: Sequence[Label | None]) -> Label | None:
    """A panel's word: the label with the most votes; a tie takes the lower label, which is the strict one.

    None where fewer than half of the judges answered, or nobody was asked.
    """
    votes = Counter(_quorum(values))
    return min(votes, key=lambda label: (-votes[label], label)) if votes else None


def mean_word(values: Sequence[float | None]) -> float | None:
    """A panel's word on a scale: the mean of what was answered; None where fewer than half of the judges answered."""
    answered = _quorum(values)
    return math.fsum(answered) / len(answered) if answered else None


def _quorum(values: Sequence[Label | None]) -> list[Label]:
    answered = [value for value in values if value is not None]
    return answered if 2 * len(answered) >= len(values) else []


def test_retest(rounds: Sequence[Sequence[float | None]]) -> Repeatability:
    """How stable a judge is: rounds x questions, the same questions in the same order in each of two or more rounds.

    A question that is unscored in any round is left out and counted. Undefined where no question is left.
    """
    assert len(rounds) >= 2, len(rounds)
    by_question = list(zip(*rounds, strict=True))
    answered = [[a for a in answers if a is not None] for answers in by_question if None not in answers]
    left_out = len(by_question) - len(answered)
    if not answered:
        return Repeatability(Agreement(None, 0, left_out, "no question was answered in every round"), None)
    same = sum(len(set(answers)) == 1 for answers in answered)
    low, high = wilson(same, len(answered))
    apart = [abs(x - y) for answers in answered for x, y in combinations(answers, 2)]
    return Repeatability(
        Agreement(same / len(answered), len(answered), left_out, low=low, high=high), math.fsum(apart) / len(apart)
    )


def interval(
    units: Sequence[Unit], figure: Callable[[Sequence[Unit]], Agreement], level: float = 0.95
) -> tuple[float, float] | None:
    """The seeded percentile bootstrap interval of a figure over resampled units (for alpha its units, for kappa pairs).

    Resamples on which the figure is not defined are left out; None where those are more than half, or for fewer than
    two units.
    """
    if len(units) < 2:
        return None
    rng = np.random.default_rng(0)
    drawn = (figure([units[i] for i in rng.integers(0, len(units), len(units))]).value for _ in range(RESAMPLES))
    values = sorted(value for value in drawn if value is not None)
    if 2 * len(values) < RESAMPLES:
        return None
    tail = (1 - level) / 2
    return values[int(tail * len(values))], values[int((1 - tail) * len(values)) - 1]


_T = TypeVar("_T")


def _pairs(a: Sequence[_T | None], b: Sequence[_T | None]) -> list[tuple[_T, _T]]:
    return [(x, y) for x, y in zip(a, b, strict=True) if x is not None and y is not None]
