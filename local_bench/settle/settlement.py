"""Standard scenario: each model is paid for every order independently (ServImage, sec. 3.1, eq. 1; tables 2, 8).

The price of an order is split equally over its deliverables, and an accepted deliverable earns its part:
V_t = sum_i S_ti p_t / Q_t. Undecided deliverables earn nothing and are counted separately.

The equation is evaluated on two kinds of data: `settle` sums the lines of one run in integer micro-USD (the amounts of
a run partition its prices exactly); `earned` sums tables of outcomes as exact fractions.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from local_bench.settle.intervals import bootstrap_revenues, wilson_clustered
from local_bench.settle.table import Ints, Line, Mask, Orders, OutcomeTable

# ---- one run, in micro-dollars


@dataclass(frozen=True)
class Total:
    """Revenue of one model over a set of orders, with its uncertainty."""

    value_micro_usd: int
    """Value of the orders, unscored ones included."""
    revenue_micro_usd: int
    revenue_interval_micro_usd: tuple[int, int] | None
    """95 % bootstrap over orders; None for fewer than two orders."""
    open_micro_usd: int
    """Value of the unscored deliverables."""
    n_tasks: int
    n_tasks_accepted: int
    """Orders with every deliverable accepted."""
    n_tasks_unscored: int
    """Orders with an undecided deliverable."""
    n: int
    """Decided deliverables."""
    n_accepted: int
    n_unscored: int
    deliverable_acceptance_low: float
    deliverable_acceptance_high: float

    @property
    def share(self) -> float | None:
        """Revenue / value, in [0, 1]; None if the value is 0."""
        return self.revenue_micro_usd / self.value_micro_usd if self.value_micro_usd else None

    @property
    def coverage(self) -> float:
        """Decided share of the value."""
        return 1 - self.open_micro_usd / self.value_micro_usd if self.value_micro_usd else 1.0

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
        return None if self.cost_micro_usd is None else self.total.revenue_micro_usd - self.cost_micro_usd


def settle(
    lines: Iterable[Line], costs_micro_usd: dict[str, int | None], *, intervals: bool = True
) -> list[Settlement]:
    """Standard scenario of every model in `lines`, highest revenue first, then by name. Without `intervals`, the
    revenues have none, which is much faster."""
    by_model: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_model[line.model].append(line)
    groups: dict[tuple[str, str | None], list[Line]] = {}
    for model, mine in by_model.items():
        groups[model, None] = mine
        by_category: dict[str, list[Line]] = defaultdict(list)
        for line in mine:
            by_category[line.category].append(line)
        groups |= {(model, category): by_category[category] for category in sorted(by_category)}
    totals = dict(zip(groups, _totals(list(groups.values()), intervals), strict=True))
    settlements = [
        Settlement(
            model=model,
            total=totals[model, None],
            by_category={c: found for (name, c), found in totals.items() if name == model and c is not None},
            cost_micro_usd=costs_micro_usd.get(model),
        )
        for model in by_model
    ]
    return sorted(settlements, key=lambda s: (-s.total.revenue_micro_usd, s.model))


def _totals(groups: Sequence[Sequence[Line]], intervals: bool) -> list[Total]:
    """Sum each group of lines of one model."""
    by_task: list[list[list[Line]]] = []
    for group in groups:
        tasks: dict[str, list[Line]] = defaultdict(list)
        for line in group:
            tasks[line.task_id].append(line)
        by_task.append([of_task for _, of_task in sorted(tasks.items())])
    earned = [[sum(x.revenue_micro_usd for x in of_task) for of_task in tasks] for tasks in by_task]
    values = [[of_task[0].price_micro_usd for of_task in tasks] for tasks in by_task]
    found = bootstrap_revenues(list(zip(earned, values, strict=True))) if intervals else [None] * len(groups)
    return [_total(*parts) for parts in zip(by_task, earned, values, found, strict=True)]


def _total(
    tasks: Sequence[Sequence[Line]], earned: Sequence[int], values: Sequence[int], interval: tuple[int, int] | None
) -> Total:
    lines = [line for of_task in tasks for line in of_task]
    settled = [x for x in lines if x.decision.accepted is not None]
    passed = [sum(x.decision.accepted is True for x in of_task) for of_task in tasks]
    acceptance_low, acceptance_high = wilson_clustered(passed, [len(of_task) for of_task in tasks])
    return Total(
        value_micro_usd=sum(values),
        revenue_micro_usd=sum(earned),
        revenue_interval_micro_usd=interval,
        open_micro_usd=sum(x.part_micro_usd for x in lines if x.decision.accepted is None),
        n_tasks=len(tasks),
        n_tasks_accepted=sum(all(x.decision.accepted for x in of_task) for of_task in tasks),
        n_tasks_unscored=sum(any(x.decision.accepted is None for x in of_task) for of_task in tasks),
        n=len(settled),
        n_accepted=sum(passed),
        n_unscored=len(lines) - len(settled),
        deliverable_acceptance_low=acceptance_low,
        deliverable_acceptance_high=acceptance_high,
    )


# ---- tables of outcomes, exact


@dataclass(frozen=True)
class Earnings:
    """What one model earned on some orders, all of which count; `_high`: were all open images accepted."""

    value_usd: Fraction
    revenue_usd: Fraction
    revenue_high_usd: Fraction
    n_tasks: int
    n_tasks_accepted: int
    """Orders whose every image was accepted."""
    n_tasks_accepted_high: int
    n_deliverables: int
    n_accepted: int
    n_unscored: int
    n_missing: int

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


def earnings(table: OutcomeTable, of: Mask | None = None) -> list[Earnings]:
    """Earnings of each model on the orders in a (T,) mask (default: all), in table order."""
    asked = table.orders
    mask = np.ones(len(asked.task_ids), dtype=np.bool_) if of is None else of
    revenue = revenue_usd(asked, table.accepted, mask)
    revenue_high = revenue_usd(asked, table.at_best, mask)
    counts = [
        (table.accepted == asked.deliverables)[:, mask].sum(axis=1),
        (table.at_best == asked.deliverables)[:, mask].sum(axis=1),
        table.accepted[:, mask].sum(axis=1),
        table.unscored[:, mask].sum(axis=1),
        table.missing[:, mask].sum(axis=1),
    ]
    value, n_tasks, n_deliverables = asked.worth_usd(mask), int(mask.sum()), int(asked.deliverables[mask].sum())
    result = []
    for m in range(len(table.models)):
        whole, whole_high, accepted, unscored, missing = (int(count[m]) for count in counts)
        result.append(
            Earnings(
                value_usd=value,
                revenue_usd=revenue[m],
                revenue_high_usd=revenue_high[m],
                n_tasks=n_tasks,
                n_tasks_accepted=whole,
                n_tasks_accepted_high=whole_high,
                n_deliverables=n_deliverables,
                n_accepted=accepted,
                n_unscored=unscored,
                n_missing=missing,
            )
        )
    return result


def by_category(table: OutcomeTable) -> dict[str, list[Earnings]]:
    """`earned` by category (table 8)."""
    asked = table.orders
    return {name: earnings(table, asked.category == i) for i, name in enumerate(asked.categories)}


def revenue_usd(of: Orders, accepted: Ints, mask: Mask) -> list[Fraction]:
    """Eq. 1 summed over the orders in `mask`, for every row of an (M, T) table of accepted images."""
    totals = [Fraction(0)] * len(accepted)
    for q in np.unique(of.deliverables[mask]):  # orders with the same number of deliverables share the divisor
        those = mask & (of.deliverables == q)
        sums = accepted[:, those] @ of.price[those]
        totals = [t + Fraction(int(s), int(q) * of.units_per_usd) for t, s in zip(totals, sums, strict=True)]
    return totals


def _ratio(part: Fraction | int, all_of: Fraction | int) -> Fraction | None:
    return Fraction(part) / all_of if all_of else None
