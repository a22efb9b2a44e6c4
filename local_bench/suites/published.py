"""A benchmark's published statistics and sensitivity grids, as data and as tables."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

from local_bench.core.table import Column, Table, table_of
from local_bench.settle.sensitivity import Flip, Point, Setting


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
    overtaken = tuple(
        (f.ahead, f.behind, f"{len(f.settings)} of {len(grid)}", _setting_text(f.settings[0])) for f in rank_changes
    )
    names = ("ahead here", "is overtaken by", "at", "first at")
    flips = Table("ranking changes", tuple(Column(name, name) for name in names), overtaken)
    return [by_model("over the grid", models, ends, *columns), *([flips] if overtaken else [])]


def _setting(setting: Setting) -> dict[str, Any]:
    return {name: number(value) for name, value in setting}


def _setting_text(setting: Setting) -> str:
    return ", ".join(f"{name} {float(value):g}" for name, value in setting)
