"""Discrimination (ROC, precision-recall) and calibration of scores and probabilities against acceptance."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from local_bench.settle.intervals import Floats, rate_interval

Bools = NDArray[np.bool_]
EDGES: Floats = np.arange(11) / 10  # of the bins of probabilities; 0.3, 0.6 and 0.7 of np.linspace are above decimals


@dataclass(frozen=True)
class Bin:
    """Images with a value in [low, high); the last bin includes its upper end."""

    low: float
    high: float
    n: int
    mean: float | None
    """Mean value; None for an empty bin, like `rate`."""
    rate: float | None
    """Share accepted."""
    interval: tuple[float, float] | None = None
    """95 % interval of the rate over tasks; None for fewer than two, or where none were given."""


@dataclass(frozen=True)
class Quality:
    """Quality of predicted probabilities on held-out images."""

    n: int
    n_tasks: int
    base_rate: float
    """Share accepted; a constant prediction has an accuracy of max(rate, 1 - rate)."""
    accuracy: float
    """Accuracy of decisions at a probability of 0.5."""
    auc: float | None
    """Area under the ROC curve."""
    pr_auc: float | None
    """Average precision; `base_rate` is the value for random scores."""
    brier: float
    """Mean squared error of the probabilities (Brier 1950); base_rate (1 - base_rate) for a constant."""
    ece: float
    """Expected calibration error, ten bins of equal width (Naeini et al. 2015; Guo et al. 2017)."""
    ece_if_calibrated: float
    """What `ece` would be on average if the probabilities were right: it is not 0, and larger for fewer images."""
    bins: tuple[Bin, ...]


def auc(numbers: Floats, accepted: Bools) -> float | None:
    """Area under the ROC curve; None if all or none are accepted."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(accepted, numbers)) if 0 < accepted.sum() < len(accepted) else None


def pr_auc(numbers: Floats, accepted: Bools) -> float | None:
    """Average precision, the step-wise area under precision over recall; None if all or none are accepted."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(accepted, numbers)) if 0 < accepted.sum() < len(accepted) else None


def brier(probabilities: Floats, accepted: Bools) -> float:
    return float(np.mean((probabilities - accepted) ** 2))


def by_bin(numbers: Floats, accepted: Bools, edges: Floats, tasks: NDArray[np.intp] | None = None) -> tuple[Bin, ...]:
    """Acceptance by bin of a score (ServImage, fig. 3), with intervals if the images' tasks (images,) are given;
    asserts that the edges enclose every score."""
    assert len(numbers) == 0 or (edges[0] <= numbers.min() and numbers.max() <= edges[-1])
    index = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
    bins = []
    for i, (low, high) in enumerate(pairwise(edges)):
        here = index == i
        n = int(here.sum())
        mean, rate = (float(numbers[here].mean()), float(accepted[here].mean())) if n else (None, None)
        ends = None
        if tasks is not None:
            ends = rate_interval(np.bincount(tasks[here], accepted[here]), np.bincount(tasks[here]))
        bins.append(Bin(float(low), float(high), n, mean, rate, ends))
    return tuple(bins)


def ece(bins: tuple[Bin, ...]) -> float:
    """Expected calibration error: mean |mean probability - acceptance rate| over bins, weighted by bin size."""
    n = sum(b.n for b in bins)
    return float(sum(b.n * abs(b.mean - b.rate) for b in bins if b.mean is not None and b.rate is not None) / n)


def ece_if_calibrated(probabilities: Floats, n_draws: int = 1000, seed: int = 0) -> float:
    """Mean expected calibration error of decisions that are drawn from the probabilities (images,)."""
    p = np.sort(probabilities)
    starts = np.searchsorted(p, EDGES[:-1])
    starts = np.unique(starts[starts < len(p)])  # the first image of each bin that has one
    rng = np.random.default_rng(seed)
    sums = [np.abs(np.add.reduceat((rng.random(len(p)) < p) - p, starts)).sum() for _ in range(n_draws)]
    return float(np.mean(sums) / len(p))


def quality(probabilities: Floats, accepted: Bools, tasks: NDArray[np.intp]) -> Quality:
    """Compute all statistics. Asserts at least one image."""
    assert len(accepted)
    bins = by_bin(probabilities, accepted, EDGES)
    return Quality(
        n=len(accepted),
        n_tasks=len(np.unique(tasks)),
        base_rate=float(accepted.mean()),
        accuracy=float(np.mean((probabilities >= 0.5) == accepted)),
        auc=auc(probabilities, accepted),
        pr_auc=pr_auc(probabilities, accepted),
        brier=brier(probabilities, accepted),
        ece=ece(bins),
        ece_if_calibrated=ece_if_calibrated(probabilities),
        bins=bins,
    )
