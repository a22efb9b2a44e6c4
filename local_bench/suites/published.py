"""A benchmark's published statistics and sensitivity grids, as data and as tables, and the API prices per image that
the benchmarks' papers assume (`configs/api_prices.yaml`).
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from local_bench.core.errors import ConfigError
from local_bench.core.files import config_files
from local_bench.core.table import Column, Table, table_of
from local_bench.core.yamlfile import Amount, Strict, load_yaml
from local_bench.settle.sensitivity import Flip, Point, Setting
from local_bench.settle.settlement import AsPrinted
from local_bench.suites.task_files import read_costs


@dataclass(frozen=True)
class Published:
    """A benchmark's statistics."""

    data: dict[str, Any]
    """JSON data: the names of the output contract, with counts and bounds."""
    tables: list[Table]
    notes: list[str] = field(default_factory=list)
    """Missing, undecided or omitted data: one sentence each."""


@dataclass(frozen=True)
class ScoreOptions:
    """The options of `local-bench score` by their names; None: not given."""

    tasks: Path | None = None
    scores: Path | None = None
    costs: Path | None = None
    api_prices: bool | None = None
    sensitivity: bool | None = None
    require_success: bool | None = None
    review_usd_per_hour: str | None = None
    review_seconds: str | None = None
    retry_cap: int | None = None
    raters: bool | None = None


def number(value: Fraction | float | None) -> float | None:
    """JSON number: the nearest float, null for None."""
    return None if value is None else float(value)


def percent(fraction: float) -> str:
    """`61.2 %`"""
    return f"{100 * fraction:z.1f} %"


def listed(names: Sequence[str], most: int = 5) -> str:
    """`a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def dollars(key: str, name: str) -> Column:
    """A column of US dollars."""
    return Column(key, name, ",.2f", unit="$")


def by_model(title: str, models: Iterable[str], values: Iterable[Any], *columns: Column) -> Table:
    """A row per model, whose heading is the title: the columns' keys are of its value (`table_of`)."""
    table = table_of(title, columns, values)
    rows = tuple((model, *row) for model, row in zip(models, table.rows, strict=True))
    return replace(table, columns=(Column("model", title), *table.columns), rows=rows)


def grid_json(grid: Sequence[Point], rank_changes: Sequence[Flip], name: str) -> dict[str, Any]:
    """JSON of the grid's points and of the ranking changes with their settings."""
    return {
        "points": [_setting(p.setting) | {name: {m: number(v) for m, v in p.values.items()}} for p in grid],
        "flips": [
            {"ahead": f.ahead, "behind": f.behind, "settings": [_setting(s) for s in f.settings]} for f in rank_changes
        ],
    }


def grid_tables(grid: Sequence[Point], rank_changes: Sequence[Flip]) -> list[Table]:
    """Minimum and maximum per model over the grid, and the ranking changes with the first setting at which each
    occurs."""
    models = list(dict.fromkeys(name for p in grid for name in p.values))
    ends = []
    for model in models:
        values = [v for v in (p.values.get(model) for p in grid) if v is not None]
        ends.append({"least": min(values, default=None), "most": max(values, default=None), "n": len(grid)})
    columns = (dollars("least", "least"), dollars("most", "most"), Column("n", "settings"))

    def first(flip: Flip) -> str:
        return ", ".join(f"{name} {float(value):g}" for name, value in flip.settings[0])

    overtaken = tuple((f.ahead, f.behind, f"{len(f.settings)} of {len(grid)}", first(f)) for f in rank_changes)
    names = ("ahead here", "is overtaken by", "at", "first at")
    flips = Table("ranking changes", tuple(Column(name, name) for name in names), overtaken)
    return [by_model("over the grid", models, ends, *columns), *([flips] if overtaken else [])]


def _setting(setting: Setting) -> dict[str, Any]:
    return {name: number(value) for name, value in setting}


class ApiPrices(Strict):
    """One paper's prices."""

    source: str
    date: str
    usd_per_image: dict[str, Amount]
    aliases: dict[str, str] = Field(default={})
    """Model name in published result files -> its name in `usd_per_image`."""

    @model_validator(mode="after")
    def _aliases_of_priced_models(self) -> Self:
        unknown = next((name for name in self.aliases.values() if name not in self.usd_per_image), None)
        if unknown is not None:
            raise ValueError(f"aliases: {unknown!r} has no price in usd_per_image")
        return self

    @property
    def exact(self) -> dict[str, Decimal]:
        """{model: US dollars per image}, by the paper's own names."""
        return {model: Decimal(text) for model, text in self.usd_per_image.items()}

    def of(self, models: Iterable[str]) -> tuple[dict[str, Decimal], list[str]]:
        """The prices of those `models` that have one, and a message for each model that the paper lists under another
        name."""
        names = {model: self.aliases.get(model, model) for model in models}
        prices = self.exact
        return (
            {model: prices[name] for model, name in names.items() if name in prices},
            [f"{model} has the price of {name} ({self.source})" for model, name in names.items() if name != model],
        )


class _File(Strict):
    prices: dict[str, ApiPrices]


def prices_of(suite: str, options: ScoreOptions, models: Iterable[str]) -> tuple[dict[str, Decimal] | None, list[str]]:
    """(US dollars per image by model, notes) by `--costs` or the paper's prices; None without either."""
    if options.api_prices:
        return api_prices(suite).of(models)
    return None if options.costs is None else read_costs(options.costs), []


SETTLEMENT_PRICES = "servimage"
"""The suite whose API prices a settlement is compared with."""


def api_prices(suite: str) -> ApiPrices:
    """The prices that the suite's paper assumes. ConfigError if the file has none for the suite."""
    files = config_files("api_prices.yaml")
    by_suite = {name: prices for path in reversed(files) for name, prices in load_yaml(path, _File).prices.items()}
    if suite not in by_suite:
        raise ConfigError(f"{files[0]} has no prices for {suite!r}, only for {', '.join(by_suite)}: give --costs")
    return by_suite[suite]


def figures_json(figures: Any) -> dict[str, Any]:
    """The fields of `Earnings`, `AsPrinted`, `ClientSavings`, `Ranking` and `BreakEven` as JSON; with what is printed
    apart."""
    kept = {name: value for name, value in vars(figures).items() if not isinstance(value, AsPrinted)}
    return {name: number(value) if isinstance(value, Fraction) else value for name, value in kept.items()}
