"""Prediction-powered inference: a judge on all images, annotations on a sample, and a valid interval from both.

Angelopoulos et al., "Prediction-Powered Inference" (2023), and PPI++ (2023) with its power parameter: 0 uses the
annotations alone, 1 the judge corrected by them. The judge may have any bias: its error on the annotated images,
weighted by their inclusion probabilities, is subtracted from its mean over all images.

A judge that errs seldom can have no error among few annotations, which is no evidence that it never errs. The variance
is therefore at least that of annotations with `judged_variance`, and at least that with four more annotations of a
judge that is no better than a guess (as Agresti and Coull 1998); the degrees of freedom are Satterthwaite's (1946).
`benchmarks/coverage.md` has the coverage.

Images are sampled for annotation in rounds. An image's inclusion probability is proportional to its price and to the
uncertainty of the judge (Neyman 1934). The probabilities are reported, so estimates from the annotations are unbiased
whatever the quality of the uncertainty. How often the judge is right is not known before the first annotations: the
first round assumes that it is no better than a guess, and each later one that its errors are like those that the
annotations have shown. Existing annotations count as known. Sampling ends when the interval is narrow enough, whose
variance has a lower limit, so that it does not end by chance with few annotations.
"""

from dataclasses import dataclass, replace
from math import fsum
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri

from local_bench.settle.intervals import LEVEL, Floats, by_content, exact_dot, kish, ratio_and_error, student, wilson

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
        return np.asarray(w / (fsum(w.tolist()) or 1.0), dtype=np.float64)

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
    (labels_part, judge_part), tuned = _errors(table), power is None
    if power is None:
        spread, rounding = exact_dot(judge_part, judge_part), 1e-24 * exact_dot(table.label_share, table.label_share)
        power = min(1.0, max(0.0, -exact_dot(labels_part, judge_part) / spread)) if spread > rounding else 0.0
    if not table.label_share.any():
        power = 1.0  # the annotated images have no weight: the judge alone
    n_free = int((answered & (table.chances < 1)).sum())
    sampling = _sampling(table, labels_part + power * judge_part, n_free - 1 - tuned)
    bounds = table.bounds()
    least, most = bounds if over == "these orders" else (0.0, 1.0)
    unanswered = sampled & ~answered
    filled = replace(table, chances=chances, answered=answered | unanswered)
    tables = (table, *(replace(filled, labels=np.where(unanswered, label, table.labels)) for label in (0.0, 1.0)))
    estimates = (power * exact_dot(each.share, each.judge) + _correction(each, power) for each in tables)
    estimate, at_least, at_most = (min(most, max(least, unclipped)) for unclipped in estimates)
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
        judge_alone=exact_dot(table.share, table.judge),
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
    return exact_dot(table.label_share, table.labels - power * table.judge)


def _errors(table: _Table) -> tuple[Floats, Floats]:
    """Contribution of each image (images,) to the sampling error of the estimate: the part of the annotations, and the
    part of the judge at power 1; 0 for images sampled with certainty."""
    w = table.label_share
    scale = np.sqrt(np.maximum(0.0, 1 - table.chances)) * w
    return scale * (table.labels - exact_dot(w, table.labels)), -scale * (table.judge - exact_dot(w, table.judge))


def _sampling(table: _Table, errors: Floats, most: int) -> tuple[float, float] | None:
    """Sampling variance of the estimate and its degrees of freedom, at most `most`; None for too few annotations
    of images not sampled with certainty, (0, inf) where all images are annotated."""
    if table.answered.all():
        return 0.0, np.inf
    n, parts = np.count_nonzero(table.answered & (table.chances < 1)), (1 - table.chances) * table.label_share**2
    if most < 1 or not parts.any():
        return None
    shown, assumed = n / (n - 1) * exact_dot(errors, errors), exact_dot(parts, judged_variance(table.judge))
    effective = kish(parts)
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


ASSURANCE = 0.8


@dataclass(frozen=True)
class LabelPlan:
    """Images to annotate next."""

    images: NDArray[np.intp]
    """Indices of the images to annotate, ascending; empty once the interval is narrow enough."""
    probabilities: Floats
    """(images,) inclusion probability; 1 for annotated images."""
    width: float
    """Expected width of the interval after this round."""
    n_known: int

    @property
    def n_labels(self) -> int:
        """Number of images to annotate."""
        return len(self.images)


def plan_labels(
    judge: ArrayLike,
    width: float,
    *,
    weights: ArrayLike | None = None,
    labels: ArrayLike | None = None,
    undecided: ArrayLike | None = None,
    seed: int = 0,
) -> LabelPlan:
    """The next round of annotations for an interval no wider than `width` (a fraction of the total weight) over these
    images.

    `judge` (images,) are probabilities of acceptance, NaN for none; `weights` as for `prediction_powered`; `labels`
    the existing annotations, NaN for none. They count as sampled with certainty, as do the `undecided` images (images,)
    that people could not decide and that are not drawn again. Without labels, the sample is the smallest for a variance
    of 1/4; with them, the smallest that reaches the width with probability `ASSURANCE` (Kupper and Hafner 1989) if the
    judge's further errors are like those known. At most all other images.
    """
    assert 0 < width <= 1, width
    predictions = np.asarray(judge, dtype=np.float64)
    value = np.ones(len(predictions)) if weights is None else np.asarray(weights, dtype=np.float64)
    annotations = np.full(len(predictions), np.nan) if labels is None else np.asarray(labels, dtype=np.float64)
    seen = np.zeros(len(predictions), bool) if undecided is None else np.asarray(undecided, bool)
    order = by_content(np.zeros(len(value)), value, predictions, annotations)[0]
    predictions, value, annotations, seen = predictions[order], value[order], annotations[order], seen[order]
    open_ = np.isnan(annotations) & ~seen
    expected, scale = label_variance(predictions, annotations)
    size = value * np.sqrt(expected) * open_
    variance = np.full(len(predictions), GUESS) if open_.all() else expected * max(1.0, scale)

    def width_of(n: int) -> float:
        chances = inclusion(size, n)
        drawn = (chances > 0) & (chances < 1)
        if not drawn.any():
            return 0.0
        free = n - int((chances >= 1).sum()) - 2  # the mean and the power are estimated
        if free < 1:
            return float("inf")
        p, part = chances[drawn], (1 - chances[drawn]) * (value[drawn] / chances[drawn]) ** 2
        parts = exact_dot(p, part)
        effective = parts**2 / exact_dot(p, part**2)
        unlucky = chdtri(free, 1 - ASSURANCE) / free if not open_.all() else 1.0
        error = exact_dot(p * part, variance[drawn]) * unlucky
        error = max(error, with_added(error, effective, parts))
        return float(min(1.0, 2 * student(min(free, effective)) * np.sqrt(error) / value.sum()))

    most = int(np.count_nonzero(size))
    fewest = min(1, most)
    while fewest < most:
        middle = (fewest + most) // 2
        fewest, most = (fewest, middle) if width_of(middle) <= width else (middle + 1, most)
    chances = inclusion(size, fewest)
    images = np.sort(order[systematic(chances, seed)])
    probabilities = np.empty(len(chances))
    probabilities[order] = np.where(open_, chances, 1.0)
    return LabelPlan(images, probabilities, width_of(fewest) if fewest else 0.0, int((~np.isnan(annotations)).sum()))


def label_variance(judge: Floats, labels: Floats) -> tuple[Floats, float]:
    """Assumed variance (images,) of each annotation around the judge's probability (`judged_variance`; `GUESS` without
    one), and the factor by which the squared errors on existing annotations exceed it, with a prior equivalent to about
    six images."""
    predicted = ~np.isnan(judge)
    variances = np.where(predicted, judged_variance(np.where(predicted, judge, 0.5)), GUESS)
    both = predicted & ~np.isnan(labels)
    return variances, float((np.sum((labels[both] - judge[both]) ** 2) + 1) / (np.sum(variances[both]) + 1))


def inclusion(size: Floats, n: int) -> Floats:
    """Inclusion probabilities (images,) proportional to `size`, at most 1, with sum `n`; 0 where the size is 0."""
    chances = np.zeros(len(size))
    rest = size > 0
    assert n <= rest.sum(), n
    left = float(n)
    while left > 0 and rest.any():
        chances[rest] = left * size[rest] / size[rest].sum()
        sure = rest & (chances >= 1 - 1e-9)
        if not sure.any():
            break
        chances[sure] = 1.0
        rest &= ~sure
        left = n - float(np.count_nonzero(chances[~rest] >= 1))
    return chances


def systematic(chances: Floats, seed: int) -> NDArray[np.intp]:
    """Systematic sample in random order (Madow 1949) with the given inclusion probabilities; ascending indices."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.flatnonzero(chances > 0))
    n = round(float(chances.sum()))
    edges = np.cumsum(chances[order])
    marks = rng.random() + np.arange(n)
    drawn = np.minimum(np.searchsorted(edges, marks, side="right"), len(order) - 1)
    return np.sort(order[np.unique(drawn)])
