"""The run's tables for `settle`: its lines, its held time and its prices, read from the ledger."""

from dataclasses import dataclass

from local_bench.core.types import Decision
from local_bench.runs.config import SettlementConfig
from local_bench.runs.ledger import Ledger
from local_bench.runs.prices import Price, price_of
from local_bench.settle.costs import Held, PhaseCost, generation_costs, phase_costs
from local_bench.settle.standard import Line, Settlement, settle

NOT_SETTLED = "it has not been settled"


def lines(ledger: Ledger) -> list[Line]:
    """One line a deliverable (the first attempt of each), in identity order."""
    rows = ledger.rows(
        """SELECT c.model, c.task_id, t.category, t.price_micro_usd, c.deliverable, c.state = 'done' AS made,
           d.accepted, d.unscored,
           (SELECT count(DISTINCT deliverable) FROM candidates
            WHERE task_id = c.task_id AND model = c.model) AS deliverables
           FROM candidates c JOIN tasks t USING (task_id) LEFT JOIN decisions d USING (work_id)
           WHERE c.attempt = 1 ORDER BY c.work_id"""
    )
    return [
        Line(
            model=row["model"],
            task_id=row["task_id"],
            category=row["category"],
            price_micro_usd=row["price_micro_usd"],
            deliverable=row["deliverable"],
            deliverables=row["deliverables"],
            decision=_decision(row["accepted"], row["unscored"]),
            made=bool(row["made"]),
        )
        for row in rows
    ]


def _decision(accepted: int | None, unscored: str | None) -> Decision:
    if accepted is not None:
        return Decision(bool(accepted))
    return Decision(None, unscored or NOT_SETTLED)


def held(ledger: Ledger) -> list[Held]:
    """Every stretch of held time of every session, in order."""
    rows = ledger.rows("SELECT * FROM meter ORDER BY session, t0_ns")
    return [Held(r["phase"], r["model"], r["t1_ns"] - r["t0_ns"], r["n_items"], r["energy_mj"]) for r in rows]


@dataclass(frozen=True)
class Accounting:
    """All the money of a run."""

    settlements: list[Settlement]
    costs: list[PhaseCost]
    """By phase and model; without prices where there is none (`cost_micro_usd` 0)."""
    price: Price | None

    @property
    def cost_micro_usd(self) -> int | None:
        return None if self.price is None else sum(row.cost_micro_usd for row in self.costs)


def accounting(ledger: Ledger, config: SettlementConfig) -> Accounting:
    """Settles what the ledger holds now. ConfigError where the price table has no such row."""
    device = ledger.rows("SELECT device FROM sessions ORDER BY session LIMIT 1")
    price = price_of(config, device[0]["device"] if device else "")
    costs = phase_costs(held(ledger), price.micro_usd_per_hour if price else 0)
    by_model: dict[str, int | None] = {**generation_costs(costs)} if price else {}
    return Accounting(settle(lines(ledger), by_model | imported_costs(ledger)), costs, price)


def imported_costs(ledger: Ledger) -> dict[str, int | None]:
    """What each system's imported pictures cost where they were made; None where nobody says of one of them."""
    rows = ledger.rows(
        """SELECT model, sum(cost_micro_usd) AS cost, count(*) - count(cost_micro_usd) AS untold FROM candidates
           WHERE state = 'done' AND json_extract(work, '$.pixels') IS NOT NULL GROUP BY model"""
    )
    return {row["model"]: None if row["untold"] else row["cost"] for row in rows}
