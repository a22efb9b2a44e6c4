"""A grid of settings and the rankings that flip on it."""

from collections.abc import Sequence
from typing import Any

from local_bench.settle.sensitivity import Flip, Point, Setting
from local_bench.suites.published import dollars, figure, number

Table = tuple[Sequence[str], list[list[str]]]


def grid_json(grid: Sequence[Point], turned: Sequence[Flip], name: str) -> dict[str, Any]:
    """Points as they stand on the grid; flips with the settings at which they happen."""
    return {
        "points": [_setting(p.setting) | {name: {m: number(v) for m, v in p.values.items()}} for p in grid],
        "flips": [
            {"ahead": f.ahead, "behind": f.behind, "settings": [_setting(s) for s in f.settings]} for f in turned
        ],
    }


def grid_table(grid: Sequence[Point], turned: Sequence[Flip]) -> list[Table]:
    """The grid's ends a model, and who is overtaken where first."""
    models = list(dict.fromkeys(name for p in grid for name in p.values))
    rows = []
    for model in models:
        values = [v for v in (p.values.get(model) for p in grid) if v is not None]
        rows.append([model, dollars(min(values, default=None)), dollars(max(values, default=None)), str(len(grid))])
    overtaken = [[f.ahead, f.behind, f"{len(f.settings)} of {len(grid)}", _words(f.settings[0])] for f in turned]
    ranges: Table = (["over the grid", "least", "most", "settings"], rows)
    return [ranges, *([(["ahead here", "is overtaken by", "at", "first at"], overtaken)] if overtaken else [])]


def _setting(setting: Setting) -> dict[str, Any]:
    return {name: number(value) for name, value in setting}


def _words(setting: Setting) -> str:
    return ", ".join(f"{name} {figure(value, 'g')}" for name, value in setting)
