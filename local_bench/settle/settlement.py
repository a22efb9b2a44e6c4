"""Standard scenario: each model is paid for every task independently (ServImage, sec. 3.1, eq. 1; tables 2, 8).

`eq1`: the price of a task is split equally over its deliverables, and an accepted deliverable earns its part:
V_t = sum_i S_ti p_t / Q_t. Undecided deliverables earn nothing and are counted separately.

`as_printed`: what the paper's tables 2, 8 and 9 print, which is not eq. 1 (`AsPrinted`).

Both are evaluated on two kinds of data: `settle` sums the lines of one run in integer micro-USD (the amounts of a run
partition its prices exactly); `earnings` sums tables of outcomes as exact fractions.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import pandas as pd
from numpy.typing import ArrayLike

from local_bench.core.money import MICRO
from local_bench.settle.intervals import amounts, rate_interval, share_interval
from local_bench.settle.table import (
    ACCEPTED,
    UNSCORED,
    Ints,
    Mask,
    OutcomeTable,
    Tasks,
    decisions,
    exact,
    parts_micro_usd,
)


@dataclass(frozen=True)
class AsPrinted:
    """The settlement in the paper's tables 2, 8 and 9: a task is paid in full once every image is accepted and not
    at all before, the share is of the value of all tasks, and the rates are over the tasks and images with a
    decision. The authors' 251 labels of SeedEdit-3.0 give its printed row so, and another one by eq. 1."""

    revenue_usd: Fraction
    share: Fraction | None
    """Revenue / value of all tasks; None if the value is 0."""
    task_acceptance: Fraction | None
    """Fully accepted tasks / tasks with a decided image; None without any."""
    deliverable_acceptance: Fraction | None
    """Accepted / decided images; None without any."""
    n_tasks: int
    """Tasks with a decided image."""
    n_deliverables: int
    """Decided images."""


def as_printed(
    whole_usd: Fraction, value_usd: Fraction, n_tasks_accepted: int, n_tasks: int, n_accepted: int, n: int
) -> AsPrinted:
    """`whole_usd`: the price of the fully accepted tasks; `n_tasks` and `n`: the tasks and images with a decision."""
    rates = _ratio(whole_usd, value_usd), _ratio(n_tasks_accepted, n_tasks), _ratio(n_accepted, n)
    return AsPrinted(whole_usd, *rates, n_tasks, n)


# ---- one run, in micro-dollars


@dataclass(frozen=True)
class Total:
    """Revenue of one model over a set of tasks, with its uncertainty."""

    value_micro_usd: int
    """Value of the tasks, unscored ones included."""
    revenue_micro_usd: int
    revenue_interval_micro_usd: tuple[int, int] | None
    """95 % interval of the share of tasks like these, times `value_micro_usd`; None for fewer than two tasks."""
    open_micro_usd: int
    """Value of the unscored deliverables."""
    whole_micro_usd: int
    """Price of the tasks with every deliverable accepted."""
    n_tasks: int
    n_tasks_accepted: int
    """Tasks with every deliverable accepted."""
    n_tasks_unscored: int
    """Tasks with an undecided deliverable."""
    n_tasks_decided: int
    """Tasks with a decided deliverable."""
    n: int
    """Decided deliverables."""
    n_accepted: int
    n_unscored: int
    deliverable_acceptance_low: float
    deliverable_acceptance_high: float

    @property
    def bounds_micro_usd(self) -> tuple[int, int]:
        """The revenue if no unscored deliverable were accepted, and if all were."""
        return self.revenue_micro_usd, self.revenue_micro_usd + self.open_micro_usd

    @property
    def as_printed(self) -> AsPrinted:
        return as_printed(
            Fraction(self.whole_micro_usd, MICRO),
            Fraction(self.value_micro_usd, MICRO),
            self.n_tasks_accepted,
            self.n_tasks_decided,
            self.n_accepted,
            self.n,
        )

    @property
    def share(self) -> float | None:
        """Revenue / value, in [0, 1]; None if the value is 0."""
        return self.revenue_micro_usd / self.value_micro_usd if self.value_micro_usd else None

    @property
    def coverage(self) -> float:
        """Decided share of the value, or of the deliverables where they have none."""
        if self.value_micro_usd:
            return 1 - self.open_micro_usd / self.value_micro_usd
        return self.n / (self.n + self.n_unscored) if self.n + self.n_unscored else 1.0

    @property
    def deliverable_acceptance(self) -> float | None:
        """Accepted / all deliverables, unscored ones counted as not accepted; None without any."""
        total = self.n + self.n_unscored
        return self.n_accepted / total if total else None

    @property
    def task_acceptance(self) -> float | None:
        return self.n_tasks_accepted / self.n_tasks if self.n_tasks else None


@dataclass(frozen=True)
class Settlement:
    """Standard scenario of one model."""

    model: str
    total: Total
    by_category: dict[str, Total]
    cost_micro_usd: int | None
    """Cost of the devices held to generate the images; None without a price."""

    @property
    def profit_micro_usd(self) -> int | None:
        """Revenue, of the first attempts, minus the cost, of all."""
        return None if self.cost_micro_usd is None else self.total.revenue_micro_usd - self.cost_micro_usd


def settle(
    lines: pd.DataFrame, costs_micro_usd: Mapping[str, int | None], *, intervals: bool = True
) -> list[Settlement]:
    """Standard scenario of every model in `lines`, highest revenue first, then by name. Without `intervals`, the
    revenues have none, which is much faster.

    A row is one deliverable of one task by one model: `model`, `task_id`, `category`, `price_micro_usd` (of the whole
    task), `deliverable` (from 1), `deliverables` (of the task for this model), `accepted` (1, 0, or missing if it is
    undecided) and `made` (whether there is an image).
    """
    task, task_ids = pd.factorize(lines["task_id"], sort=True)
    model, models = pd.factorize(lines["model"], sort=True)
    shape, decision, part = (len(models), len(task_ids)), decisions(lines["accepted"]), parts_micro_usd(lines)
    cell = model * shape[1] + task

    def count(rows: Mask) -> Ints:
        return np.bincount(cell[rows], minlength=shape[0] * shape[1]).reshape(shape)

    def total(rows: Mask) -> Ints:
        sums: Ints = np.zeros(shape[0] * shape[1], dtype=part.dtype)
        np.add.at(sums, cell[rows], part[rows])
        return sums.reshape(shape)

    accepted, unscored = decision == ACCEPTED, decision == UNSCORED
    cells = _Cells(count(np.ones_like(accepted)), count(accepted), count(unscored), total(accepted), total(unscored))
    by_task = lines.drop_duplicates("task_id", keep="last").sort_values("task_id")
    category, names = pd.factorize(by_task["category"], sort=True)
    groups: dict[tuple[int, str | None], Ints] = {}
    for i, n in enumerate(cells.n):
        groups[i, None] = np.flatnonzero(n)
        by_name = {name: np.flatnonzero((n > 0) & (category == k)) for k, name in enumerate(names)}
        groups |= {(i, name): tasks for name, tasks in by_name.items() if len(tasks)}
    totals = dict(zip(groups, _totals(cells, exact(by_task["price_micro_usd"]), groups, intervals), strict=True))
    settlements = [
        Settlement(
            model=name,
            total=totals[i, None],
            by_category={group: sums for (m, group), sums in totals.items() if m == i and group is not None},
            cost_micro_usd=costs_micro_usd.get(name),
        )
        for i, name in enumerate(models)
    ]
    return sorted(settlements, key=lambda s: (-s.total.revenue_micro_usd, s.model))


@dataclass(frozen=True)
class _Cells:
    """Sums over the deliverables of each model and task, each (M, T)."""

    n: Ints
    accepted: Ints
    unscored: Ints
    earned: Ints
    """Micro-USD."""
    open: Ints
    """Micro-USD of the unscored deliverables."""


def _totals(
    cells: _Cells, prices: Ints, groups: Mapping[tuple[int, str | None], Ints], intervals: bool
) -> Iterator[Total]:
    """Sum each group: a model, and the indices of its tasks in order of their ids. `prices`: (T,), micro-USD."""
    for (model, _), tasks in groups.items():
        n, accepted, unscored = (count[model, tasks] for count in (cells.n, cells.accepted, cells.unscored))
        earned, values = cells.earned[model, tasks], prices[tasks]
        acceptance_low, acceptance_high = (intervals and rate_interval(accepted, n)) or (0.0, 1.0)
        yield Total(
            value_micro_usd=int(values.sum()),
            revenue_micro_usd=int(earned.sum()),
            revenue_interval_micro_usd=revenue_interval(earned, values) if intervals else None,
            open_micro_usd=int(cells.open[model, tasks].sum()),
            whole_micro_usd=int(values[accepted == n].sum()),
            n_tasks=len(tasks),
            n_tasks_accepted=int((accepted == n).sum()),
            n_tasks_unscored=int((unscored > 0).sum()),
            n_tasks_decided=int((n > unscored).sum()),
            n=int((n - unscored).sum()),
            n_accepted=int(accepted.sum()),
            n_unscored=int(unscored.sum()),
            deliverable_acceptance_low=acceptance_low,
            deliverable_acceptance_high=acceptance_high,
        )


def revenue_interval(earned: ArrayLike, values: ArrayLike) -> tuple[int, int] | None:
    """`share_interval` in the unit of the values, such as micro-USD, rounded."""
    return amounts(share_interval(earned, values), int(np.asarray(values).sum()))


# ---- tables of outcomes, exact


@dataclass(frozen=True)
class Earnings:
    """What one model earned on some tasks, all of which count; `_high`: were all open images accepted."""

    value_usd: Fraction
    revenue_usd: Fraction
    revenue_high_usd: Fraction
    as_printed: AsPrinted
    n_tasks: int
    n_tasks_accepted: int
    """Tasks whose every image was accepted."""
    n_tasks_accepted_high: int
    n_deliverables: int
    n_accepted: int
    n_unscored: int
    n_missing: int
    share_interval: tuple[float, float] | None
    """95 % interval of the share for tasks like these; None for fewer than two tasks."""
    task_interval: tuple[float, float] | None
    """That of the task acceptance."""

    @property
    def share(self) -> Fraction | None:
        """Revenue / value; None if the value is 0."""
        return _ratio(self.revenue_usd, self.value_usd)

    @property
    def share_high(self) -> Fraction | None:
        return _ratio(self.revenue_high_usd, self.value_usd)

    @property
    def task_acceptance(self) -> Fraction | None:
        return _ratio(self.n_tasks_accepted, self.n_tasks)

    @property
    def task_acceptance_high(self) -> Fraction | None:
        return _ratio(self.n_tasks_accepted_high, self.n_tasks)

    @property
    def deliverable_acceptance(self) -> Fraction | None:
        return _ratio(self.n_accepted, self.n_deliverables)

    @property
    def deliverable_acceptance_high(self) -> Fraction | None:
        return _ratio(self.n_accepted + self.n_unscored + self.n_missing, self.n_deliverables)


def earnings(table: OutcomeTable, mask: Mask | None = None) -> list[Earnings]:
    """Earnings of each model on the tasks in a (T,) mask (default: all), in table order."""
    tasks = table.tasks
    mask = np.ones(len(tasks.task_ids), dtype=np.bool_) if mask is None else mask
    revenue = revenue_usd(tasks, table.accepted, mask)
    revenue_high = revenue_usd(tasks, table.at_best, mask)
    whole = table.accepted == tasks.deliverables
    whole_usd = revenue_usd(tasks, np.where(whole, tasks.deliverables, 0), mask)
    decided = table.made > table.unscored
    counts = [
        whole[:, mask].sum(axis=1),
        (table.at_best == tasks.deliverables)[:, mask].sum(axis=1),
        table.accepted[:, mask].sum(axis=1),
        table.unscored[:, mask].sum(axis=1),
        table.missing[:, mask].sum(axis=1),
        decided[:, mask].sum(axis=1),
    ]
    prices = tasks.price[mask].astype(np.float64)
    parts = (table.accepted / tasks.deliverables)[:, mask].astype(np.float64) * prices
    value, n_tasks, n_deliverables = tasks.value_of(mask), int(mask.sum()), int(tasks.deliverables[mask].sum())
    result = []
    for m in range(len(table.models)):
        n_whole, whole_high, accepted, unscored, missing, n_decided = (int(count[m]) for count in counts)
        labelled = n_deliverables - unscored - missing
        result.append(
            Earnings(
                value_usd=value,
                revenue_usd=revenue[m],
                revenue_high_usd=revenue_high[m],
                as_printed=as_printed(whole_usd[m], value, n_whole, n_decided, accepted, labelled),
                n_tasks=n_tasks,
                n_tasks_accepted=n_whole,
                n_tasks_accepted_high=whole_high,
                n_deliverables=n_deliverables,
                n_accepted=accepted,
                n_unscored=unscored,
                n_missing=missing,
                share_interval=share_interval(parts[m], prices),
                task_interval=rate_interval(whole[m, mask], np.ones(n_tasks)),
            )
        )
    return result


def by_category(table: OutcomeTable) -> dict[str, list[Earnings]]:
    """`earned` by category (table 8)."""
    tasks = table.tasks
    return {name: earnings(table, tasks.category == i) for i, name in enumerate(tasks.categories)}


def revenue_usd(tasks: Tasks, accepted: Ints, mask: Mask) -> list[Fraction]:
    """Eq. 1 summed over the tasks in `mask`, for every row of an (M, T) table of accepted images."""
    totals = [Fraction(0)] * len(accepted)
    for q in np.unique(tasks.deliverables[mask]):  # tasks with the same number of deliverables share the divisor
        those = mask & (tasks.deliverables == q)
        sums = accepted[:, those] @ tasks.price[those]
        totals = [t + Fraction(int(s), int(q) * tasks.units_per_usd) for t, s in zip(totals, sums, strict=True)]
    return totals


def _ratio(part: Fraction | int, all_of: Fraction | int) -> Fraction | None:
    return Fraction(part) / all_of if all_of else None
