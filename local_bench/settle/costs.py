"""Cost of the held devices by phase, from the meter rows (invariant 6)."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from local_bench.core.money import allocate, held_cost


@dataclass(frozen=True)
class HeldTime:
    """One meter row: a period for which a device was held, and its purpose."""

    phase: str
    model: str | None
    """Generator; None for phases that serve the whole run."""
    held_ns: int
    n_items: int
    energy_mj: int | None = None
    """Millijoules from the device's counter; None if it has none."""


@dataclass(frozen=True)
class PhaseCost:
    phase: str
    model: str | None
    held_ns: int
    n_items: int
    energy_mj: int | None
    cost_micro_usd: int


def phase_costs(held: Iterable[HeldTime], micro_usd_per_hour: int) -> list[PhaseCost]:
    """Held time and cost by (phase, model), in order of first appearance; they add up to the totals."""
    groups: dict[tuple[str, str | None], list[HeldTime]] = defaultdict(list)
    for row in held:
        groups[row.phase, row.model].append(row)
    times = [sum(row.held_ns for row in rows) for rows in groups.values()]
    costs = allocate(held_cost(sum(times), micro_usd_per_hour), times)
    return [
        PhaseCost(phase, model, held_ns, sum(r.n_items for r in rows), energy_mj(rows), cost)
        for ((phase, model), rows), held_ns, cost in zip(groups.items(), times, costs, strict=True)
    ]


def merged(parts: Iterable[Sequence[PhaseCost]]) -> list[PhaseCost]:
    """The costs of several devices by (phase, model), in order of first appearance."""
    groups: dict[tuple[str, str | None], list[PhaseCost]] = defaultdict(list)
    for row in (row for part in parts for row in part):
        groups[row.phase, row.model].append(row)
    return [
        PhaseCost(
            *key,
            sum(row.held_ns for row in rows),
            sum(row.n_items for row in rows),
            energy_mj(rows),
            sum(row.cost_micro_usd for row in rows),
        )
        for key, rows in groups.items()
    ]


def energy_mj(rows: Sequence[HeldTime | PhaseCost]) -> int | None:
    """Sum of the energy counters; None if one of the rows has none."""
    measured = [row.energy_mj for row in rows if row.energy_mj is not None]
    return sum(measured) if len(measured) == len(rows) and measured else None


def generation_costs(costs: Iterable[PhaseCost]) -> dict[str, int]:
    """Cost of each generator's own rows; those of judge, metrics and idle time are not included."""
    sums: dict[str, int] = defaultdict(int)
    for row in costs:
        if row.model is not None:
            sums[row.model] += row.cost_micro_usd
    return dict(sums)
