"""The run in the other scenarios, for people: a competition, what a client saves, and where it meets an API's price."""

from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from math import log10

from local_bench.core.money import usd, usd_fine
from local_bench.report.text import NOT_APPLICABLE, percent
from local_bench.runs.economics import Against, Economics, economics
from local_bench.runs.rundir import RunDir
from local_bench.runs.settlement import Books
from local_bench.settle.break_even import Point, curve
from local_bench.settle.competition import Placed
from local_bench.settle.savings import Saved
from local_bench.suites.api_prices import api_prices

_MICRO = 1_000_000
_SMALLEST_USD, _LARGEST_USD = Fraction(1, 1_000_000), Fraction(100)
"""The ends of the curve's axis of prices."""


@dataclass(frozen=True)
class ScenarioRow:
    """One model among the others, and as a client's first try."""

    model: str
    won: tuple[str, str]
    """Revenue in competition, and between what and what open images leave it."""
    rank: str
    orders: tuple[str, str]
    """Won alone, and shared."""
    cost: str
    savings: str
    contribution: str
    ratio: str


@dataclass(frozen=True)
class BreakEvenRow:
    """One model against one API's price."""

    model: str
    api: tuple[str, str]
    """Its price for an image, and whose it is."""
    local: tuple[str, str]
    """What an image costs here: its part of the run, and one more."""
    usd_per_hour: tuple[str, str]
    """Up to which price of a GPU-hour: a job of the run's size, and an endless one."""
    images: str


@dataclass(frozen=True)
class CurveView:
    """Cost an image over the size of the job, both logarithmic, in a box of 100 by 60."""

    model: str
    line: str
    apis: list[tuple[float, str]]
    """Height of each API's level, and what it says."""
    said: str
    """The same in words."""


@dataclass(frozen=True)
class EconomicsView:
    rows: list[ScenarioRow]
    n_open: int
    """Orders of the competition that open images could still decide."""
    break_even: list[BreakEvenRow]
    curves: list[CurveView]
    source: str
    """Where the APIs' prices are from."""


def economics_view(run: RunDir, money: Books) -> EconomicsView | None:
    """None where nothing is settled yet."""
    if not money.settlements:
        return None
    prices = api_prices("servimage")
    found = economics(run.ledger, money, {}, _few(prices.exact))
    placed = found.competition.placed
    rows = [
        _scenario(model, placed[model], saved) for model, saved in zip(found.sheet.models, found.by_ledger, strict=True)
    ]
    hour = None if money.price is None else Fraction(money.price.micro_usd_per_hour, _MICRO)
    return EconomicsView(
        rows=sorted(rows, key=lambda row: (int(row.rank), row.model)),
        n_open=found.competition.n_open,
        break_even=[_break_even(against, hour) for against in found.against],
        curves=[] if hour is None else _curves(found, hour),
        source=f"{prices.source}, {prices.date}",
    )


def _few(prices: dict[str, Decimal]) -> dict[str, Decimal]:
    """The cheapest, the middle one and the dearest."""
    ordered = sorted(prices, key=lambda api: (prices[api], api))
    return {api: prices[api] for api in (ordered[0], ordered[len(ordered) // 2], ordered[-1])}


def _scenario(model: str, placed: Placed, saved: Saved) -> ScenarioRow:
    low, high = placed.revenue_low_usd, placed.revenue_high_usd
    return ScenarioRow(
        model=model,
        won=(_usd(placed.revenue_usd), "" if low == high else f"{_usd(low)} to {_usd(high)}"),
        rank=str(placed.rank),
        orders=(f"{placed.n_won:,}", f"{placed.n_shared:,} shared" if placed.n_shared else ""),
        cost=_fine(saved.cost_usd),
        savings=_percent(saved.cost_savings),
        contribution=_percent(saved.model_contribution),
        ratio=NOT_APPLICABLE if saved.contribution_ratio is None else f"{float(saved.contribution_ratio):.2f}",
    )


def _break_even(against: Against, hour: Fraction | None) -> BreakEvenRow:
    here = ("no price", "") if hour is None else (_fine(against.usd_here), f"one more {_fine(against.usd_one_more)}")
    return BreakEvenRow(
        model=against.model,
        api=(_fine(against.api_usd), against.api),
        local=here,
        usd_per_hour=(_fine(against.usd_per_hour), f"without end {_fine(against.usd_per_hour_endless)}"),
        images="never" if against.images is None else f"{against.images:,}",
    )


def _curves(found: Economics, hour: Fraction) -> list[CurveView]:
    views = []
    for model, local in found.timed.items():
        levels = [(against.api, against.api_usd) for against in found.against if against.model == model]
        points = curve(local, Fraction(0), hour)
        views.append(
            CurveView(
                model=model,
                line=" ".join(f"{_across(point):.1f},{_height(point.local_usd):.1f}" for point in points),
                apis=[(_height(price), f"{api} {_fine(price)}") for api, price in levels],
                said=f"{model}: {_fine(points[0].local_usd)} for an image alone, {_fine(points[-1].local_usd)} for "
                f"one of {points[-1].images:,}",
            )
        )
    return views


def _across(point: Point) -> float:
    return 20 * log10(point.images)


def _height(price: Fraction) -> float:
    """0 at the top (100 dollars), 60 below (a millionth)."""
    kept = min(max(price, _SMALLEST_USD), _LARGEST_USD)
    return 60 * log10(_LARGEST_USD / kept) / log10(_LARGEST_USD / _SMALLEST_USD)


def _usd(amount: Fraction) -> str:
    return usd(round(amount * _MICRO))


def _fine(amount: Fraction | None) -> str:
    if amount is None:
        return NOT_APPLICABLE
    micro = round(amount * _MICRO)
    return usd(micro) if abs(micro) >= _MICRO else usd_fine(micro)


def _percent(part: Fraction | None) -> str:
    return percent(None if part is None else float(part))
