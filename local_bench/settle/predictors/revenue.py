"""Expected revenue from probabilities, and realised revenue from decisions.

The two have different types, so they are not added or compared by mistake. ServImage's Table 9 (sec. G.2) shows why:
thresholded probabilities give another sum than the annotations.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import fsum

import numpy as np
from numpy.typing import NDArray

from local_bench.settle.intervals import Floats, amounts, share_interval

Micros = NDArray[np.int64]


@dataclass(frozen=True)
class ExpectedRevenue:
    """Sum of probability x price."""

    expected_micro_usd: int
    """To the nearest micro-USD, over the images with a probability; the others add nothing."""
    at_most_expected_micro_usd: int
    """With every image without a probability accepted."""
    n: int
    """Images with a probability."""
    n_unscored: int
    interval_micro_usd: tuple[int, int] | None = None
    """95 % interval over tasks like these, of the images with a probability: of the choice of tasks, not of the
    predictor's fit. None for fewer than two tasks, and where the tasks are not known."""


@dataclass(frozen=True)
class RealisedRevenue:
    """Sum of the prices of the accepted images; exact."""

    realised_micro_usd: int
    at_most_realised_micro_usd: int
    """With every open image accepted."""
    n: int
    """Decided images."""
    n_unscored: int


@dataclass(frozen=True)
class Probabilities:
    """Probability of acceptance of each image."""

    values: Floats
    """(images,), in [0, 1]; NaN if missing."""
    unscored: Mapping[int, str] = field(default_factory=dict)
    """Index -> reason for a missing value."""

    def __post_init__(self) -> None:
        assert set(self.unscored) == set(np.flatnonzero(np.isnan(self.values)).tolist())

    def expected_revenue(self, price_micro_usd: Micros, tasks: NDArray[np.intp] | None = None) -> ExpectedRevenue:
        """`price_micro_usd` (images,): revenue of each image if accepted; `tasks` (images,): its task, from 0."""
        predicted = ~np.isnan(self.values)
        prices = price_micro_usd[predicted]
        earned = self.values[predicted] * prices
        expected = round(fsum(earned.tolist()))
        open_ = int(price_micro_usd[~predicted].sum())
        interval = None
        if tasks is not None:
            predicted_tasks = tasks[predicted]
            earned_whole = np.bincount(predicted_tasks, np.rint(earned))  # whole: in any order
            ends = share_interval(earned_whole, np.bincount(predicted_tasks, prices))
            interval = amounts(ends, int(prices.sum()))
        return ExpectedRevenue(expected, expected + open_, int(predicted.sum()), int((~predicted).sum()), interval)

    def decided(self, cut: float = 0.5) -> "Decisions":
        """Accepted if the probability is at least `cut`."""
        predicted = ~np.isnan(self.values)
        return Decisions(np.where(predicted, self.values >= cut, False), predicted, self.unscored)


@dataclass(frozen=True)
class Decisions:
    """Acceptance of each image."""

    accepted: NDArray[np.bool_]
    """(images,); False also if undecided."""
    known: NDArray[np.bool_]
    unscored: Mapping[int, str] = field(default_factory=dict)

    def realised_revenue(self, price_micro_usd: Micros) -> RealisedRevenue:
        """`price_micro_usd` (images,): revenue of each image if accepted."""
        realised = int(price_micro_usd[self.accepted].sum())
        open_ = int(price_micro_usd[~self.known].sum())
        return RealisedRevenue(realised, realised + open_, int(self.known.sum()), int((~self.known).sum()))
