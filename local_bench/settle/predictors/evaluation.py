"""Quality of predicted probabilities with intervals: a percentile cluster bootstrap over tasks (`settle.intervals`).

The expected calibration error has none: it is biased upwards, a resample's is more so, and the interval of a calibrated
predictor would not contain 0.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from local_bench.settle.discrimination import Bools, pr_auc, quality
from local_bench.settle.explain import LEAST_TASKS, auc_interval, resampled_ranking
from local_bench.settle.intervals import Floats, Statistic, by_content, percentile, task_sums

RESAMPLES = 10_000
CUT = 0.5
"""From which probability an image counts as predicted to be paid for."""


@dataclass(frozen=True)
class Measured:
    """A statistic with its 95 % interval over tasks; None if undefined, and for fewer than `LEAST_TASKS` tasks."""

    value: float | None
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Evaluation:
    """Predicted probabilities against decisions on images that were not used in training."""

    n: int
    """Images with a prediction and a decision."""
    n_tasks: int
    n_unpredicted: int
    """Images with a decision and without a prediction."""
    base_rate: float
    """Fraction accepted."""
    accuracy: Measured
    """Of decisions at the cut."""
    balanced_accuracy: Measured
    """Mean of the accuracies among accepted and among rejected images."""
    auc: Measured
    pr_auc: Measured
    brier: Measured
    ece: Measured
    """Expected calibration error over ten bins of equal width; without an interval."""
    ece_if_calibrated: float
    """What `ece` would be on average if the probabilities were right."""
    by_category: dict[str, Measured]
    """Accuracy."""


def evaluate(
    probabilities: Floats, accepted: Bools, tasks: NDArray[np.intp], categories: tuple[str, ...], seed: int = 0
) -> Evaluation | None:
    """Evaluate `probabilities` (images,), NaN where there is none; None if there is none at all."""
    predicted = ~np.isnan(probabilities)
    if not predicted.any():
        return None
    names, category = np.unique(np.asarray(categories, dtype=str)[predicted], return_inverse=True)
    order, codes = by_content(tasks[predicted], probabilities[predicted], accepted[predicted], category)
    p, yes, category = probabilities[predicted][order], accepted[predicted][order], category[order]
    right = (p >= CUT) == yes
    calibration = quality(p, yes, codes)
    columns = np.column_stack([right & yes, right & ~yes, yes, ~yes]).astype(np.float64)
    return Evaluation(
        n=len(p),
        n_tasks=calibration.n_tasks,
        n_unpredicted=int((~predicted).sum()),
        base_rate=calibration.base_rate,
        accuracy=_mean(right, codes, seed),
        balanced_accuracy=_measured(codes, columns, lambda sums: (sums[..., :2] / sums[..., 2:]).mean(axis=-1), seed),
        auc=Measured(calibration.auc, *(auc_interval(p, yes, codes, seed, RESAMPLES) or (None, None))),
        pr_auc=_pr_auc(p, yes, codes, seed),
        brier=_mean((p - yes) ** 2, codes, seed),
        ece=Measured(calibration.ece, None, None),
        ece_if_calibrated=calibration.ece_if_calibrated,
        by_category={
            str(name): _mean(right[category == i], codes[category == i], seed) for i, name in enumerate(names)
        },
    )


def accuracy_difference(
    first: Floats, second: Floats, accepted: Bools, tasks: NDArray[np.intp], seed: int = 0
) -> Measured:
    """Accuracy of `first` less that of `second` (probabilities), on the images for which both predict."""
    predicted = ~np.isnan(first) & ~np.isnan(second)
    yes = accepted[predicted]
    right = [((values[predicted] >= CUT) == yes).astype(np.float64) for values in (first, second)]
    difference = right[0] - right[1]
    order, codes = by_content(tasks[predicted], difference)
    return _mean(difference[order], codes, seed)


def _measured(tasks: NDArray[np.intp], columns: Floats, statistic: Statistic, seed: int) -> Measured:
    """`statistic` of the sums of `columns` (images, columns)."""
    if not len(tasks):
        return Measured(None, None, None)
    codes = np.unique(tasks, return_inverse=True)[1]
    sums = task_sums(codes, columns, int(codes.max()) + 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        value = float(statistic(sums.sum(axis=0)))
    if np.isnan(value) or len(sums) < LEAST_TASKS:
        return Measured(None if np.isnan(value) else value, None, None)
    return Measured(value, *(percentile(sums, statistic, n_resamples=RESAMPLES, seed=seed) or (None, None)))


def _mean(values: Floats | Bools, tasks: NDArray[np.intp], seed: int) -> Measured:
    columns = np.column_stack([values, np.ones(len(values))]).astype(np.float64)
    return _measured(tasks, columns, lambda sums: sums[..., 0] / sums[..., 1], seed)


def _pr_auc(p: Floats, yes: Bools, tasks: NDArray[np.intp], seed: int) -> Measured:
    """Average precision; of each resample from weighted cumulative sums, equal probabilities together."""
    value = pr_auc(p, yes)
    if value is None or len(np.unique(tasks)) < LEAST_TASKS:
        return Measured(value, None, None)
    drawn = []
    for paid, not_paid in resampled_ranking(p, yes, tasks, seed, RESAMPLES):
        hits, n = np.cumsum(paid[::-1]), np.cumsum((paid + not_paid)[::-1])
        precision = np.divide(hits, n, out=np.zeros_like(hits), where=n > 0)
        drawn.append(float((paid[::-1] * precision).sum() / hits[-1]))
    if 2 * len(drawn) < RESAMPLES:
        return Measured(value, None, None)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Measured(value, float(low), float(high))
