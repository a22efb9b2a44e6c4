"""Prediction-powered inference: a judge on all images, annotations on a sample, and a valid interval from both.

Angelopoulos et al., "Prediction-Powered Inference" (2023), and PPI++ (2023) with its power parameter: 0 uses the
annotations alone, 1 the judge corrected by them. The judge may have any bias: its error on the annotated images,
weighted by their inclusion probabilities, is subtracted from its mean over all images.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import stdtrit

from local_bench.settle.bootstrap import Floats

Over = Literal["these orders", "orders like these"]
"""Estimand: the annotations of all images of this run, or of the population of such orders."""
Drawn = Literal["images", "orders"]
"""Sampling unit of the annotations: single images, or whole orders."""
TOO_FEW = "too few of the sampled {} have annotations"


@dataclass(frozen=True)
class PpiEstimate:
    """Weighted mean of annotations over all images: with weights 1 a rate, with prices a share of value."""

    estimate: float
    low: float | None
    """None with too few annotations; `undefined` has the reason."""
    high: float | None
    level: float
    over: Over
    power: float
    """Lambda of PPI++, in [0, 1]."""
    judge_alone: float
    """Uncorrected mean of the judge's column over all images: of the probabilities of `settle.acceptance.likely`, if
    those are the column, not of the run's decisions."""
    weight: float
    """Sum of all weights: estimate x weight is the accepted sum."""
    n: int
    n_labelled: int
    n_unpredicted: int
    """Images without a prediction; the mean prediction is used, which costs precision but adds no bias."""
    n_unanswered: int
    """Sampled images without an annotation. The estimate assumes that they are like the annotated ones."""
    at_least: float
    """Estimate with all unanswered images rejected; equal to the estimate without any."""
    at_most: float
    """Estimate with all unanswered images accepted."""
    undefined: str | None = None

    def of_weight(self, value: float | None) -> float | None:
        """`estimate`, `low` or another of these values as a sum, in the unit of the weights."""
        return None if value is None else value * self.weight


@dataclass(frozen=True)
class _Table:
    tasks: NDArray[np.intp]
    judge: Floats
    labels: Floats
    """0 without an annotation."""
    weights: Floats
    chances: Floats
    answered: NDArray[np.bool_]

    @property
    def label_weights(self) -> Floats:
        """Weight / inclusion probability of each annotation; 0 without one."""
        return np.divide(self.weights, self.chances, out=np.zeros(len(self.weights)), where=self.answered)


def prediction_powered(
    tasks: ArrayLike,
    judge: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    probabilities: ArrayLike | None = None,
    selected: ArrayLike | None = None,
    over: Over = "these orders",
    drawn: Drawn = "images",
    power: float | None = None,
    level: float = 0.95,
) -> PpiEstimate:
    """Estimate the weighted mean of annotations over all images (PPI++, eqs. 3 and 6, with weights).

    All are (images,): `tasks` numbers the orders, `judge` is the prediction (a probability or a decision; NaN for
    none), `labels` the annotations in [0, 1] (NaN for none), `selected` the sampled images if more than were annotated.
    `probabilities` are the inclusion probabilities, 1 for images sampled with certainty; equal for all by default.
    `power` is tuned to the smallest variance by default.

    The estimate is power x mean(judge) + mean over annotations of (label - power x judge), the second mean weighted by
    weight / probability (Hajek). Over orders like these, its variance is that of the orders' contributions
    (cluster-robust); over these orders only the sampling counts, and the interval is a point once everything is
    annotated. The interval uses Student's t. Asserts at least one annotation, and a positive probability for each.
    """
    predictions, given = np.asarray(judge, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    answered = ~np.isnan(given)
    sampled = answered if selected is None else np.asarray(selected, dtype=bool) | answered
    assert answered.any(), "no annotation"
    chances = (
        np.full(len(predictions), sampled.mean())
        if probabilities is None
        else np.asarray(probabilities, dtype=np.float64)
    )
    assert ((chances > 0) | ~sampled).all(), "an annotation with an inclusion probability of 0"
    known = ~np.isnan(predictions)
    table = _Table(
        np.asarray(tasks, dtype=np.intp),
        np.where(known, predictions, np.mean(predictions[known]) if known.any() else 0.0),
        np.where(answered, given, 0.0),
        np.ones(len(predictions)) if weights is None else np.asarray(weights, dtype=np.float64),
        _inclusion_and_response(chances, sampled, answered),
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
    unanswered = sampled & ~answered
    return PpiEstimate(
        estimate=estimate,
        low=low,
        high=high,
        level=level,
        over=over,
        power=power,
        judge_alone=float(np.average(table.judge, weights=table.weights)),
        weight=float(table.weights.sum()),
        n=len(predictions),
        n_labelled=int(answered.sum()),
        n_unpredicted=int((~known).sum()),
        n_unanswered=int(unanswered.sum()),
        at_least=_estimate(_filled(table, unanswered, chances, 0.0), power),
        at_most=_estimate(_filled(table, unanswered, chances, 1.0), power),
        undefined=undefined,
    )


def _inclusion_and_response(chances: Floats, sampled: NDArray[np.bool_], answered: NDArray[np.bool_]) -> Floats:
    """Probability that an image was sampled and answered, with one response rate for images sampled with certainty and
    one for the others."""
    reached = chances.copy()
    for alike in (chances >= 1, chances < 1):
        if (alike & sampled).any():
            reached[alike] *= (alike & answered).sum() / (alike & sampled).sum()
    return reached


def _estimate(table: _Table, power: float) -> float:
    w = table.label_weights
    corrections = w @ (table.labels - power * table.judge) / w.sum()
    return float(power * (table.weights @ table.judge) / table.weights.sum() + corrections)


def _filled(table: _Table, unanswered: NDArray[np.bool_], chances: Floats, label: float) -> _Table:
    labels = np.where(unanswered, label, table.labels)
    return _Table(table.tasks, table.judge, labels, table.weights, chances, table.answered | unanswered)


def _parts(table: _Table, over: Over, drawn: Drawn) -> tuple[Floats, Floats, int]:
    """Contribution of each group (order, or single image) to the error of the estimate: the part of the annotations,
    the part of the judge at power 1, and the number of groups sampled with a probability below 1."""
    w = table.label_weights / table.label_weights.sum()
    finite = over == "these orders"
    by_image = finite and drawn == "images"
    groups = np.arange(len(w)) if by_image else table.tasks
    sampling = np.sqrt(np.maximum(0.0, 1 - table.chances)) if finite else np.ones(len(w))
    labels = sampling * w * (table.labels - w @ table.labels)
    judge = -sampling * w * (table.judge - w @ table.judge)
    if not finite:
        share = table.weights / table.weights.sum()
        judge = judge + share * (table.judge - share @ table.judge)
    free = np.unique(groups[table.answered & (sampling > 0)])
    added = [np.asarray(np.bincount(groups, part), dtype=np.float64) for part in (labels, judge)]
    return added[0], added[1], len(free)
