"""The economics section of the report: competition, client savings, workflows, and break-even with API prices."""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import log10

from local_bench.analysis.economics import BreakEven, Economics, economics_of
from local_bench.analysis.sensitivity import Sweep, over_prices, over_thresholds
from local_bench.analysis.settlement import Accounting
from local_bench.analysis.workflows import Workflow, workflow_results
from local_bench.core.money import usd, usd_fine
from local_bench.report.text import NOT_APPLICABLE, percent
from local_bench.runs.rundir import RunDir
from local_bench.settle.break_even import Point, curve
from local_bench.settle.competition import Ranking
from local_bench.settle.savings import ClientSavings
from local_bench.suites.api_prices import api_prices

_MICRO = 1_000_000
_SMALLEST_USD, _LARGEST_USD = Fraction(1, 1_000_000), Fraction(100)
"""Range of the price axis."""


@dataclass(frozen=True)
class ScenarioRow:
    """Competition and savings of one model."""

    model: str
    won: tuple[str, str]
    """Revenue in competition, and its range given undecided images."""
    rank: str
    orders: tuple[str, str]
    """Orders won, and orders shared."""
    cost: str
    savings: str
    contribution: str
    ratio: str
    api: tuple[str, str, str] | None
    """Cost, savings and ratio at an API's price; None if the config has no price for the model."""


@dataclass(frozen=True)
class WayRow:
    """One model in one workflow."""

    model: str
    way: str
    passed: tuple[str, str]
    """Orders passed, and orders passed if all undecided images pass."""
    images: str
    reviews: str
    earned: str
    cost: str
    """Cost of the images used by the workflow."""


@dataclass(frozen=True)
class SweptView:
    """Value for each model over the settings of one assumption."""

    settings: list[str]
    rows: list[tuple[str, list[str]]]
    flips: list[str]
    """One sentence per pair of models whose ranking changes."""


@dataclass(frozen=True)
class BreakEvenRow:
    """Break-even of one model with one API price."""

    model: str
    api: tuple[str, str]
    """Price per image, and name of the API."""
    local: tuple[str, str]
    """Local cost per image: average over the run, and marginal."""
    usd_per_hour: tuple[str, str]
    """Maximum price per GPU-hour for a job of the run's size, and for an unlimited one."""
    images: str


@dataclass(frozen=True)
class CurveView:
    """Cost per image over job size on logarithmic axes, in a 100 by 60 box."""

    model: str
    line: str
    apis: list[tuple[float, str]]
    """Height and text of each API's price line."""
    description: str
    """Text description of the curve."""


@dataclass(frozen=True)
class EconomicsView:
    rows: list[ScenarioRow]
    n_open: int
    """Orders whose winner depends on undecided images."""
    workflow_results: list[WayRow]
    break_even: list[BreakEvenRow]
    curves: list[CurveView]
    thresholds: SweptView | None
    prices: SweptView | None
    source: str
    """Source of the API prices."""


def economics_view(run: RunDir, money: Accounting) -> EconomicsView | None:
    """Build the economics section; None if nothing is settled or all orders have price 0."""
    found = economics_of(run, money)
    if found is None:
        return None
    prices = api_prices("servimage")
    kwh = Fraction(run.config.settlement.usd_per_kwh or 0)
    placed = found.competition.placed
    rows = [
        _scenario(model, placed[model], saved, at_api)
        for model, saved, at_api in zip(found.table.models, found.by_ledger, found.by_api, strict=True)
    ]
    hour = None if money.price is None else Fraction(money.price.micro_usd_per_hour, _MICRO)
    return EconomicsView(
        rows=sorted(rows, key=lambda row: (int(row.rank), row.model)),
        n_open=found.competition.n_open,
        workflow_results=[_way(way) for way in workflow_results(run.store, money)],
        break_even=[_break_even(against, hour) for against in found.against],
        curves=[] if hour is None else _curves(found, hour, kwh),
        thresholds=_swept(over_thresholds(run), lambda value: f"{float(value):.1f}"),
        prices=_swept(over_prices(run, money), _fine),
        source=f"{prices.source}, {prices.date}",
    )


def _swept(found: Sweep | None, description: Callable[[Fraction], str]) -> SweptView | None:
    if found is None or len(found.points) == 0:
        return None
    models = list(found.points[0].values)
    rows = [(model, [_money(point.values[model]) for point in found.points]) for model in models]
    sentences = []
    for flip in found.flips:
        where = ", ".join(description(value) for setting in flip.settings for _, value in setting)
        sentences.append(f"{flip.behind} is ahead of {flip.ahead} at {where}.")
    return SweptView([description(point.setting[0][1]) for point in found.points], rows, sentences)


def _money(amount: Fraction | None) -> str:
    return NOT_APPLICABLE if amount is None else _usd(amount)


def _scenario(model: str, placed: Ranking, saved: ClientSavings, at_api: ClientSavings) -> ScenarioRow:
    low, high = placed.revenue_low_usd, placed.revenue_high_usd
    return ScenarioRow(
        model=model,
        won=(_usd(placed.revenue_usd), "" if low == high else f"{_usd(low)} to {_usd(high)}"),
        rank=str(placed.rank),
        orders=(f"{placed.n_won:,}", f"{placed.n_shared:,} shared" if placed.n_shared else ""),
        cost=_fine(saved.cost_usd),
        savings=_percent(saved.cost_savings),
        contribution=_percent(saved.model_contribution),
        ratio=_ratio(saved.contribution_ratio),
        api=None
        if at_api.cost_usd is None
        else (_fine(at_api.cost_usd), _percent(at_api.cost_savings), _ratio(at_api.contribution_ratio)),
    )


def _way(way: Workflow) -> WayRow:
    worked = way.result
    high = "" if worked.n_passed == worked.n_passed_high else f"{worked.n_passed_high:,} at best"
    return WayRow(
        model=way.model,
        way=worked.way,
        passed=(f"{worked.n_passed:,} of {worked.n_tasks:,}", high),
        images=f"{worked.n_images:,}",
        reviews=f"{worked.n_reviews:,}",
        earned=usd(way.revenue_micro_usd),
        cost=_fine(way.images_usd),
    )


def _ratio(ratio: Fraction | None) -> str:
    return NOT_APPLICABLE if ratio is None else f"{float(ratio):.2f}"


def _break_even(against: BreakEven, hour: Fraction | None) -> BreakEvenRow:
    here = ("no price", "") if hour is None else (_fine(against.usd_here), f"one more {_fine(against.usd_one_more)}")
    return BreakEvenRow(
        model=against.model,
        api=(_fine(against.api_usd), against.api),
        local=here,
        usd_per_hour=(_fine(against.usd_per_hour), f"without end {_fine(against.usd_per_hour_endless)}"),
        images="never" if against.images is None else f"{against.images:,}",
    )


def _curves(found: Economics, hour: Fraction, kwh: Fraction) -> list[CurveView]:
    views = []
    for model, local in found.timed.items():
        levels = [(against.api, against.api_usd) for against in found.against if against.model == model]
        points = curve(local, Fraction(0), hour, kwh)
        views.append(
            CurveView(
                model=model,
                line=" ".join(f"{_across(point):.1f},{_height(point.local_usd):.1f}" for point in points),
                apis=[(_height(price), f"{api} {_fine(price)}") for api, price in levels],
                description=f"{model}: {_fine(points[0].local_usd)} for a single image, "
                f"{_fine(points[-1].local_usd)} for one of {points[-1].images:,}",
            )
        )
    return views


def _across(point: Point) -> float:
    return 20 * log10(point.images)


def _height(price: Fraction) -> float:
    """Map a price to a height: 0 at the top (100 dollars), 60 at the bottom (one micro-dollar)."""
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
