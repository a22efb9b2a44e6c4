"""The standard scenario over a whole table, exactly (ServImage, sec. 3.1, eq. 1; its tables 2 and 8).

V_t = sum_i S_ti Price(t) / Q(t). `standard` is the same rule for one run's lines, paid in whole micro-dollars an image.
"""

from dataclasses import dataclass
from fractions import Fraction

import numpy as np

from local_bench.settle.table import Ints, Mask, Orders, OutcomeTable


@dataclass(frozen=True)
class Earned:
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
        """Of the orders' value; None where that is nothing."""
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


def earned(table: OutcomeTable, of: Mask | None = None) -> list[Earned]:
    """Each model's earnings on the orders in a (T,) mask (all without one), in the table's order of models."""
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
            Earned(
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


def by_category(table: OutcomeTable) -> dict[str, list[Earned]]:
    """`earned` on each category's orders (table 8)."""
    asked = table.orders
    return {name: earned(table, asked.category == i) for i, name in enumerate(asked.categories)}


def revenue_usd(of: Orders, accepted: Ints, mask: Mask) -> list[Fraction]:
    """Eq. 1 summed over the orders in `mask`, for every row of an (M, T) table of accepted images."""
    totals = [Fraction(0)] * len(accepted)
    for q in np.unique(of.deliverables[mask]):  # orders of one size divide by the same number
        those = mask & (of.deliverables == q)
        sums = accepted[:, those] @ of.price[those]
        totals = [t + Fraction(int(s), int(q) * of.units_per_usd) for t, s in zip(totals, sums, strict=True)]
    return totals


def _ratio(part: Fraction | int, all_of: Fraction | int) -> Fraction | None:
    return Fraction(part) / all_of if all_of else None
