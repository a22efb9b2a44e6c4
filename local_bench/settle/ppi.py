"""Prediction-powered inference: a judge on all images, annotations on a sample, and a valid interval from both.

Angelopoulos et al., "Prediction-Powered Inference" (2023), and PPI++ (2023) with its power parameter: 0 uses the
annotations alone, 1 the judge corrected by them. The judge may have any bias: its error on the annotated images,
weighted by their inclusion probabilities, is subtracted from its mean over all images.

A judge that errs seldom can have no error among few annotations, which is no evidence that it never errs. The variance
is therefore at least that of annotations with `judged_variance`, and at least that with four more annotations of a
judge that is no better than a guess (as Agresti and Coull 1998); the degrees of freedom are Satterthwaite's (1946).
`benchmarks/coverage.md` has the coverage.
"""

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from local_bench.settle.bootstrap import by_content
from local_bench.settle.intervals import LEVEL, Floats, kish, ratio_and_error, student, wilson

Over = Literal["these orders", "orders like these"]
"""Estimand: the annotations of all images of this run, or of the population of such tasks."""
TOO_FEW = "fewer than three of the sampled images have annotations"
TOO_FEW_TASKS = "fewer than two orders"
FLOOR = 0.05
"""Smallest assumed variance of an annotation: that of a judge that is right 19 times in 20."""
GUESS = 0.25
"""Variance of an annotation that the judge tells nothing about."""
ADDED = 4
"""Annotations with the variance `GUESS` that are added to those given."""


def with_added(variance: float, n: float, parts: float) -> float:
    """Sampling variance with `ADDED` annotations more than the `n` (effective number) that gave it; `parts` is what it
    would be if the variance of each annotation were 1."""
    return (n * variance + ADDED * GUESS * parts) / (n + ADDED)


def judged_variance(judge: Floats) -> Floats:
    """p (1 - p), at least `FLOOR`: variance (images,) of an annotation with probability p by a calibrated judge."""
    return np.asarray(np.maximum(FLOOR, judge * (1 - judge)), dtype=np.float64)


@dataclass(frozen=True)
class PpiEstimate:
    """Weighted mean of annotations over all images: with weights 1 a rate, with prices a share of value."""

    estimate: float
    """Over these tasks, within the bounds."""
    low: float | None
    """Confidence interval; None where it is undefined, with the reason in `undefined`."""
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
    bound_low: float
    """The mean if everything without an annotation is rejected: certain, not a confidence limit."""
    bound_high: float
    """The same with everything accepted."""
    undefined: str | None = None

    @property
    def width(self) -> float | None:
        """Of the interval."""
        return None if self.low is None or self.high is None else self.high - self.low

    def of_weight(self, value: float | None) -> float | None:
        """`estimate`, `low` or another of these values as a sum, in the unit of the weights."""
        return None if value is None else value * self.weight

    def with_open(self, weight: float) -> "PpiEstimate":
        """With images of this weight in the bounds that nobody can annotate because they do not exist."""
        low, high, total = self.bound_low * self.weight, self.bound_high * self.weight, self.weight + weight
        return replace(self, bound_low=low / total, bound_high=(high + weight) / total)


@dataclass(frozen=True)
class _Table:
    tasks: NDArray[np.intp]
    judge: Floats
    labels: Floats
    """0 without an annotation."""
    share: Floats
    """Weight / sum of the weights."""
    chances: Floats
    answered: NDArray[np.bool_]

    @property
    def label_share(self) -> Floats:
        """Weight / inclusion probability of each annotation, normalised; 0 without one."""
        w = np.divide(self.share, self.chances, out=np.zeros(len(self.share)), where=self.answered)
        return np.asarray(w / (w.sum() or 1.0), dtype=np.float64)

    def bounds(self) -> tuple[float, float]:
        accepted = self.share * self.answered * self.labels
        rejected = self.share * self.answered * (1 - self.labels)
        return float(accepted.sum()), max(float(accepted.sum()), float(1 - rejected.sum()))


def prediction_powered(
    tasks: ArrayLike,
    judge: ArrayLike,
    labels: ArrayLike,
    *,
    weights: ArrayLike | None = None,
    probabilities: ArrayLike | None = None,
    selected: ArrayLike | None = None,
    over: Over = "these orders",
    power: float | None = None,
    level: float = LEVEL,
) -> PpiEstimate:
    """Estimate the weighted mean of annotations over all images (PPI++, eqs. 3 and 6, with weights).

    All are (images,): `tasks` are their tasks, `judge` is the prediction (a probability or a decision; NaN for
    none), `labels` the annotations in [0, 1] (NaN for none), `selected` the sampled images if more than were annotated.
    `probabilities` are the inclusion probabilities, 1 for images sampled with certainty; equal for all by default.
    `power` is tuned to the smallest variance by default.

    The estimate is power x mean(judge) + mean over annotations of (label - power x judge), the second mean weighted by
    weight / probability (Hajek). Over these tasks only the sampling counts; the interval is Student's and lies within
    the bounds, which coincide once everything is annotated. Over tasks like these, it is Wilson's with the jackknife
    over tasks (`settle.intervals`), and equal to `share_interval` once everything is annotated. Asserts at least one
    annotation, and a positive probability for each.
    """
    annotations = np.asarray(labels, dtype=np.float64)
    answered = ~np.isnan(annotations)
    sampled = answered if selected is None else np.asarray(selected, dtype=bool) | answered
    assert answered.any(), "no annotation"
    value = np.ones(len(annotations)) if weights is None else np.asarray(weights, dtype=np.float64)
    chances = (
        np.full(len(annotations), sampled.mean()) if probabilities is None else np.asarray(probabilities, np.float64)
    )
    assert ((chances > 0) | ~sampled).all(), "an annotation with an inclusion probability of 0"
    predictions = np.asarray(judge, dtype=np.float64)
    order, codes = by_content(tasks, predictions, annotations, sampled, value, chances)
    predictions, annotations, value, chances = (column[order] for column in (predictions, annotations, value, chances))
    sampled = sampled[order]
    answered, predicted = ~np.isnan(annotations), ~np.isnan(predictions)
    table = _Table(
        codes,
        np.where(predicted, predictions, np.mean(predictions[predicted]) if predicted.any() else 0.0),
        np.where(answered, annotations, 0.0),
        value / value.sum(),
        _inclusion_and_response(chances, sampled, answered),
        answered,
    )
    labels_part, judge_part = _errors(table)
    tuned = power is None
    if power is None:
        spread = float(judge_part @ judge_part)
        power = min(1.0, max(0.0, -float(labels_part @ judge_part) / spread)) if spread > 0 else 0.0
    if not table.label_share.any():
        power = 1.0  # the annotated images have no weight: the judge alone
    n_free = int((answered & (table.chances < 1)).sum())
    sampling = _sampling(table, labels_part + power * judge_part, n_free - 1 - tuned)
    bounds = table.bounds()
    least, most = bounds if over == "these orders" else (0.0, 1.0)
    unanswered = sampled & ~answered
    tables = (table, *(_filled(table, unanswered, chances, label) for label in (0.0, 1.0)))
    estimate, at_least, at_most = (min(most, max(least, _estimate(filled, power))) for filled in tables)
    undefined = TOO_FEW if sampling is None else None
    low, high = None, None
    if over == "orders like these" and np.count_nonzero(np.bincount(codes, value)) < 2:
        undefined = TOO_FEW_TASKS
    elif sampling is not None and over == "orders like these":
        low, high = _at_large(table, power, *sampling, level)
    elif sampling is not None:
        half = student(sampling[1], level) * sampling[0] ** 0.5 if sampling[0] > 0 else 0.0
        low, high = max(least, estimate - half), min(most, estimate + half)
    return PpiEstimate(
        estimate=estimate,
        low=low,
        high=high,
        level=level,
        over=over,
        power=power,
        judge_alone=float(table.share @ table.judge),
        weight=float(value.sum()),
        n=len(predictions),
        n_labelled=int(answered.sum()),
        n_unpredicted=int((~predicted).sum()),
        n_unanswered=int(unanswered.sum()),
        at_least=at_least,
        at_most=at_most,
        bound_low=bounds[0],
        bound_high=bounds[1],
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


def _correction(table: _Table, power: float) -> float:
    """Weighted mean over the annotations of (label - power x judge)."""
    return float(table.label_share @ (table.labels - power * table.judge))


def _estimate(table: _Table, power: float) -> float:
    return float(power * (table.share @ table.judge)) + _correction(table, power)


def _filled(table: _Table, unanswered: NDArray[np.bool_], chances: Floats, label: float) -> _Table:
    labels = np.where(unanswered, label, table.labels)
    return _Table(table.tasks, table.judge, labels, table.share, chances, table.answered | unanswered)


def _errors(table: _Table) -> tuple[Floats, Floats]:
    """Contribution of each image (images,) to the sampling error of the estimate: the part of the annotations, and the
    part of the judge at power 1; 0 for images sampled with certainty."""
    w = table.label_share
    scale = np.sqrt(np.maximum(0.0, 1 - table.chances)) * w
    return scale * (table.labels - w @ table.labels), -scale * (table.judge - w @ table.judge)


def _sampling(table: _Table, errors: Floats, most: int) -> tuple[float, float] | None:
    """Sampling variance of the estimate and its degrees of freedom, at most `most`; None for too few annotations
    of images not sampled with certainty, (0, inf) where all images are annotated."""
    if table.answered.all():
        return 0.0, np.inf
    n, parts = np.count_nonzero(table.answered & (table.chances < 1)), (1 - table.chances) * table.label_share**2
    if most < 1 or not parts.any():
        return None
    shown, assumed = n / (n - 1) * float(errors @ errors), float(parts @ judged_variance(table.judge))
    effective = float(parts.sum() ** 2 / (parts @ parts))
    variance = max(shown, assumed, with_added(shown, effective, float(parts.sum())))
    return variance, min(float(most), effective)


def _at_large(table: _Table, power: float, variance: float, df: float, level: float) -> tuple[float, float]:
    """Interval over tasks like these. The effective sample size is at most that of the tasks' weights and of the
    annotations together: Kish's for the former, `variance` for the latter."""
    mean = _correction(table, power)
    corrected = table.label_share * (table.labels - power * table.judge - mean)
    earned = table.share * (power * table.judge + mean) + corrected
    by_task = [np.bincount(table.tasks, column) for column in (earned, table.share)]
    share, error = ratio_and_error(*by_task)
    share = min(1.0, max(0.0, share))
    spread, assumed = share * (1 - share), max(FLOOR, share * (1 - share))
    tasks, annotations = 1 / kish(by_task[1][by_task[1] > 0]), variance / assumed
    n = 1 / max(error**2 / spread if spread > 1e-12 and error > 1e-9 else 0.0, tasks + annotations)
    free = np.count_nonzero(by_task[1]) - 1
    together = (tasks + annotations) ** 2 / (tasks**2 / free + annotations**2 / df)
    return wilson(share * n, n, level, student(together, level))
