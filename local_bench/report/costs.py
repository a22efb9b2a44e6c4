"""Cost of the run for display: the price per hour with its source, and the table of phases."""

from dataclasses import dataclass

from local_bench.analysis.settlement import Accounting
from local_bench.core.money import usd_fine
from local_bench.report.text import amount, duration, energy
from local_bench.runs.prices import Price
from local_bench.runs.rundir import RunDir


@dataclass(frozen=True)
class CostRow:
    phase: str
    model: str
    held: str
    items: str
    energy: str
    cost: str


@dataclass(frozen=True)
class CostTable:
    rows: list[CostRow]
    held: str
    energy: str
    cost: str
    off_meter: str | None
    """Held time that is in no row; None if the rows cover all of it."""


def cost_text(price: Price | None, micro: int | None, imported: bool = False) -> str:
    """A cost to the micro-dollar, or why there is none. Imported images have the cost stated at import."""
    if imported:
        return "unknown" if micro is None else usd_fine(micro)
    if price is None:
        return "no price"
    return "not metered" if micro is None else usd_fine(micro)


def price_sentence(price: Price | None) -> str:
    """The source of the price per hour, or a note that there is none."""
    if price is None:
        return (
            "The price table has no row for the device of this run, so what its time cost is not stated; "
            "settlement.usd_per_hour in the config sets a price."
        )
    hour = f"{amount(price.micro_usd_per_hour)} for an hour of {price.gpu}"
    level = "the lab's own price" if price.level == "own" else f"the {price.level} price of the table"
    as_of = f", as of {price.date}" if price.date else ""
    return f"Time is priced at {hour} ({level}; source: {price.source}{as_of})."


def cost_table(run: RunDir, accounting: Accounting) -> CostTable:
    """Held time and cost by phase and model; the rows add up to the sums."""
    rows = [
        CostRow(
            phase=row.phase,
            model=row.model or "whole run",
            held=duration(row.held_ns),
            items=f"{row.n_items:,}",
            energy=energy(row.energy_mj),
            cost=cost_text(accounting.price, row.cost_micro_usd),
        )
        for row in accounting.costs
    ]
    held_ns = sum(row.held_ns for row in accounting.costs)
    sessions_ns = sum(session.held_ns for session in run.store.sessions())
    return CostTable(
        rows=rows,
        held=duration(held_ns),
        energy=_all_energy([row.energy_mj for row in accounting.costs]),
        cost=cost_text(accounting.price, accounting.cost_micro_usd),
        off_meter=duration(sessions_ns - held_ns) if sessions_ns > held_ns else None,
    )


def _all_energy(parts: list[int | None]) -> str:
    known = [part for part in parts if part is not None]
    if not known:
        return energy(None)
    return energy(sum(known)) if len(known) == len(parts) else f"at least {energy(sum(known))}"
