"""Tables and figures for papers from a site's summary: CSV, LaTeX (booktabs), Markdown; SVG, PDF and PNG.

The best value of a column is bold and the second best underlined. Means have as many digits as their intervals support:
two significant digits of the half-width.
"""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from local_bench.core.storage import write_atomic
from local_bench.report.papers.draw import SUFFIXES, draw_all
from local_bench.report.papers.render import csv_text, latex, markdown
from local_bench.report.papers.table import (
    Bars,
    Cell,
    Column,
    Figure,
    Grid,
    Mark,
    Point,
    Points,
    Series,
    Table,
    rank_marks,
)
from local_bench.report.site.significance import ALPHA, letters

FORMATS = {"csv": csv_text, "tex": latex, "md": markdown}
Model = Mapping[str, Any]


def write_tables(tables: Mapping[str, Table], folder: Path) -> list[Path]:
    """Write every table in every format to `folder`; return the files."""
    files = []
    for name, table in tables.items():
        for suffix, render in FORMATS.items():
            path = folder / f"{name}.{suffix}"
            write_atomic(path, f"{render(table)}\n".encode())
            files.append(path)
    return files


def write_figures(figures: Mapping[str, Figure], folder: Path, suffixes: Sequence[str] = tuple(SUFFIXES)) -> list[Path]:
    """Write every figure in the formats to `folder`, with its numbers as CSV; return the files."""
    files = []
    for name, figure in figures.items():
        drawn = [folder / f"{name}{suffix}" for suffix in suffixes]
        draw_all(figure, drawn)
        write_atomic(folder / f"{name}.csv", f"{csv_text(figure.data)}\n".encode())
        files += [*drawn, folder / f"{name}.csv"]
    return files


def tables(summary: Mapping[str, Any]) -> dict[str, Table]:
    """The tables by file name; those without rows or columns are left out."""
    models = _ordered(summary)
    found = {"leaderboard": _leaderboard(summary, models), "scores": _scores(summary, models)}
    found["categories"] = _categories(summary, models)
    found["significance"] = _significance(summary)
    return {name: table for name, table in found.items() if table.rows and len(table.columns) > 1}


def figures(summary: Mapping[str, Any]) -> dict[str, Figure]:
    """The figures by file name."""
    models = _ordered(summary)
    if not models:
        return {}
    names = [_name(summary, one) for one in models]
    found = {}
    if any(one["total"]["value_usd"] for one in models):
        totals = [one["total"] for one in models]
        ends = tuple(None if t["low_usd"] is None else (t["low_usd"], t["high_usd"]) for t in totals)
        series = Series("revenue", tuple(t["revenue_usd"] for t in totals), ends)
        rows = tuple((n, t["revenue_usd"], t["low_usd"], t["high_usd"]) for n, t in zip(names, totals, strict=True))
        columns = (_MODEL, Column("revenue_usd", "revenue", ".2f"), Column("low", "low"), Column("high", "high"))
        data = Table("Revenue with 95 % intervals", columns, rows)
        found["revenue"] = Figure(data, (Bars("", tuple(names), (series,), "US dollars"),))
    costs = [(n, one["cost_usd"], _acceptance(one)) for n, one in zip(names, models, strict=True)]
    known = [(n, cost, rate) for n, cost, rate in costs if cost is not None and rate is not None]
    if len(known) > 1:
        front = _front([(cost, rate) for _, cost, rate in known])
        columns = (
            _MODEL,
            Column("cost_usd", "cost (US dollars)"),
            Column("accepted", "accepted"),
            Column("front", "front"),
        )
        data = Table("Cost and accepted images, with the Pareto front", columns, tuple(
            (n, cost, rate, i in front) for i, (n, cost, rate) in enumerate(known)
        ))  # fmt: skip
        points = tuple(Point(n, cost, rate, i in front) for i, (n, cost, rate) in enumerate(known))
        found["cost_quality"] = Figure(data, (Points("", points, "cost in US dollars", "fraction of images accepted"),))
    categories = _categories(summary, models)
    if len(categories.columns) > 2 and len(models) > 1:
        values = tuple(tuple(x if isinstance(x, float) else None for x in row[1:]) for row in categories.rows)
        grid = Grid("", tuple(names), tuple(column.name for column in categories.columns[1:]), values)
        found["categories"] = Figure(categories, (grid,))
    found |= _matrices(summary, models)
    return found


_MODEL = Column("model", "model")
_TEST = "paired test over tasks (sign flips and t), corrected for all pairs by Holm's method, at 0.05"


def _ordered(summary: Mapping[str, Any]) -> list[Model]:
    """Models as on the leaderboard: comparable runs together, the highest revenue first."""
    return sorted(
        summary["models"], key=lambda one: (one["group"], -one["total"]["revenue_usd"], -one["total"]["n_accepted"])
    )


def _name(summary: Mapping[str, Any], one: Model) -> str:
    runs = summary["runs"]
    return f"{one['name']} ({runs[one['run']]['name']})" if len(runs) > 1 else str(one["name"])


def _key(one: Model) -> tuple[int, str]:
    return one["run"], one["name"]


def _acceptance(one: Model) -> float | None:
    total = one["total"]
    n = total["n"] + total["n_unscored"]
    return total["n_accepted"] / n if n else None


def _leaderboard(summary: Mapping[str, Any], models: Sequence[Model]) -> Table:
    money = any(one["total"]["value_usd"] for one in models)
    columns = [_MODEL]
    if money:
        columns += [Column("revenue_usd", "revenue ($)", ".2f"), Column("low", "low", ".2f", "95 %")]
        columns += [Column("high", "high", ".2f", "95 %"), Column("share", "share", ".1%")]
    columns += [Column("tasks", "tasks accepted", ".1%"), Column("images", "images accepted", ".1%")]
    columns += [Column("unscored", "unscored", ".0f"), Column("cost_usd", "cost ($)", small_usd)]
    same = letters([_key(one) for one in models], summary["significance"])
    if same:
        columns.append(Column("group", "group"))
    rows: list[tuple[Cell, ...]] = []
    for one in models:
        t = one["total"]
        cells: list[Cell] = [_name(summary, one)]
        if money:
            share = t["revenue_usd"] / t["value_usd"] if t["value_usd"] else None
            cells += [t["revenue_usd"], t["low_usd"], t["high_usd"], share]
        cells += [t["n_tasks_accepted"] / t["n_tasks"] if t["n_tasks"] else None, _acceptance(one)]
        cells += [float(t["n_unscored"]), one["cost_usd"]]
        rows.append((*cells, same.get(_key(one), "")) if same else tuple(cells))
    ranked = ("revenue_usd", "share", "tasks", "images")
    higher = [i for i, column in enumerate(columns) if column.key in ranked]
    marks = _marks(summary, models, rows, dict.fromkeys(higher, True))
    notes = [f"not comparable: {one}" for one in summary["differences"]]
    if same:
        notes.append(
            "models of comparable runs with a common letter do not differ significantly, which does not mean equal "
            f"({_TEST})"
        )
    return Table("Leaderboard", tuple(columns), tuple(rows), tuple(notes), marks)


def _significance(summary: Mapping[str, Any]) -> Table:
    pairs = summary["significance"]
    money = any(one["unit"] == "usd" for one in pairs)
    what = "revenue ($)" if money else "fraction of images accepted"
    columns = (
        Column("a", "model"),
        Column("b", "other model"),
        Column("difference", f"difference in {what}", ".2f" if money else ".3f"),
        Column("low", "low", ".2f" if money else ".3f", "95 %"),
        Column("high", "high", ".2f" if money else ".3f", "95 %"),
        Column("p", "p", ".4f"),
        Column("p_holm", "p, Holm", ".4f"),
        Column("detectable", "detectable", ".2f" if money else ".3f"),
        Column("n_tasks", "tasks", ".0f"),
        Column("n_differ", "of them differ", ".0f"),
    )
    rows = tuple(
        (
            *(_name(summary, {"run": one[end][0], "name": one[end][1]}) for end in ("a", "b")),
            *(one[key] for key in ("difference", "low", "high", "p", "p_holm", "detectable")),
            float(one["n_tasks"]),
            float(one["n_differ"]),
        )
        for one in pairs
    )
    notes = [
        f"significant: {_TEST}; the interval and p are of one comparison alone, by sign flips and t over tasks",
        "detectable: the difference that would be significant (p) with a power of 80 % on tasks like these",
    ]
    if any(one["too_few_differ"] for one in pairs):
        notes.append("where fewer than 6 tasks differ, no result could be significant")
    return Table("Paired differences of models", columns, rows, tuple(notes))


def _matrices(summary: Mapping[str, Any], models: Sequence[Model]) -> dict[str, Figure]:
    """A matrix of corrected p-values for each group of comparable runs."""
    found = {}
    for group in dict.fromkeys(one["group"] for one in models):
        own = [one for one in models if one["group"] == group]
        keys, names = [_key(one) for one in own], tuple(_name(summary, one) for one in own)
        signed: dict[tuple[Any, Any], tuple[float, float]] = {}
        for one in summary["significance"]:
            if one["p_holm"] is not None:
                a, b, difference = tuple(one["a"]), tuple(one["b"]), one["difference"] or 0.0
                signed[a, b], signed[b, a] = (difference, one["p_holm"]), (-difference, one["p_holm"])
        if len(own) < 2 or not signed:
            continue
        values = tuple(tuple(_shade(signed.get((x, y))) for y in keys) for x in keys)
        texts = tuple(tuple(_p_text(signed.get((x, y))) for y in keys) for x in keys)
        columns = (_MODEL, *(Column(f"m{i}", name, ".4f") for i, name in enumerate(names)))
        rows = tuple(
            (name, *(signed[x, y][1] if (x, y) in signed else None for y in keys))
            for name, x in zip(names, keys, strict=True)
        )
        title = "p-values of paired differences (Holm); +: the row is significantly better, \N{MINUS SIGN}: worse"
        grid = Grid("", names, names, values, texts, diverging=True)
        found[f"significance_{group + 1}" if group else "significance"] = Figure(Table(title, columns, rows), (grid,))
    return found


def _p_text(signed: tuple[float, float] | None) -> str:
    """`0.021 +` if the row is significantly better than the column."""
    if signed is None:
        return ""
    difference, p = signed
    sign = "" if p >= ALPHA else " +" if difference > 0 else " \N{MINUS SIGN}"
    return f"{'< 0.001' if p < 0.001 else f'{p:.3f}'}{sign}"


def _shade(signed: tuple[float, float] | None) -> float | None:
    """1 if the row is significantly better than the column, 0 if it is worse, 0.5 otherwise."""
    if signed is None:
        return None
    difference, p = signed
    return 0.5 if p >= ALPHA else 0.95 if difference > 0 else 0.05


def _scores(summary: Mapping[str, Any], models: Sequence[Model]) -> Table:
    names = list(dict.fromkeys(score["name"] for one in models for score in one["scores"]))
    by_model = [{score["name"]: score for score in one["scores"]} for one in models]
    columns = [_MODEL]
    for name in names:
        halves = [
            (of[name]["high"] - of[name]["low"]) / 2 for of in by_model if name in of and of[name]["low"] is not None
        ]
        columns.append(Column(name, name, f".{digits(halves)}f"))
    rows = [
        (_name(summary, one), *(of[name]["mean"] if name in of else None for name in names))
        for one, of in zip(models, by_model, strict=True)
    ]
    better = {i: "low" not in summary["better"].get(name, "") for i, name in enumerate(names, 1)}
    return Table("Scores (means)", tuple(columns), tuple(rows), (), _marks(summary, models, rows, better))


def _categories(summary: Mapping[str, Any], models: Sequence[Model]) -> Table:
    names = sorted({name for one in models for name in one["categories"]})
    money = any(one["total"]["value_usd"] for one in models)

    def cell(total: Mapping[str, Any] | None) -> float | None:
        if total is None:
            return None
        if money:
            return total["revenue_usd"] / total["value_usd"] if total["value_usd"] else None
        n = total["n"] + total["n_unscored"]
        return total["n_accepted"] / n if n else None

    columns = (_MODEL, *(Column(name, name, ".1%") for name in names))
    rows = [(_name(summary, one), *(cell(one["categories"].get(name)) for name in names)) for one in models]
    marks = _marks(summary, models, rows, dict.fromkeys(range(1, len(columns)), True))
    what = "Share of the value" if money else "Fraction of images accepted"
    return Table(f"{what}, by category", columns, tuple(rows), (), marks)


def _marks(
    summary: Mapping[str, Any],
    models: Sequence[Model],
    rows: Sequence[tuple[Cell, ...]],
    higher_is_better: Mapping[int, bool],
) -> dict[tuple[int, int], Mark]:
    """(row, column) of the best and second best value among the models of comparable runs."""
    marks: dict[tuple[int, int], Mark] = {}
    for group in {one["group"] for one in models}:
        own = [i for i, one in enumerate(models) if one["group"] == group]
        for column, higher in higher_is_better.items():
            values = {i: rows[i][column] for i in own}
            found = rank_marks(values, higher, ("best", "second"))
            marks |= {(i, column): mark for i, mark in found.items()}
    return marks


def digits(half_widths: Sequence[float]) -> int:
    """Decimals with two significant digits of the median half-width of the intervals; 2 without any."""
    known = sorted(width for width in half_widths if width > 0)
    if not known:
        return 2
    return min(6, max(0, 1 - math.floor(math.log10(known[len(known) // 2]))))


def small_usd(amount: float) -> str:
    """Dollars in fixed notation: three significant digits below $10, cents above."""
    decimals = 2 - math.floor(math.log10(abs(amount))) if amount else 2
    return f"{amount:.{max(2, decimals)}f}"


def _front(points: Sequence[tuple[float, float]]) -> set[int]:
    """Indices of the Pareto-optimal points: no other point is at most as costly and better, or cheaper and equally
    good."""
    return {
        i
        for i, (cost, rate) in enumerate(points)
        if not any(c <= cost and r >= rate and (c, r) != (cost, rate) for c, r in points)
    }
