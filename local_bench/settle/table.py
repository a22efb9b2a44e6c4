"""Who made what of which order, and what its client said: the columns that ServImage's scenarios are settled from.

A cell is one model's work on one order. Prices and scores are whole numbers of a unit that is fine enough for all of
them, so that every sum is exact (law 6); an amount leaves as a Fraction of US dollars. An image without a decision
(unscored) or without a row (missing) counts as not accepted, and the upper end of every figure as accepted (law 5).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from local_bench.core.money import MICRO, split
from local_bench.core.types import Decision

Ints = NDArray[Any]
"""int64, or Python integers where those would overflow."""
Mask = NDArray[np.bool_]

ACCEPTED, REJECTED, UNSCORED = 1, 0, -1
_SAFE = 2**62


@dataclass(frozen=True)
class Orders:
    """What was asked for: T orders."""

    task_ids: tuple[str, ...]
    categories: tuple[str, ...]
    category: Ints
    """(T,) index into `categories`."""
    price: Ints
    """(T,) of the whole order, in units."""
    deliverables: Ints
    """(T,) images asked for, 1 or more."""
    units_per_usd: int

    @cached_property
    def value_usd(self) -> Fraction:
        """What the orders are worth in all (ServImage, eq. 5)."""
        return self.worth_usd(np.ones(len(self.task_ids), dtype=np.bool_))

    def worth_usd(self, of: Mask) -> Fraction:
        """What the orders in a (T,) mask are worth."""
        return Fraction(int(self.price[of].sum()), self.units_per_usd)


def orders(
    task_ids: Sequence[str], category: Sequence[str], price_usd: Sequence[Decimal], deliverables: Sequence[int]
) -> Orders:
    """The table of orders, categories in the order of their names."""
    names = tuple(sorted(set(category)))
    place = {name: i for i, name in enumerate(names)}
    units_per_usd, prices = whole(price_usd, at_least=MICRO)
    room = sum(prices) * max(deliverables, default=1)  # what all accepted images' prices add up to before the division
    return Orders(
        tuple(task_ids),
        names,
        np.array([place[name] for name in category], dtype=np.int64),
        np.array(prices, dtype=np.int64 if room < _SAFE else object),
        np.array(deliverables, dtype=np.int64),
        units_per_usd,
    )


def whole(amounts: Sequence[Decimal], at_least: int = 1) -> tuple[int, list[int]]:
    """(units, the amounts as whole numbers of 1/units): the smallest power of ten from `at_least` on that fits all."""
    finest = max((_places(amount) for amount in amounts), default=0)
    units = max(at_least, 10**finest)
    return units, [int(Fraction(amount) * units) for amount in amounts]


def _places(amount: Decimal) -> int:
    exponent = amount.normalize().as_tuple().exponent
    assert isinstance(exponent, int), amount
    return max(0, -exponent)


@dataclass(frozen=True)
class OutcomeTable:
    """What M models made of the orders: counts of images a cell."""

    orders: Orders
    models: tuple[str, ...]
    made: Ints
    """(M, T) images that there are, decided or not."""
    accepted: Ints
    """(M, T)"""
    unscored: Ints
    """(M, T) images that there are without a decision."""
    score: Ints | None = None
    """(M, T) summed scores of the images that have any, in whole units; None where nobody scored."""
    rated: Ints | None = None
    """(M, T) images that have scores."""

    @property
    def missing(self) -> Ints:
        """(M, T) images asked for that there are not: not delivered, or no kind of work for the model."""
        return self.orders.deliverables - self.made

    @property
    def at_best(self) -> Ints:
        """(M, T) accepted images, were all open ones accepted."""
        return self.accepted + self.unscored + self.missing


def outcome_table(
    of: Orders,
    models: Sequence[str],
    model: Ints,
    task: Ints,
    decision: Ints,
    score: Ints | None = None,
    scored: Mask | None = None,
) -> OutcomeTable:
    """Sums rows (one an image of the first attempt: indices of model and order, ACCEPTED, REJECTED or UNSCORED, the
    summed scores in whole units and whether there are any) into cells. Each image has one row at the most."""
    shape = (len(models), len(of.task_ids))
    cell = model.astype(np.int64) * shape[1] + task

    def count(rows: Ints) -> Ints:
        return np.bincount(rows, minlength=shape[0] * shape[1]).reshape(shape)

    sums, rated = None, None
    if score is not None:
        where = np.ones(len(cell), dtype=np.bool_) if scored is None else scored
        flat: Ints = np.zeros(shape[0] * shape[1], dtype=score.dtype)
        np.add.at(flat, cell[where], score[where])
        sums, rated = flat.reshape(shape), count(cell[where])
    return OutcomeTable(
        of,
        tuple(models),
        count(cell),
        count(cell[decision == ACCEPTED]),
        count(cell[decision == UNSCORED]),
        sums,
        rated,
    )


@dataclass(frozen=True)
class Line:
    """One deliverable of one order as one model made it."""

    model: str
    task_id: str
    category: str
    price_micro_usd: int
    """Of the whole order."""
    deliverable: int
    """From 1."""
    deliverables: int
    """Of the whole order."""
    decision: Decision
    made: bool = True
    """Whether there is an image; without one its decision is open."""

    @property
    def part_micro_usd(self) -> int:
        """What this deliverable pays when it is accepted."""
        return split(self.price_micro_usd, self.deliverables)[self.deliverable - 1]

    @property
    def revenue_micro_usd(self) -> int:
        return self.part_micro_usd if self.decision.accepted else 0


def table_of_lines(lines: Iterable[Line], scores: Mapping[tuple[str, str, int], Decimal] | None = None) -> OutcomeTable:
    """A run's lines as a table: orders and models in the order of their names. A line
    without an image is missing: its model does not compete with it and pays nothing for it.

    `scores`: (model, order, deliverable) -> the image's summed scores; left out for those that have not all of them.
    """
    rows = list(lines)
    asked = {line.task_id: line for line in rows}
    of = orders(
        ids := sorted(asked),
        [asked[i].category for i in ids],
        [Decimal(asked[i].price_micro_usd) / MICRO for i in ids],
        [asked[i].deliverables for i in ids],
    )
    models = sorted({line.model for line in rows})
    place, number = ({name: i for i, name in enumerate(names)} for names in (ids, models))
    said = {True: ACCEPTED, False: REJECTED, None: UNSCORED}
    rows = [line for line in rows if line.made]
    found = [(scores or {}).get((line.model, line.task_id, line.deliverable)) for line in rows]
    return outcome_table(
        of,
        models,
        np.array([number[line.model] for line in rows], dtype=np.int64),
        np.array([place[line.task_id] for line in rows], dtype=np.int64),
        np.array([said[line.decision.accepted] for line in rows], dtype=np.int64),
        None if scores is None else amounts([Decimal(0) if f is None else f for f in found]),
        None if scores is None else np.array([f is not None for f in found], dtype=np.bool_),
    )


def amounts(scores: Sequence[Decimal]) -> Ints:
    """Scores as whole numbers of one unit, wide enough to be summed over a table."""
    _, units = whole(scores)
    return np.array(units, dtype=np.int64 if sum(units) < _SAFE else object)
