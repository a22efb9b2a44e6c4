"""The standard scenario: every model works through every order alone (ServImage, sec. 3.1, eq. 1; its Table 2).

An order's price is split equally over its deliverables and a deliverable pays its part when it is accepted:
V_t = sum_i S_ti p_t / Q_t. What could not be settled pays nothing, and is counted as such beside the sum.
Here an image's part is paid in whole micro-dollars; `earnings` has the same rule over whole sheets, as fractions.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from local_bench.core.money import split
from local_bench.core.types import Decision
from local_bench.settle.intervals import bootstrap_revenue, wilson_clustered


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


@dataclass(frozen=True)
class Total:
    """What one model earned over a set of orders, and how sure that is."""

    value_micro_usd: int
    """What the orders are worth in all, unscored ones included."""
    revenue_micro_usd: int
    revenue_interval_micro_usd: tuple[int, int] | None
    """95 % bootstrap over orders; None for fewer than two orders."""
    open_micro_usd: int
    """What the unscored deliverables would add if every one were accepted."""
    n_tasks: int
    n_tasks_accepted: int
    """Orders with every deliverable accepted."""
    n_tasks_unscored: int
    """Orders with a deliverable that could not be settled."""
    n: int
    """Deliverables settled."""
    n_accepted: int
    n_unscored: int
    deliverable_acceptance_low: float
    deliverable_acceptance_high: float

    @property
    def share(self) -> float | None:
        """Of the orders' whole value, in [0, 1]; None where that is nothing."""
        return self.revenue_micro_usd / self.value_micro_usd if self.value_micro_usd else None

    @property
    def coverage(self) -> float:
        """The part of the orders' value that could be settled."""
        return 1 - self.open_micro_usd / self.value_micro_usd if self.value_micro_usd else 1.0

    @property
    def deliverable_acceptance(self) -> float | None:
        """Accepted of all deliverables, unscored ones counted as not accepted; None where there are none."""
        total = self.n + self.n_unscored
        return self.n_accepted / total if total else None

    @property
    def task_acceptance(self) -> float | None:
        return self.n_tasks_accepted / self.n_tasks if self.n_tasks else None


@dataclass(frozen=True)
class Settlement:
    """The standard scenario for one model."""

    model: str
    total: Total
    by_category: dict[str, Total]
    cost_micro_usd: int | None
    """What making the images cost on the devices held for it; None where there is no price."""

    @property
    def profit_micro_usd(self) -> int | None:
        return None if self.cost_micro_usd is None else self.total.revenue_micro_usd - self.cost_micro_usd


def total(lines: Sequence[Line]) -> Total:
    """One model's lines, summed."""
    tasks: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        tasks[line.task_id].append(line)
    earned = [sum(x.revenue_micro_usd for x in group) for _, group in sorted(tasks.items())]
    values = [group[0].price_micro_usd for _, group in sorted(tasks.items())]
    settled = [x for x in lines if x.decision.accepted is not None]
    accepted = sum(x.decision.accepted is True for x in settled)
    passed = [sum(x.decision.accepted is True for x in group) for group in tasks.values()]
    acceptance_low, acceptance_high = wilson_clustered(passed, [len(group) for group in tasks.values()])
    return Total(
        value_micro_usd=sum(values),
        revenue_micro_usd=sum(earned),
        revenue_interval_micro_usd=bootstrap_revenue(earned, values),
        open_micro_usd=sum(x.part_micro_usd for x in lines if x.decision.accepted is None),
        n_tasks=len(tasks),
        n_tasks_accepted=sum(all(x.decision.accepted for x in group) for group in tasks.values()),
        n_tasks_unscored=sum(any(x.decision.accepted is None for x in group) for group in tasks.values()),
        n=len(settled),
        n_accepted=accepted,
        n_unscored=len(lines) - len(settled),
        deliverable_acceptance_low=acceptance_low,
        deliverable_acceptance_high=acceptance_high,
    )


def settle(lines: Iterable[Line], costs_micro_usd: dict[str, int | None]) -> list[Settlement]:
    """The standard scenario for every model in `lines`, the highest revenue first (then by name)."""
    by_model: dict[str, list[Line]] = defaultdict(list)
    for line in lines:
        by_model[line.model].append(line)
    settlements = []
    for model, mine in by_model.items():
        categories = sorted({x.category for x in mine})
        settlements.append(
            Settlement(
                model=model,
                total=total(mine),
                by_category={c: total([x for x in mine if x.category == c]) for c in categories},
                cost_micro_usd=costs_micro_usd.get(model),
            )
        )
    return sorted(settlements, key=lambda s: (-s.total.revenue_micro_usd, s.model))
