"""How well a number tells what is paid for from what is not, and how far a probability can be taken at its word."""

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from local_bench.settle.bootstrap import Floats

Bools = NDArray[np.bool_]
BINS = 10


@dataclass(frozen=True)
class Bin:
    """The images whose number lies from `low` to `high`; the lower end belongs to it, and to the last the upper too."""

    low: float
    high: float
    n: int
    mean: float | None
    """Of the number; None for an empty bin, as is `rate`."""
    rate: float | None
    """The part that was accepted."""


@dataclass(frozen=True)
class Quality:
    """How good predicted probabilities are, on images that the predictor had not seen."""

    n: int
    n_tasks: int
    base_rate: float
    """The part that was accepted: who always gives the commoner answer is right in max(rate, 1 - rate)."""
    accuracy: float
    """Of decisions at a probability of one half."""
    auc: float | None
    """Area under the ROC curve: the chance that an accepted image has the higher number, ties half."""
    pr_auc: float | None
    """Average precision; `base_rate` is what guessing gets."""
    brier: float
    """Mean squared error of the probabilities (Brier 1950); base_rate (1 - base_rate) for a constant."""
    ece: float
    """Expected calibration error, ten bins of equal width (Naeini et al. 2015; Guo et al. 2017)."""
    bins: tuple[Bin, ...]


def auc(numbers: Floats, accepted: Bools) -> float | None:
    """Area under the ROC curve; None where all were accepted or none was."""
    from sklearn.metrics import roc_auc_score

    return float(roc_auc_score(accepted, numbers)) if 0 < accepted.sum() < len(accepted) else None


def pr_auc(numbers: Floats, accepted: Bools) -> float | None:
    """Average precision, the step-wise area under precision over recall; None where all were accepted or none was."""
    from sklearn.metrics import average_precision_score

    return float(average_precision_score(accepted, numbers)) if 0 < accepted.sum() < len(accepted) else None


def brier(probabilities: Floats, accepted: Bools) -> float:
    return float(np.mean((probabilities - accepted) ** 2))


def by_bin(numbers: Floats, accepted: Bools, edges: Floats) -> tuple[Bin, ...]:
    """The acceptance by bin of a number (ServImage, fig. 3); asserts that the edges hold every number."""
    assert len(numbers) == 0 or (edges[0] <= numbers.min() and numbers.max() <= edges[-1])
    place = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
    found = []
    for i, (low, high) in enumerate(pairwise(edges)):
        here = place == i
        n = int(here.sum())
        mean, rate = (float(numbers[here].mean()), float(accepted[here].mean())) if n else (None, None)
        found.append(Bin(float(low), float(high), n, mean, rate))
    return tuple(found)


def ece(bins: tuple[Bin, ...]) -> float:
    """The mean distance of what was said from what was so, over bins, by how many are in each."""
    n = sum(b.n for b in bins)
    return float(sum(b.n * abs(b.mean - b.rate) for b in bins if b.mean is not None and b.rate is not None) / n)


def quality(probabilities: Floats, accepted: Bools, tasks: NDArray[np.intp]) -> Quality:
    """All of it. Asserts that there is an image."""
    assert len(accepted)
    bins = by_bin(probabilities, accepted, np.linspace(0, 1, BINS + 1))
    return Quality(
        n=len(accepted),
        n_tasks=len(np.unique(tasks)),
        base_rate=float(accepted.mean()),
        accuracy=float(np.mean((probabilities >= 0.5) == accepted)),
        auc=auc(probabilities, accepted),
        pr_auc=pr_auc(probabilities, accepted),
        brier=brier(probabilities, accepted),
        ece=ece(bins),
        bins=bins,
    )
