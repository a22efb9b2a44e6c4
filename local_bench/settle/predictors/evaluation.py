"""Quality of predicted probabilities with intervals: a cluster bootstrap over tasks (`settle.bootstrap`)."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from local_bench.settle.bootstrap import Floats, Interval, bootstrap, resampled_counts, task_sums
from local_bench.settle.discrimination import Bools, auc, pr_auc
from local_bench.settle.explain import auc_interval

BINS = 10
RESAMPLES = 1000


@dataclass(frozen=True)
class Measured:
    """A statistic with its 95 % interval; None if undefined."""

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
    """Expected calibration error over ten bins of equal width."""
    by_category: dict[str, Measured]
    """Accuracy."""


def evaluate(
    probabilities: Floats,
    accepted: Bools,
    tasks: NDArray[np.intp],
    categories: tuple[str, ...],
    cut: float = 0.5,
    seed: int = 0,
) -> Evaluation | None:
    """Evaluate `probabilities` (images,), NaN where there is none; None if there is none at all."""
    known = ~np.isnan(probabilities)
    if not known.any():
        return None
    p, yes = probabilities[known], accepted[known]
    names, codes = np.unique(tasks[known], return_inverse=True)
    right = (p >= cut) == yes
    category = np.asarray(categories, dtype=object)[known]
    return Evaluation(
        n=len(p),
        n_tasks=len(names),
        n_unpredicted=int((~known).sum()),
        base_rate=float(yes.mean()),
        accuracy=_rate(right, np.ones(len(p)), codes, seed),
        balanced_accuracy=_balanced(right, yes, codes, seed),
        auc=_auc(p, yes, codes, seed),
        pr_auc=_pr_auc(p, yes, codes, seed),
        brier=_rate((p - yes) ** 2, np.ones(len(p)), codes, seed),
        ece=_ece(p, yes, codes, seed),
        by_category={
            str(name): _rate(right[here], np.ones(int(here.sum())), codes[here], seed)
            for name in sorted(set(category))
            for here in [category == name]
        },
    )


def accuracy_difference(
    first: Floats, second: Floats, accepted: Bools, tasks: NDArray[np.intp], cut: float = 0.5, seed: int = 0
) -> Measured:
    """Accuracy of `first` less that of `second` (probabilities), on the images for which both predict."""
    known = ~np.isnan(first) & ~np.isnan(second)
    yes = accepted[known]
    right = [((of[known] >= cut) == yes).astype(np.float64) for of in (first, second)]
    return _rate(right[0] - right[1], np.ones(int(known.sum())), tasks[known], seed)


def _measured(interval: Interval) -> Measured:
    return Measured(interval.estimate, interval.low, interval.high)


def _sums(tasks: NDArray[np.intp], columns: Floats) -> Floats:
    codes = np.unique(tasks, return_inverse=True)[1]
    return task_sums(codes, columns, int(codes.max()) + 1 if len(codes) else 0)


def _rate(above: Floats | Bools, below: Floats, tasks: NDArray[np.intp], seed: int) -> Measured:
    """sum(above) / sum(below)."""
    if not len(above):
        return Measured(None, None, None)
    sums = _sums(tasks, np.column_stack([above, below]).astype(np.float64))
    (found,) = bootstrap(sums, lambda s: (s[..., 0] / s[..., 1])[..., None], n_resamples=RESAMPLES, seed=seed)
    return _measured(found)


def _balanced(right: Bools, yes: Bools, tasks: NDArray[np.intp], seed: int) -> Measured:
    sums = _sums(tasks, np.column_stack([right & yes, yes, right & ~yes, ~yes]).astype(np.float64))

    def statistic(s: Floats) -> Floats:
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(((s[..., 0] / s[..., 1] + s[..., 2] / s[..., 3]) / 2)[..., None])

    (found,) = bootstrap(sums, statistic, n_resamples=RESAMPLES, seed=seed)
    return _measured(found)


def _auc(p: Floats, yes: Bools, tasks: NDArray[np.intp], seed: int) -> Measured:
    low, high = auc_interval(p, yes, tasks, seed) or (None, None)
    return Measured(auc(p, yes), low, high)


def _pr_auc(p: Floats, yes: Bools, tasks: NDArray[np.intp], seed: int) -> Measured:
    """Average precision; of each resample from weighted cumulative sums, equal probabilities together."""
    value = pr_auc(p, yes)
    if value is None or len(np.unique(tasks)) < 2:
        return Measured(value, None, None)
    order = np.argsort(-p, kind="stable")
    codes, ordered = tasks[order], yes[order]
    last = np.flatnonzero(np.concatenate([np.diff(p[order]) != 0, [True]]))  # of runs of equal probabilities
    drawn = []
    for counts in resampled_counts(int(tasks.max()) + 1, RESAMPLES, seed):
        for count in counts:
            weights = count[codes]
            hits, n = np.cumsum(weights * ordered)[last], np.cumsum(weights)[last]
            if 0 < hits[-1] < n[-1]:
                precision = np.divide(hits, n, out=np.zeros_like(hits), where=n > 0)
                drawn.append(float((np.diff(hits, prepend=0.0) * precision).sum() / hits[-1]))
    if 2 * len(drawn) < RESAMPLES:
        return Measured(value, None, None)
    low, high = np.quantile(drawn, [0.025, 0.975])
    return Measured(value, float(low), float(high))


def _ece(p: Floats, yes: Bools, tasks: NDArray[np.intp], seed: int) -> Measured:
    """Sum over bins of |sum of probabilities - number accepted|, over the number of images."""
    bins = np.clip((p * BINS).astype(int), 0, BINS - 1)
    columns = [(bins == i) * (p - yes) for i in range(BINS)]
    sums = _sums(tasks, np.column_stack([*columns, np.ones(len(p))]).astype(np.float64))
    (found,) = bootstrap(
        sums, lambda s: (np.abs(s[..., :BINS]).sum(axis=-1) / s[..., BINS])[..., None], n_resamples=RESAMPLES, seed=seed
    )
    return _measured(found)
