"""Random worlds with a known truth, shaped like users' data, to measure how often an interval covers it."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

WEIGHTS = np.array([271, 450, 349]) / 1070
"""Shares of ServImage's three categories."""
MEANS = np.array([56.41, 326.65, 380.40])
"""Their mean prices in US dollars."""
SPREAD = 1.2
"""Standard deviation of the logarithm of the price: 1.16, 1.09 and 0.52 in the published categories."""


@dataclass(frozen=True)
class Orders:
    """One model's outcomes on orders, (tasks,) each."""

    price: NDArray[np.float64]
    images: NDArray[np.int64]
    accepted: NDArray[np.int64]
    true_share: float
    true_rate: float


def rates(rate: float) -> NDArray[np.float64]:
    """Acceptance in each category, around the one of the middle category."""
    relative = np.array([1.4, 1.0, 0.8])
    return np.clip(rate * relative if rate <= 0.6 else 1 - (1 - rate) * np.array([0.6, 1, 1.2]), 0, 1)


def orders(
    rng: np.random.Generator, n_tasks: int, rate: float, spread: float = SPREAD, correlation: float = 0.5
) -> Orders:
    """Orders of one to twelve images, whose acceptance is beta-binomial within an order."""
    category = rng.choice(3, size=n_tasks, p=WEIGHTS)
    price = np.exp(rng.normal(0, spread, n_tasks) - spread**2 / 2) * MEANS[category]
    images = np.where(rng.random(n_tasks) < 0.779, 1, 2 + np.minimum(10, rng.geometric(1 / 4.1, n_tasks) - 1))
    by_category = rates(rate)
    k = (1 - correlation) / correlation
    mean = np.clip(by_category[category], 1e-6, 1 - 1e-6)
    accepted = rng.binomial(images, rng.beta(mean * k, (1 - mean) * k))
    true_share = float((WEIGHTS * MEANS * by_category).sum() / (WEIGHTS * MEANS).sum())
    return Orders(price, images, accepted, true_share, float((WEIGHTS * by_category).sum()))


def within(ends: tuple[float | None, float | None] | None, truth: float) -> bool:
    """Whether the interval covers the truth; an interval that is not shown covers nothing."""
    return ends is not None and None not in ends and ends[0] <= truth <= ends[1]  # type: ignore[operator]
