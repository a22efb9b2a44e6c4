"""Outcome tables: counts of accepted, unscored and missing images by model and task, the input of all scenarios.

A cell is one model on one task. Prices and scores are integers of a unit that represents all of them exactly
(invariant 6); results are Fractions of US dollars. An image without a decision (unscored) or without a row (missing)
counts as not accepted, and as accepted in the upper bound of every result (invariant 5).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from itertools import compress
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from local_bench.core.money import MICRO, part_of

Ints = NDArray[Any]
"""int64, or Python integers where int64 would overflow."""
Mask = NDArray[np.bool_]

ACCEPTED, REJECTED, UNSCORED = 1, 0, -1
_SAFE = 2**62
_SCORE_UNITS = 10**9
"""Sums of scores are equal if they are so to a billionth."""


@dataclass(frozen=True)
class Tasks:
    """T tasks."""

    task_ids: tuple[str, ...]
    categories: tuple[str, ...]
    category: Ints
    """(T,) index into `categories`."""
    price: Ints
    """(T,) price of the whole task, in units."""
    deliverables: Ints
    """(T,) requested images, 1 or more."""
    units_per_usd: int

    @property
    def value_usd(self) -> Fraction:
        """Total value of the tasks (ServImage, eq. 5)."""
        return Fraction(int(self.price.sum()), self.units_per_usd)


def tasks_of(
    task_ids: Sequence[str], category: Sequence[str], price_usd: Sequence[Decimal], deliverables: Sequence[int]
) -> Tasks:
    """Build the table of tasks, categories sorted by name."""
    names = tuple(sorted(set(category)))
    index = {name: i for i, name in enumerate(names)}
    units_per_usd, prices = whole(price_usd, at_least=MICRO)
    largest = sum(prices) * max(deliverables, default=1)  # largest sum before the division
    return Tasks(
        tuple(task_ids),
        names,
        np.array([index[name] for name in category], dtype=np.int64),
        np.array(prices, dtype=np.int64 if largest < _SAFE else object),
        np.array(deliverables, dtype=np.int64),
        units_per_usd,
    )


def whole(amounts: Sequence[Decimal], at_least: int = 1) -> tuple[int, list[int]]:
    """(units, amounts as integers of 1/units), with the smallest power of ten >= `at_least` that is exact for all."""
    exponents = [int(amount.normalize().as_tuple().exponent) for amount in amounts]
    units = max(at_least, 10 ** -min([0, *exponents]))
    return units, [int(Fraction(amount) * units) for amount in amounts]


@dataclass(frozen=True)
class OutcomeTable:
    """Counts of images per cell, for M models and T tasks."""

    tasks: Tasks
    models: tuple[str, ...]
    made: Ints
    """(M, T) existing images, decided or not."""
    accepted: Ints
    """(M, T)"""
    unscored: Ints
    """(M, T) existing images without a decision."""
    score: Ints
    """(M, T) summed scores of the scored images, in integer units; 0 without scores."""
    rated: Ints
    """(M, T) scored images; without scores all requested ones, so that no score decides anything."""

    @property
    def missing(self) -> Ints:
        """(M, T) requested images that do not exist: not delivered, or not supported by the model."""
        return self.tasks.deliverables - self.made

    @property
    def at_best(self) -> Ints:
        """(M, T) accepted images with all open ones accepted."""
        return self.accepted + self.unscored + self.missing


def outcome_table(
    tasks: Tasks,
    models: Sequence[str],
    model: Sequence[str],
    task: Sequence[str],
    decision: Ints,
    scores: Sequence[Decimal | None] | None = None,
) -> OutcomeTable:
    """Sum rows into cells. A row is one image of the first attempt: its model and its task, ACCEPTED, REJECTED or
    UNSCORED, and its summed scores, None if it lacks one. At most one row per image."""
    cell, shape = cells_of(tasks, models, model, task), (len(models), len(tasks.task_ids))
    sums: Ints = np.zeros(shape, dtype=np.int64)
    rated: Ints = np.broadcast_to(tasks.deliverables, shape)
    if scores is not None:
        scored = cell[np.array([score is not None for score in scores], dtype=np.bool_)]
        units, wholes = whole([round(score, 12) for score in scores if score is not None])
        step = max(1, units // _SCORE_UNITS)  # 5/3 and 7/3 as written, with 16 digits, are more than 2 and 2
        sums = (cell_sums(scored, shape, exact(wholes)) + step // 2) // step
        rated = cell_sums(scored, shape)
    made, accepted, unscored = (
        cell_sums(rows, shape) for rows in (cell, cell[decision == ACCEPTED], cell[decision == UNSCORED])
    )
    return OutcomeTable(tasks, tuple(models), made, accepted, unscored, sums, rated)


def cells_of(tasks: Tasks, models: Sequence[str], model: Sequence[str], task: Sequence[str]) -> Ints:
    """(N,) the number of each row's cell, m * T + t, of the names of its model and its task."""
    m, t = pd.Index(models).get_indexer(model), pd.Index(tasks.task_ids).get_indexer(task)
    return np.asarray(m * len(tasks.task_ids) + t)


def cell_sums(cell: Ints, shape: tuple[int, int], values: Ints | None = None) -> Ints:
    """(M, T) number of the rows of each cell, or the sum of their values; `cell` (rows,) is m * T + t."""
    if values is None:
        return np.bincount(cell, minlength=shape[0] * shape[1]).reshape(shape)
    sums: Ints = np.zeros(shape[0] * shape[1], dtype=values.dtype)
    np.add.at(sums, cell, values)
    return sums.reshape(shape)


def parts_micro_usd(lines: pd.DataFrame) -> Ints:
    """(N,) revenue of each deliverable if accepted: its share of the price of the task."""
    prices, n = exact(lines["price_micro_usd"]), lines["deliverables"].to_numpy(np.int64)
    return np.asarray(part_of(prices, n, lines["deliverable"].to_numpy(np.int64) - 1))


def decisions(accepted: "pd.Series[Any]") -> Ints:
    """(N,) ACCEPTED, REJECTED or UNSCORED."""
    return np.asarray(accepted.astype("Int64").fillna(UNSCORED).to_numpy(np.int64))


def exact(micro_usd: Iterable[int]) -> Ints:
    """(N,) integers in a type wide enough for their sum."""
    if isinstance(micro_usd, pd.Series) and micro_usd.dtype == "Int64":
        column: Ints = micro_usd.to_numpy(np.int64)
        if len(column) * int(np.abs(column).max(initial=0)) < _SAFE:
            return column
    values = [int(value) for value in micro_usd]
    return np.array(values, dtype=np.int64 if sum(map(abs, values)) < _SAFE else object)


def table_of(lines: pd.DataFrame, scores: Sequence[Decimal | None] | None = None) -> OutcomeTable:
    """Lines of a run (`settle.settlement.settle`) as a table, tasks and models sorted by name. A line without an image
    is missing: it does not compete and has no cost. `scores` (N,): the summed scores of each line's image, None if one
    of them is missing."""
    by_task = lines.drop_duplicates("task_id").sort_values("task_id")
    tasks = tasks_of(
        by_task["task_id"].tolist(),
        by_task["category"].tolist(),
        [Decimal(int(price)) / MICRO for price in by_task["price_micro_usd"]],
        by_task["deliverables"].tolist(),
    )
    has_image = lines["made"].to_numpy(np.bool_)
    made = lines[has_image]
    return outcome_table(
        tasks,
        sorted(lines["model"].unique()),
        made["model"].tolist(),
        made["task_id"].tolist(),
        decisions(made["accepted"]),
        None if scores is None else list(compress(scores, has_image)),
    )
