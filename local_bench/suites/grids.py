"""Sensitivity grids: results over a grid of settings, and the settings at which rankings change."""

from collections.abc import Sequence
from typing import Any

from local_bench.settle.sensitivity import Flip, Point, Setting
from local_bench.suites.published import dollars, figure, number

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
