"""Reads the inputs of `settle` from a run's store: outcomes, device time and prices."""

from collections import defaultdict
from dataclasses import dataclass
from fractions import Fraction

import pandas as pd

from local_bench.core.money import MICRO, NS_PER_HOUR
from local_bench.runs.config import RunConfig, SettlementConfig
from local_bench.runs.prices import Price, average, price_of
from local_bench.runs.store import Store
from local_bench.settle.costs import PhaseCost, generation_costs, merged, phase_costs
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


@dataclass(frozen=True)
class Accounting:
    """Revenue and cost of a run."""

    settlements: list[Settlement]
    costs: list[PhaseCost]
    """By phase and model; `cost_micro_usd` is 0 without a price."""
    price: Price | None
    """Of the device, or the average of several devices by their time; None if one has none."""

    @property
    def cost_micro_usd(self) -> int | None:
        return None if self.price is None else sum(row.cost_micro_usd for row in self.costs)

    @property
    def no_cost(self) -> str:
        """Why a model without a cost has none."""
        return "no time was metered for it" if self.price else "the price table has no row for the device"

    def usd_per_hour(self, model: str) -> Fraction | None:
        """The price of a device-hour of this model's own time."""
        if self.price is None or not self.price.parts:
            return None if self.price is None else Fraction(self.price.micro_usd_per_hour, MICRO)
        rows = [row for row in self.costs if row.model == model and row.held_ns]
        held_ns = sum(row.held_ns for row in rows)
        return Fraction(sum(row.cost_micro_usd for row in rows) * NS_PER_HOUR, held_ns * MICRO) if rows else None


def accounting(store: Store, config: SettlementConfig) -> Accounting:
    """Settle the stored results. ConfigError if the price table has no matching row."""
    device_of = {session.session: session.device for session in store.sessions()}
    first = next(iter(device_of.values()), "")
    by_device: dict[str, list[PhaseCost]] = defaultdict(list)
    for row in store.meter():
        time = PhaseCost(row.phase, row.model, row.t1_ns - row.t0_ns, row.n_items, row.energy_mj)
        by_device[device_of[row.session] if config.usd_per_hour is None else first].append(time)
    held: dict[Price | None, list[PhaseCost]] = defaultdict(list)
    for device, times in (by_device or {first: []}).items():
        held[price_of(config, device)] += times
    price = average({of: sum(time.held_ns for time in times) for of, times in held.items()})
    costs = merged(
        cost for of, times in held.items() for cost in phase_costs(times, of.micro_usd_per_hour if price and of else 0)
    )
    by_model: dict[str, int | None] = {**generation_costs(costs)} if price else {}
    return Accounting(settle(deliverables(store), by_model | store.imported_costs()), costs, price)
