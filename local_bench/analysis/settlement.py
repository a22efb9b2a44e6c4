"""Reads the inputs of `settle` from a run's store: outcomes, device time and prices."""

from dataclasses import dataclass

import pandas as pd

from local_bench.runs.config import RunConfig, SettlementConfig
from local_bench.runs.prices import Price, price_of
from local_bench.runs.store import Store
from local_bench.settle.costs import HeldTime, PhaseCost, generation_costs, phase_costs
from local_bench.settle.settlement import Settlement, settle
from local_bench.suites.registry import suite


def counted_attempt(config: RunConfig) -> int | None:
    """The attempt of each image that the benchmark's tables count: the first, or None for all (HYPE-EDIT-1)."""
    return None if suite(config.suite.name).attempts > 1 else 1


def attempts(store: Store) -> pd.DataFrame:
    """All candidates, by work id: `work_id`, `attempt`, and the columns of `settle`."""
    names = ("work_id", "model", "task_id", "category", "task_price_micro_usd", "deliverable", "attempt", "accepted")
    rows = store.frame("outcomes", [*names, "state"]).rename(columns={"task_price_micro_usd": "price_micro_usd"})
    n = rows.groupby(["model", "task_id"], sort=False)["deliverable"].transform("nunique")
    return rows.assign(deliverables=n.astype("Int64"), made=(rows["state"] == "done").astype(bool))


def deliverables(store: Store) -> pd.DataFrame:
    """As `attempts`, one row per deliverable (its first attempt)."""
    rows = store.once("attempts", lambda: attempts(store))
    return rows[rows["attempt"] == 1]


def held(store: Store) -> list[HeldTime]:
    """All meter rows, in order."""
    return [HeldTime(r.phase, r.model, r.t1_ns - r.t0_ns, r.n_items, r.energy_mj) for r in store.meter()]


@dataclass(frozen=True)
class Accounting:
    """Revenue and cost of a run."""

    settlements: list[Settlement]
    costs: list[PhaseCost]
    """By phase and model; `cost_micro_usd` is 0 without a price."""
    price: Price | None

    @property
    def cost_micro_usd(self) -> int | None:
        return None if self.price is None else sum(row.cost_micro_usd for row in self.costs)


def accounting(store: Store, config: SettlementConfig) -> Accounting:
    """Settle the stored results. ConfigError if the price table has no matching row."""
    sessions = store.sessions()
    price = price_of(config, sessions[0].device if sessions else "")
    costs = phase_costs(held(store), price.micro_usd_per_hour if price else 0)
    by_model: dict[str, int | None] = {**generation_costs(costs)} if price else {}
    return Accounting(settle(deliverables(store), by_model | store.imported_costs()), costs, price)
