"""Sample size and sampling of images for annotation, in rounds.

An image's inclusion probability is proportional to its price and to the uncertainty of the judge (Neyman 1934). The
probabilities are reported, so estimates from the annotations are unbiased whatever the quality of the uncertainty. How
often the judge is right is not known before the first annotations: the first round assumes that it is no better than a
guess, and each later one that its errors are like those that the annotations have shown. Existing annotations count as
known. Sampling ends when the interval of `settle.ppi` is narrow enough, whose variance has a lower limit, so that it
does not end by chance with few annotations.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri

from local_bench.settle.bootstrap import by_content
from local_bench.settle.intervals import LEVEL, Floats, student
from local_bench.settle.ppi import GUESS, judged_variance, with_added

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
    level: float = LEVEL,
    assurance: float = ASSURANCE,
    seed: int = 0,
) -> LabelPlan:
    """The next round of annotations for an interval no wider than `width` (a fraction of the total weight) over these
    images.

    `judge` (images,) are probabilities of acceptance, NaN for none; `weights` as for `prediction_powered`; `labels`
    the existing annotations, NaN for none. They count as sampled with certainty, as do the `undecided` images (images,)
    that people could not decide and that are not drawn again. Without labels, the sample is the smallest for a variance
    of 1/4; with them, the smallest that reaches the width with probability `assurance` (Kupper and Hafner 1989) if the
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
        parts, effective = float(p @ part), float((p @ part) ** 2 / (p @ part**2))
        unlucky = chdtri(free, 1 - assurance) / free if not open_.all() else 1.0
        error = float((p * part) @ variance[drawn]) * unlucky
        error = max(error, with_added(error, effective, parts))
        return float(min(1.0, 2 * student(min(free, effective), level) * np.sqrt(error) / value.sum()))

    fewest, most = 0, int(np.count_nonzero(size))
    if most:
        fewest = 1
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
