"""Prices of GPU-hours, from the table `configs/prices.yaml` or from the config."""

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from pydantic import Field

from local_bench.core.errors import ConfigError
from local_bench.core.files import config_files
from local_bench.core.money import micro_usd, usd_exact
from local_bench.core.yamlfile import ExactAmount, Strict, load_yaml
from local_bench.models.gpus import best_match
from local_bench.runs.config import SettlementConfig


class PriceRow(Strict):
    """One price of a device type."""

    usd_per_hour: ExactAmount
    source: str
    date: str


class GpuPrices(Strict):
    title: str
    low: PriceRow | None = None
    mid: PriceRow
    high: PriceRow | None = None
    matches: list[str] = Field(default=[])
    """Parts of the device names to which this row applies, in whole words; the longest match of all rows counts."""


class PriceTable(Strict):
    gpus: dict[str, GpuPrices]


@dataclass(frozen=True)
class Price:
    """The price of one device-hour and its source."""

    gpu: str
    level: Literal["low", "mid", "high", "own"]
    micro_usd_per_hour: int
    source: str
    date: str
    parts: tuple["Price", ...] = ()
    """If it is the average of several."""


def average(held_ns: Mapping[Price | None, int]) -> Price | None:
    """The price of an hour of devices that were held for these times; None if one of them has none."""
    prices = [price for price in held_ns if price is not None]
    if len(prices) < 2 or len(prices) < len(held_ns):
        return prices[0] if len(prices) == len(held_ns) else None
    micro = sum(price.micro_usd_per_hour * held_ns[price] for price in prices)
    each = [f"{p.gpu} at {usd_exact(p.micro_usd_per_hour)} ({p.source}, {p.date})" for p in prices]
    return Price(
        " and ".join(price.gpu for price in prices),
        prices[0].level,
        round(Fraction(micro, sum(held_ns.values()) or 1)),
        f"the average by time of {' and '.join(each)}",
        "",
        tuple(prices),
    )


def price_of(config: SettlementConfig, device_name: str) -> Price | None:
    """The price of a device: the config's, else the table's; None if the table has no row for it."""
    if config.usd_per_hour is not None:
        return Price(config.gpu or device_name, "own", micro_usd(config.usd_per_hour), "the run's config", "")
    files = config_files("prices.yaml")
    table: dict[str, GpuPrices] = {}
    for path in files:  # of rows that match a device alike, a lab's own counts
        table = table | {n: row for n, row in load_yaml(path, PriceTable).gpus.items() if n not in table}
    path = files[0]
    if config.gpu is not None and config.gpu not in table:
        raise ConfigError(f"settlement.gpu: {path} has no row {config.gpu!r}, only {', '.join(table)}: choose one")
    gpu = config.gpu or best_match(device_name, {name: row.matches for name, row in table.items()})
    if gpu is None:
        return None
    row: PriceRow | None = getattr(table[gpu], config.price)
    if row is None:
        raise ConfigError(f"settlement.price: {path} has no {config.price!r} price for {gpu}: choose another")
    return Price(gpu, config.price, micro_usd(row.usd_per_hour), row.source, row.date)
