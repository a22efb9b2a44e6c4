"""What images are expected to earn, by probabilities, and what they have earned, by decisions.

The two are never added or compared unawares: probabilities can only be asked what they expect, decisions only what
they realise, and each answers in its own type. ServImage's Table 9 (sec. G.2) shows why: probabilities cut to yes and
no earn another sum than people paid.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum

import numpy as np
from numpy.typing import NDArray

from local_bench.core.types import Decision
from local_bench.settle.bootstrap import Floats

Micros = NDArray[np.int64]


@dataclass(frozen=True)
class ExpectedRevenue:
    """The sum of probability x price."""

    expected_micro_usd: int
    """To the nearest micro-dollar, over the images that have a probability; the others add nothing."""
    at_most_expected_micro_usd: int
    """With every image without a probability paid in full."""
    n: int
    """Images with a probability."""
    n_unscored: int


@dataclass(frozen=True)
class RealisedRevenue:
    """The sum of the prices of what was accepted; exact."""

    realised_micro_usd: int
    at_most_realised_micro_usd: int
    """With every open image paid in full."""
    n: int
    """Images decided."""
    n_unscored: int


@dataclass(frozen=True)
class Probabilities:
    """How likely each image is to be paid for."""

    values: Floats
    """(images,), in [0, 1]; NaN where there is none."""
    unscored: Mapping[int, str] = field(default_factory=dict)
    """Place -> why there is none."""

    def __post_init__(self) -> None:
        assert set(self.unscored) == set(np.flatnonzero(np.isnan(self.values)).tolist())

    def expected_revenue(self, price_micro_usd: Micros) -> ExpectedRevenue:
        """`price_micro_usd` (images,): what each image pays."""
        known = ~np.isnan(self.values)
        expected = round(fsum((self.values[known] * price_micro_usd[known]).tolist()))
        open_ = int(price_micro_usd[~known].sum())
        return ExpectedRevenue(expected, expected + open_, int(known.sum()), int((~known).sum()))

    def decided(self, cut: float = 0.5) -> "Decisions":
        """Paid for where the probability is at least `cut`."""
        known = ~np.isnan(self.values)
        return Decisions(np.where(known, self.values >= cut, False), known, self.unscored)


@dataclass(frozen=True)
class Decisions:
    """Whether each image is paid for."""

    accepted: NDArray[np.bool_]
    """(images,); False also where nothing was decided."""
    known: NDArray[np.bool_]
    unscored: Mapping[int, str] = field(default_factory=dict)

    @classmethod
    def of(cls, decisions: Sequence[Decision]) -> "Decisions":
        """Those of a table of decisions."""
        return cls(
            np.array([decision.accepted is True for decision in decisions], dtype=bool),
            np.array([decision.accepted is not None for decision in decisions], dtype=bool),
            {i: decision.unscored for i, decision in enumerate(decisions) if decision.unscored is not None},
        )

    def realised_revenue(self, price_micro_usd: Micros) -> RealisedRevenue:
        """`price_micro_usd` (images,): what each image pays."""
        realised = int(price_micro_usd[self.accepted].sum())
        open_ = int(price_micro_usd[~self.known].sum())
        return RealisedRevenue(realised, realised + open_, int(self.known.sum()), int((~self.known).sum()))
