"""How many labels an interval of a given width takes, and which images to ask people about next.

An image is drawn the likelier the more it could change the result: by its price, and by how unsure the judge is of it
(Neyman 1934 for a single draw with unequal chances). The chances are told, so that what is estimated from the labels
stays unbiased however good the guess of who is unsure was. What has been labelled already counts as known.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import chdtri, stdtrit

from local_bench.settle.bootstrap import Floats

FLOOR = 0.05
"""The variance that is supposed at least, which is that of being right 19 times of 20."""
ASSURANCE = 0.8


@dataclass(frozen=True)
class LabelPlan:
    """What to ask next."""

    ask: NDArray[np.intp]
    """Places of the images to be labelled, in the order in which they were given."""
    probabilities: Floats
    """(images,): the chance with which each image was to be drawn; 1 for those that have labels already."""
    width: float
    """What the interval's width is to be, as the planner reckons, with the assurance asked for."""
    n_known: int

    @property
    def n_labels(self) -> int:
        """How many more are needed."""
        return len(self.ask)


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
    """The fewest labels for an interval no wider than `width` (a fraction of the whole weight) over these images.

    `judge` (images,) are probabilities of acceptance, NaN where it has no word; `weights` as for
    `prediction_powered`; `labels` those that there are, NaN for none. They are counted as drawn for certain, and say
    how far the judge's own doubt is to be believed. `assurance` is the chance that the interval, which the labels
    decide, is as narrow as that (Kupper and Hafner 1989). Needs no more than to label everything.
    """
    assert 0 < width <= 1, width
    word = np.asarray(judge, dtype=np.float64)
    value = np.ones(len(word)) if weights is None else np.asarray(weights, dtype=np.float64)
    said = np.full(len(word), np.nan) if labels is None else np.asarray(labels, dtype=np.float64)
    open_ = np.isnan(said)
    doubt = doubts(word, said)
    size = value * np.sqrt(doubt) * open_

    def reach(n: int) -> float:
        chances = inclusion(size, n)
        drawn = (chances > 0) & (chances < 1)
        if not drawn.any():
            return 0.0
        free = n - int((chances >= 1).sum()) - 2  # the mean and the power are estimated
        if free < 1:
            return float("inf")
        variance = np.sum(value[drawn] ** 2 * doubt[drawn] * (1 / chances[drawn] - 1))
        unlucky = chdtri(free, 1 - assurance) / free  # the quantile of chi-squared
        return float(2 * stdtrit(free, (1 + level) / 2) * np.sqrt(variance * unlucky) / value.sum())

    fewest, most = 0, int(np.count_nonzero(size))
    if most:
        fewest = 1
    while fewest < most:
        middle = (fewest + most) // 2
        fewest, most = (fewest, middle) if reach(middle) <= width else (middle + 1, most)
    chances = inclusion(size, fewest)
    ask = systematic(chances, seed)
    return LabelPlan(ask, np.where(open_, chances, 1.0), reach(fewest) if fewest else 0.0, int((~open_).sum()))


def doubts(judge: Floats, labels: Floats) -> Floats:
    """The variance (images,) that each label is supposed to have about the judge's word.

    p (1 - p), not below `FLOOR`, 1/4 where the judge has no word; scaled to what the labels there are have shown, with
    some six images' worth of trust beforehand.
    """
    known = ~np.isnan(judge)
    p = np.where(known, judge, 0.5)
    own = np.maximum(FLOOR, p * (1 - p))
    both = known & ~np.isnan(labels)
    shown = (np.sum((labels[both] - p[both]) ** 2) + 1) / (np.sum(own[both]) + 1)
    return np.asarray(np.where(known, np.minimum(1.0, own * shown), 0.25), dtype=np.float64)


def inclusion(size: Floats, n: int) -> Floats:
    """Chances (images,) proportional to `size`, none above 1, that add up to `n`; 0 where the size is."""
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
    """As many places as the chances add up to, each with its own chance: a systematic sample in random order (Madow
    1949); in ascending order."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(np.flatnonzero(chances > 0))
    n = round(float(chances.sum()))
    edges = np.cumsum(chances[order])
    marks = rng.random() + np.arange(n)
    drawn = np.minimum(np.searchsorted(edges, marks, side="right"), len(order) - 1)
    return np.sort(order[np.unique(drawn)])
