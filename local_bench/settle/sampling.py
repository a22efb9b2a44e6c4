"""Sample size and sampling of images for annotation.

An image's inclusion probability is proportional to its price and to the uncertainty of the judge (Neyman 1934). The
probabilities are reported, so estimates from the annotations are unbiased whatever the quality of the uncertainty.
Existing annotations count as known.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri, stdtrit

from local_bench.settle.bootstrap import Floats

FLOOR = 0.05
"""Smallest assumed variance: that of an accuracy of 19 in 20."""
ASSURANCE = 0.8


@dataclass(frozen=True)
class LabelPlan:
    """Images to annotate next."""

    images: NDArray[np.intp]
    """Indices of the images to annotate, ascending."""
    probabilities: Floats
    """(images,) inclusion probability; 1 for annotated images."""
    width: float
    """Expected width of the interval, with the requested assurance."""
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
    level: float = 0.95,
    assurance: float = ASSURANCE,
    seed: int = 0,
) -> LabelPlan:
    """Smallest sample for an interval no wider than `width` (a fraction of the total weight) over these images.

    `judge` (images,) are probabilities of acceptance, NaN for none; `weights` as for `prediction_powered`; `labels`
    the existing annotations, NaN for none. They count as sampled with certainty, and calibrate the judge's variance.
    `assurance` is the probability that the interval is at most that wide (Kupper and Hafner 1989). At most all images.
    """
    assert 0 < width <= 1, width
    predictions = np.asarray(judge, dtype=np.float64)
    value = np.ones(len(predictions)) if weights is None else np.asarray(weights, dtype=np.float64)
    given = np.full(len(predictions), np.nan) if labels is None else np.asarray(labels, dtype=np.float64)
    open_ = np.isnan(given)
    variance = label_variance(predictions, given)
    size = value * np.sqrt(variance) * open_

    def width_of(n: int) -> float:
        chances = inclusion(size, n)
        drawn = (chances > 0) & (chances < 1)
        if not drawn.any():
            return 0.0
        free = n - int((chances >= 1).sum()) - 2  # the mean and the power are estimated
        if free < 1:
            return float("inf")
        error = np.sum(value[drawn] ** 2 * variance[drawn] * (1 / chances[drawn] - 1))
        unlucky = chdtri(free, 1 - assurance) / free  # the quantile of chi-squared
        return float(2 * stdtrit(free, (1 + level) / 2) * np.sqrt(error * unlucky) / value.sum())

    fewest, most = 0, int(np.count_nonzero(size))
    if most:
        fewest = 1
    while fewest < most:
        middle = (fewest + most) // 2
        fewest, most = (fewest, middle) if width_of(middle) <= width else (middle + 1, most)
    chances = inclusion(size, fewest)
    images = systematic(chances, seed)
    return LabelPlan(images, np.where(open_, chances, 1.0), width_of(fewest) if fewest else 0.0, int((~open_).sum()))


def label_variance(judge: Floats, labels: Floats) -> Floats:
    """Assumed variance (images,) of each annotation around the judge's probability p.

    p (1 - p), at least `FLOOR`, 1/4 without a prediction; scaled by the squared errors on existing annotations, with a
    prior equivalent to about six images.
    """
    known = ~np.isnan(judge)
    p = np.where(known, judge, 0.5)
    own = np.maximum(FLOOR, p * (1 - p))
    both = known & ~np.isnan(labels)
    shown = (np.sum((labels[both] - p[both]) ** 2) + 1) / (np.sum(own[both]) + 1)
    return np.asarray(np.where(known, np.minimum(1.0, own * shown), 0.25), dtype=np.float64)


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
