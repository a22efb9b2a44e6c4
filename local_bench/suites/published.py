"""A benchmark's published statistics and sensitivity grids, as data and as tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from local_bench.settle.sensitivity import Flip, Point, Setting


@dataclass(frozen=True)
class Published:
    """A benchmark's statistics."""

    data: dict[str, Any]
    """JSON data: the names of the output contract, with counts and bounds."""
    tables: Sequence[tuple[Sequence[str], list[list[str]]]]
    """Tables for display: (header, rows)."""
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


def percent(value: Fraction | float | None) -> str:
    return "-" if value is None else f"{100 * float(value):z.1f} %"


def dollars(value: Fraction | float | None) -> str:
    return "-" if value is None else f"${float(value):,.2f}"


def figure(value: Fraction | float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(float(value), form)


def within(ends: tuple[float, float] | None, form: str = ".2f") -> str:
    """`low to high`, the ends of an interval."""
    return "-" if ends is None else f"{ends[0]:{form}} to {ends[1]:{form}}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """`a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


Table = tuple[Sequence[str], list[list[str]]]


def grid_json(grid: Sequence[Point], rank_changes: Sequence[Flip], name: str) -> dict[str, Any]:
    """JSON of the grid's points and of the ranking changes with their settings."""
    return {
        "points": [_setting(p.setting) | {name: {m: number(v) for m, v in p.values.items()}} for p in grid],
        "flips": [
            {"ahead": f.ahead, "behind": f.behind, "settings": [_setting(s) for s in f.settings]} for f in rank_changes
        ],
    }


def grid_table(grid: Sequence[Point], rank_changes: Sequence[Flip]) -> list[Table]:
    """Minimum and maximum per model over the grid, and the ranking changes with the first setting at which each
    occurs."""
    models = list(dict.fromkeys(name for p in grid for name in p.values))
    rows = []
    for model in models:
        values = [v for v in (p.values.get(model) for p in grid) if v is not None]
        rows.append([model, dollars(min(values, default=None)), dollars(max(values, default=None)), str(len(grid))])
    overtaken = [
        [f.ahead, f.behind, f"{len(f.settings)} of {len(grid)}", _setting_text(f.settings[0])] for f in rank_changes
    ]
    ranges: Table = (["over the grid", "least", "most", "settings"], rows)
    return [ranges, *([(["ahead here", "is overtaken by", "at", "first at"], overtaken)] if overtaken else [])]


def _setting(setting: Setting) -> dict[str, Any]:
    return {name: number(value) for name, value in setting}


def _setting_text(setting: Setting) -> str:
    return ", ".join(f"{name} {figure(value, 'g')}" for name, value in setting)
