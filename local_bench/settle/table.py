"""Outcome tables: counts of accepted, unscored and missing images by model and order, the input of all scenarios.

A cell is one model on one order. Prices and scores are integers of a unit that represents all of them exactly
(invariant 6); results are Fractions of US dollars. An image without a decision (unscored) or without a row (missing)
counts as not accepted, and as accepted in the upper bound of every result (invariant 5).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from functools import cached_property
from itertools import compress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from local_bench.core.money import MICRO, part_of, split
from local_bench.core.types import Decision

Ints = NDArray[Any]
"""int64, or Python integers where int64 would overflow."""
Mask = NDArray[np.bool_]

ACCEPTED, REJECTED, UNSCORED = 1, 0, -1
_SAFE = 2**62
_DENSE = 16
"""Up to this many cells per row a table of all cells is faster than sorting the rows."""


@dataclass(frozen=True)
class Orders:
    """T orders."""

    task_ids: tuple[str, ...]
    categories: tuple[str, ...]
    category: Ints
    """(T,) index into `categories`."""
    price: Ints
    """(T,) price of the whole order, in units."""
    deliverables: Ints
    """(T,) requested images, 1 or more."""
    units_per_usd: int

    @cached_property
    def value_usd(self) -> Fraction:
        """Total value of the orders (ServImage, eq. 5)."""
        return self.value_of(np.ones(len(self.task_ids), dtype=np.bool_))

    def value_of(self, of: Mask) -> Fraction:
        """Value of the orders in a (T,) mask."""
        return Fraction(int(self.price[of].sum()), self.units_per_usd)


def orders(
    task_ids: Sequence[str], category: Sequence[str], price_usd: Sequence[Decimal], deliverables: Sequence[int]
) -> Orders:
    """Build the table of orders, categories sorted by name."""
    names = tuple(sorted(set(category)))
    index = {name: i for i, name in enumerate(names)}
    units_per_usd, prices = whole(price_usd, at_least=MICRO)
    largest = sum(prices) * max(deliverables, default=1)  # largest sum before the division
    return Orders(
        tuple(task_ids),
        names,
        np.array([index[name] for name in category], dtype=np.int64),
        np.array(prices, dtype=np.int64 if largest < _SAFE else object),
        np.array(deliverables, dtype=np.int64),
        units_per_usd,
    )


def whole(amounts: Sequence[Decimal], at_least: int = 1) -> tuple[int, list[int]]:
    """(units, amounts as integers of 1/units), with the smallest power of ten >= `at_least` that is exact for all."""
    finest = max((_decimals(amount) for amount in amounts), default=0)
    units = max(at_least, 10**finest)
    return units, [int(Fraction(amount) * units) for amount in amounts]


def _decimals(amount: Decimal) -> int:
    exponent = amount.normalize().as_tuple().exponent
    assert isinstance(exponent, int), amount
    return max(0, -exponent)


@dataclass(frozen=True)
class OutcomeTable:
    """Counts of images per cell, for M models and T orders."""

    orders: Orders
    models: tuple[str, ...]
    made: Ints
    """(M, T) existing images, decided or not."""
    accepted: Ints
    """(M, T)"""
    unscored: Ints
    """(M, T) existing images without a decision."""
    score: Ints | None = None
    """(M, T) summed scores of the scored images, in integer units; None without scores."""
    rated: Ints | None = None
    """(M, T) scored images."""

    @property
    def missing(self) -> Ints:
        """(M, T) requested images that do not exist: not delivered, or not supported by the model."""
        return self.orders.deliverables - self.made

    @property
    def at_best(self) -> Ints:
        """(M, T) accepted images with all open ones accepted."""
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
    """Sum rows into cells. A row is one image of the first attempt: indices of model and order, ACCEPTED, REJECTED or
    UNSCORED, the summed scores in integer units, and whether it has scores. At most one row per image."""
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


@dataclass(frozen=True, slots=True)
class Line:
    """One deliverable of one order by one model."""

    model: str
    task_id: str
    category: str
    price_micro_usd: int
    """Price of the whole order."""
    deliverable: int
    """From 1."""
    deliverables: int
    """Number of deliverables of the order."""
    decision: Decision
    made: bool = True
    """Whether there is an image; without one the decision is open."""

    @property
    def part_micro_usd(self) -> int:
        """Revenue of this deliverable if accepted."""
        return split(self.price_micro_usd, self.deliverables)[self.deliverable - 1]

    @property
    def revenue_micro_usd(self) -> int:
        return self.part_micro_usd if self.decision.accepted else 0


@dataclass(frozen=True)
class LineTable:
    """Lines as columns, for M models, T orders and N lines."""

    models: tuple[str, ...]
    task_ids: tuple[str, ...]
    """Sorted."""
    category: tuple[str, ...]
    """(T,)"""
    price_micro_usd: Ints
    """(T,) price of the whole order."""
    model: Ints
    """(N,) index into `models`."""
    task: Ints
    """(N,) index into `task_ids`."""
    deliverable: Ints
    """(N,) from 1."""
    deliverables: Ints
    """(N,) number of deliverables of the order for this model."""
    decision: Ints
    """(N,) ACCEPTED, REJECTED or UNSCORED."""
    made: Mask
    """(N,)"""

    @property
    def part_micro_usd(self) -> Ints:
        """(N,) revenue of each deliverable if accepted."""
        return np.asarray(part_of(self.price_micro_usd[self.task], self.deliverables, self.deliverable - 1))

    @cached_property
    def cell(self) -> Ints:
        """(N,) index of each line's model and order: model * T + order."""
        return self.model * len(self.task_ids) + self.task

    def n_per_cell(self, of: Mask) -> Ints:
        """(M, T) numbers of lines in an (N,) mask."""
        shape = len(self.models), len(self.task_ids)
        return np.bincount(self.cell[of], minlength=shape[0] * shape[1]).reshape(shape)

    def per_cell(self, values: Ints, of: Mask) -> Ints:
        """(M, T) exact sums of (N,) values over the lines in an (N,) mask."""
        sums: Ints = np.zeros(len(self.models) * len(self.task_ids), dtype=np.result_type(values.dtype, np.int64))
        np.add.at(sums, self.cell[of], values[of])
        return sums.reshape(len(self.models), len(self.task_ids))


def wide_integers(micro_usd: Sequence[int]) -> Ints:
    """(N,) integers in a type wide enough for their sum."""
    return np.array(micro_usd, dtype=np.int64 if sum(map(abs, micro_usd)) < _SAFE else object)


def line_table(lines: Iterable[Line]) -> LineTable:
    """`lines` as columns, models in order of appearance; the orders' categories and prices are those of their last
    lines."""
    rows = list(lines)
    by_task = {line.task_id: line for line in rows}
    ids = sorted(by_task)
    models = tuple(dict.fromkeys(line.model for line in rows))
    task_index, model_index = ({name: i for i, name in enumerate(names)} for names in (ids, models))
    prices = [by_task[i].price_micro_usd for i in ids]
    codes = {True: ACCEPTED, False: REJECTED, None: UNSCORED}
    return LineTable(
        models,
        tuple(ids),
        tuple(by_task[i].category for i in ids),
        wide_integers(prices),
        np.array([model_index[line.model] for line in rows], dtype=np.int64),
        np.array([task_index[line.task_id] for line in rows], dtype=np.int64),
        np.array([line.deliverable for line in rows], dtype=np.int64),
        np.array([line.deliverables for line in rows], dtype=np.int64),
        np.array([codes[line.decision.accepted] for line in rows], dtype=np.int64),
        np.array([line.made for line in rows], dtype=np.bool_),
    )


def distinct_per_group(group: Ints, value: Ints) -> Ints:
    """(N,) number of distinct values in each row's group; groups and values (N,) are integers from 0."""
    if not len(group):
        return np.empty(0, dtype=np.int64)
    width = int(value.max()) + 1
    if (int(group.max()) + 1) * width <= _DENSE * len(group):
        found = np.zeros((int(group.max()) + 1, width), dtype=np.bool_)
        found[group, value] = True
        return np.asarray(found.sum(axis=1)[group])
    groups, counts = np.unique(np.unique(group * width + value) // width, return_counts=True)
    return np.asarray(counts[np.searchsorted(groups, group)])


def table_of(table: LineTable, scores: Sequence[Decimal | None] | None = None) -> OutcomeTable:
    """Lines of a run as a table, orders and models sorted by name. A line without an image is missing: it does not
    compete and has no cost. `scores` (N,): the summed scores of each line's image, None if one of them is missing."""
    ids, task = np.unique(table.task, return_inverse=True)
    deliverables = np.ones(len(ids), dtype=np.int64)
    deliverables[task] = table.deliverables
    of = orders(
        [table.task_ids[i] for i in ids],
        [table.category[i] for i in ids],
        [Decimal(int(price)) / MICRO for price in table.price_micro_usd[ids]],
        deliverables.tolist(),
    )
    models = sorted({table.models[i] for i in np.unique(table.model)})
    position = np.array([models.index(model) if model in models else -1 for model in table.models], dtype=np.int64)
    sums = None if scores is None else list(compress(scores, table.made))
    return outcome_table(
        of,
        models,
        position[table.model[table.made]],
        task[table.made],
        table.decision[table.made],
        None if sums is None else amounts([x or Decimal(0) for x in sums]),
        None if sums is None else np.array([x is not None for x in sums], dtype=np.bool_),
    )


def amounts(scores: Sequence[Decimal]) -> Ints:
    """Scores as integers of one unit, in a type wide enough for their sum."""
    _, units = whole(scores)
    return wide_integers(units)
