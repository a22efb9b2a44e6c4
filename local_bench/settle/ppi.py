"""Prediction-powered estimates: a judge on everything, people on a few, and an interval that is honest about both.

Angelopoulos et al., "Prediction-Powered Inference" (2023), and PPI++ (2023), whose power says how far the judge is
relied on: 0 is people's labels alone, 1 the judge corrected by them. The judge may be wrong in any way: what it gets
wrong on the labelled images, weighted by the probabilities with which they were drawn, is taken off its word on all.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from local_bench.settle.bootstrap import Floats

Over = Literal["these orders", "orders like these"]
"""What is estimated: what people would say of all the images at hand, or of such orders at large."""
Drawn = Literal["images", "orders"]
"""What was drawn to be labelled: images one by one, or whole orders."""
TOO_FEW = "too few of the {} that were drawn have labels"


@dataclass(frozen=True)
class PpiEstimate:
    """A weighted mean of labels over all images: with weights 1 a rate, with the images' prices a share of value."""

    estimate: float
    low: float | None
    """None where there are too few labels; `undefined` says so."""
    high: float | None
    level: float
    over: Over
    power: float
    """Lambda of PPI++, in [0, 1]."""
    judge_alone: float
    """The mean of the judge's column over everything, uncorrected: of the probabilities that `settle.acceptance.likely`
    assumes, where that is the column, and not of the run's decisions."""
    weight: float
    """The sum of all weights: the estimate times this is the sum that people would accept."""
    n: int
    n_labelled: int
    n_unpredicted: int
    """Images on which the judge has no word; the mean of its words stands in, which costs precision, not truth."""
    n_unanswered: int
    """Images that people were asked about in vain. The estimate supposes that they are like the answered ones."""
    at_least: float
    """The estimate if all the unanswered were rejected; the estimate itself where there are none."""
    at_most: float
    """The estimate if all the unanswered were accepted."""
    undefined: str | None = None

    def of_weight(self, value: float | None) -> float | None:
        """`estimate`, `low` or another of these figures as a sum, in the weights' unit."""
        return None if value is None else value * self.weight


@dataclass(frozen=True)
class _Table:
    tasks: NDArray[np.intp]
    judge: Floats
    labels: Floats
    """0 where there is none."""
    weights: Floats
    chances: Floats
    answered: NDArray[np.bool_]

    @property
    def pull(self) -> Floats:
        """Each label's weight over the chance that it was drawn; 0 where there is no label."""
        return np.divide(self.weights, self.chances, out=np.zeros(len(self.weights)), where=self.answered)


def prediction_powered(
    tasks: ArrayLike,
    judge: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    probabilities: ArrayLike | None = None,
    asked: ArrayLike | None = None,
    over: Over = "these orders",
    drawn: Drawn = "images",
    power: float | None = None,
    level: float = 0.95,
) -> PpiEstimate:
    """The weighted mean that people's labels would have over all images (PPI++, eqs. 3 and 6, with weights).

    All are (images,): `tasks` numbers the orders, `judge` is its word (a probability or a decision; NaN for none),
    `labels` people's in [0, 1] (NaN for none), `asked` whom they were asked about where that is more than they
    answered. `probabilities` are those with which images came to be asked about, 1 for those that were sure to be;
    left out, all were alike. `power` is tuned to the smallest variance where it is not given.

    The estimate is power x mean(judge) + mean over labels of (label - power x judge), the second mean weighted by
    weight / probability (Hajek). Over orders like these, its variance is that of the orders' contributions
    (cluster-robust); over these orders only the drawing of labels counts, and once everything is labelled nothing is
    open. Ends are by Student's t. Asserts that somebody was asked and that whoever was had a chance.
    """
    word, said = np.asarray(judge, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    answered = ~np.isnan(said)
    wanted = answered if asked is None else np.asarray(asked, dtype=bool) | answered
    assert answered.any(), "nobody has labelled anything"
    chances = (
        np.full(len(word), wanted.mean()) if probabilities is None else np.asarray(probabilities, dtype=np.float64)
    )
    assert ((chances > 0) | ~wanted).all(), "a label of something that could not be drawn"
    known = ~np.isnan(word)
    table = _Table(
        np.asarray(tasks, dtype=np.intp),
        np.where(known, word, np.mean(word[known]) if known.any() else 0.0),
        np.where(answered, said, 0.0),
        np.ones(len(word)) if weights is None else np.asarray(weights, dtype=np.float64),
        _reached(chances, wanted, answered),
        answered,
    )
    labels_part, judge_part, free = _parts(table, over, drawn)
    tuned = power is None
    if power is None:
        spread = float(judge_part @ judge_part)
        power = 0.0 if spread == 0 else min(1.0, max(0.0, -float(labels_part @ judge_part) / spread))
    estimate = _estimate(table, power)
    low, high, undefined = None, None, None
    if over == "these orders" and answered.all():
        low = high = estimate
    elif free - tuned < 2:
        undefined = TOO_FEW.format("orders" if over == "orders like these" else drawn)
    else:
        contributions = labels_part + power * judge_part
        error = np.sqrt(free / (free - 1) * float(contributions @ contributions))
        half = float(stdtrit(free - 1 - tuned, (1 + level) / 2)) * float(error)
        low, high = max(0.0, estimate - half), min(1.0, estimate + half)
    vain = wanted & ~answered
    return PpiEstimate(
        estimate=estimate,
        low=low,
        high=high,
        level=level,
        over=over,
        power=power,
        judge_alone=float(np.average(table.judge, weights=table.weights)),
        weight=float(table.weights.sum()),
        n=len(word),
        n_labelled=int(answered.sum()),
        n_unpredicted=int((~known).sum()),
        n_unanswered=int(vain.sum()),
        at_least=_estimate(_filled(table, vain, chances, 0.0), power),
        at_most=_estimate(_filled(table, vain, chances, 1.0), power),
        undefined=undefined,
    )


def _reached(chances: Floats, wanted: NDArray[np.bool_], answered: NDArray[np.bool_]) -> Floats:
    """The chances that an image was drawn and answered, if of those that were drawn, and of those that were sure to be,
    any was as likely to be answered."""
    reached = chances.copy()
    for alike in (chances >= 1, chances < 1):
        if (alike & wanted).any():
            reached[alike] *= (alike & answered).sum() / (alike & wanted).sum()
    return reached


def _estimate(table: _Table, power: float) -> float:
    pull = table.pull
    corrections = pull @ (table.labels - power * table.judge) / pull.sum()
    return float(power * (table.weights @ table.judge) / table.weights.sum() + corrections)


def _filled(table: _Table, vain: NDArray[np.bool_], chances: Floats, label: float) -> _Table:
    labels = np.where(vain, label, table.labels)
    return _Table(table.tasks, table.judge, labels, table.weights, chances, table.answered | vain)


def _parts(table: _Table, over: Over, drawn: Drawn) -> tuple[Floats, Floats, int]:
    """What each group (order, or image drawn by itself) adds to the estimate's error: the labels' part, the judge's
    part for a power of 1, and how many groups have labels that were left to chance."""
    pull = table.pull / table.pull.sum()
    finite = over == "these orders"
    by_image = finite and drawn == "images"
    groups = np.arange(len(pull)) if by_image else table.tasks
    left_to_chance = np.sqrt(np.maximum(0.0, 1 - table.chances)) if finite else np.ones(len(pull))
    labels = left_to_chance * pull * (table.labels - pull @ table.labels)
    judge = -left_to_chance * pull * (table.judge - pull @ table.judge)
    if not finite:
        share = table.weights / table.weights.sum()
        judge = judge + share * (table.judge - share @ table.judge)
    free = np.unique(groups[table.answered & (left_to_chance > 0)])
    added = [np.asarray(np.bincount(groups, part), dtype=np.float64) for part in (labels, judge)]
    return added[0], added[1], len(free)
