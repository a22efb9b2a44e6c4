"""Tables and figures for papers from a site's summary: CSV, LaTeX (booktabs), Markdown; SVG, PDF and PNG.

The best value of a column is bold and the second best underlined. Means have as many digits as their intervals support:
two significant digits of the half-width.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from local_bench.analysis.settlement import Accounting
from local_bench.core.environment import require
from local_bench.core.errors import MissingExtra
from local_bench.core.files import storage_errors, write_atomic
from local_bench.core.table import Cell, Column, Table
from local_bench.report.panels import Bars, Figure, Grid, Point, Points, Series
from local_bench.report.papers.draw import SUFFIXES, draw_all
from local_bench.report.render import csv_text, latex, markdown, ranked
from local_bench.report.settlement import model_row, paper_table, settlement_table, total_row
from local_bench.report.site.details import RunDetails
from local_bench.report.site.run_figures import run_figures
from local_bench.report.site.significance import ALPHA, letters
from local_bench.report.site.summary import Summary, summary
from local_bench.report.text import p_value, percent
from local_bench.runs.rundir import RunDir
from local_bench.settle.settlement import Total

FORMATS = {"csv": csv_text, "tex": latex, "md": markdown}


def write_tables(tables: Mapping[str, Table], folder: Path) -> list[Path]:
    """Write every table in every format to `folder`; return the files."""
    files = []
    for name, table in tables.items():
        for suffix, render in FORMATS.items():
            path = folder / f"{name}.{suffix}"
            write_atomic(path, f"{render(table)}\n".encode())
            files.append(path)
    _remove_others(folder, files, [f".{suffix}" for suffix in FORMATS])
    return files


def _remove_others(folder: Path, written: Sequence[Path], suffixes: Sequence[str]) -> None:
    """Remove what an earlier call wrote to `folder` in all formats and this one did not; other files are kept."""
    for first in folder.glob(f"*{suffixes[0]}"):
        earlier = [first.with_suffix(suffix) for suffix in suffixes]
        if first not in written and all(file.is_file() for file in earlier):
            with storage_errors(first):
                for file in earlier:
                    file.unlink()


def write_figures(figures: Mapping[str, Figure], folder: Path, suffixes: Sequence[str] = tuple(SUFFIXES)) -> list[Path]:
    """Write every figure in the formats to `folder`, with its numbers as CSV; return the files."""
    files = []
    for name, figure in figures.items():
        drawn = [folder / f"{name}{suffix}" for suffix in suffixes]
        draw_all(figure, drawn)
        write_atomic(folder / f"{name}.csv", f"{csv_text(figure.data)}\n".encode())
        files += [*drawn, folder / f"{name}.csv"]
    _remove_others(folder, files, [*suffixes, ".csv"])
    return files


def tables(summary: Summary) -> dict[str, Table]:
    """The tables by file name, of comparable runs each: `leaderboard`, and `leaderboard_2` of other runs. Those without
    rows or columns are left out."""
    by_name, notes = dict[str, Table](), [f"not comparable: {difference}" for difference in summary.differences]
    for end, runs, group in _groups(summary):
        for name, make in _TABLES.items():
            table = make(group)
            by_name[f"{name}{end}"] = replace(table, title=table.title + runs, notes=(*table.notes, *notes))
    return {name: table for name, table in by_name.items() if table.rows and len(table.columns) > 1}


def figures(summary: Summary) -> dict[str, Figure]:
    """The figures by file name, of comparable runs each."""
    return {
        f"{name}{end}": replace(figure, data=replace(figure.data, title=figure.data.title + runs))
        for end, runs, group in _groups(summary)
        for name, figure in _figures(group).items()
    }


def _groups(summary: Summary) -> Iterator[tuple[str, str, Summary]]:
    """The ends of the names of files and of titles, and the models of comparable runs."""
    for i, group in enumerate(map(summary.of_group, summary.groups)):
        runs = ", ".join(dict.fromkeys(summary.names[model.run] for model in group.models))
        yield f"_{i + 1}" if i else "", f": {runs}" if len(summary.groups) > 1 else "", group


def _figures(summary: Summary) -> dict[str, Figure]:
    models = summary.models
    rows = [model_row(model.settlement) | {"model": model.label} for model in models]
    names = tuple(model.label for model in models)
    plots = {}
    if summary.priced:
        columns = (_MODEL, Column("revenue_usd", "revenue", ".2f"), Column("low", "low"), Column("high", "high"))
        cells: list[Any] = [tuple(row.get(column.key) for column in columns) for row in rows]
        ends = tuple(None if low is None else (low, high) for *_, low, high in cells)
        series = Series("revenue", tuple(row[1] for row in cells), ends)
        data = Table("Revenue with 95 % intervals", columns, tuple(cells))
        plots["revenue"] = Figure(data, (Bars("", names, (series,), "US dollars"),))
    priced: list[Any] = [(row["model"], row["cost_usd"], row["images"]) for row in rows]
    priced = [cells for cells in priced if None not in cells]
    if len(priced) > 1:
        front = _front([(cost, rate) for _, cost, rate in priced])
        of_front = [(*cells, i in front) for i, cells in enumerate(priced)]
        names_of = (("cost_usd", "cost (US dollars)"), ("accepted", "accepted"), ("front", "front"))
        front_columns = (_MODEL, *(Column(key, name) for key, name in names_of))
        data = Table("Cost and accepted images, with the Pareto front", front_columns, tuple(of_front))
        several = any(m.n_images > m.settlement.total.n + m.settlement.total.n_unscored for m in models)
        cost, noun = ("cost of all attempts", "first attempts") if several else ("cost", "images")
        axes, points = (f"{cost} in US dollars", f"fraction of {noun} accepted"), (Point(*cells) for cells in of_front)
        plots["cost_quality"] = Figure(data, (Points("", tuple(points), *axes),))
    shares = categories(summary)
    if len(shares.columns) > 2 and len(models) > 1:
        values = tuple(tuple(x if isinstance(x, float) else None for x in row[1:]) for row in shares.rows)
        grid = Grid("", names, tuple(column.name for column in shares.columns[1:]), values)
        plots["categories"] = Figure(shares, (grid,))
    if (matrix := _matrix(summary)) is not None:
        plots["significance"] = matrix
    return plots


_MODEL = Column("model", "model")
_TEST = "paired test over tasks (sign flips and t), corrected for all pairs by Holm's method, at 0.05"


def leaderboard(summary: Summary, page: bool = False) -> Table:
    """The columns that a paper shows, or with `page` all."""
    same = letters([model.label for model in summary.models], summary.significance)
    blind = any(model.without_inputs for model in summary.models)
    rows: list[dict[str, Cell]] = [
        model_row(model.settlement)
        | {"value_usd": None, "model": model.label, "group": same.get(model.label)}
        | {"without_inputs": model.without_inputs if blind else None}
        for model in summary.models
    ]
    notes = [f"models with a common letter do not differ significantly, which does not mean equal ({_TEST})"]
    table = (settlement_table if page else paper_table)("Leaderboard", rows)
    return _marked(replace(table, notes=tuple(notes if same else ())))


def common(summary: Summary) -> Table:
    """The leaderboard of the tasks that all models support with all input images."""
    rows = [{"model": model.label} | total_row(model.common.total) for model in summary.models if model.common]
    table = settlement_table("Tasks that all models support", rows)
    return _marked(table)


def _significance(summary: Summary) -> Table:
    pairs = summary.significance
    money = any(pair.in_usd for pair in pairs)
    form = ".2f" if money else ".3f"
    columns = (
        *(Column("a", "model"), Column("b", "other model")),
        Column("difference", f"difference in {'revenue ($)' if money else 'fraction of images accepted'}", form),
        *(Column("low", "low", form, "95 %"), Column("high", "high", form, "95 %")),
        *(Column("p", "p", p_value), Column("p_holm", "p, Holm", p_value)),
        Column("detectable", "detectable", form),
        *(Column("n_tasks", "tasks", ".0f"), Column("n_differ", "of them differ", ".0f")),
    )
    rows = tuple(
        (
            *(pair.a, pair.b, pair.estimate, pair.low, pair.high, pair.p, pair.p_holm, pair.detectable),
            *(float(pair.n_tasks), float(pair.n_differ)),
        )
        for pair in pairs
    )
    notes = [
        f"significant: {_TEST}; the interval and p are of one comparison alone, by sign flips and t over tasks",
        "detectable: the difference that would be significant (p) with a power of 80 % on tasks like these",
    ]
    if any(pair.too_few_differ for pair in pairs):
        notes.append("where fewer than 6 tasks differ, no result could be significant")
    return Table("Paired differences of models", columns, rows, tuple(notes))


def _matrix(summary: Summary) -> Figure | None:
    """The corrected p-values of comparable models; None without pairs."""
    names = tuple(model.label for model in summary.models)
    compared: dict[tuple[str, str], tuple[Any, ...]] = {}  # (p, shade, `0.021 +` if the row is significantly better)
    for pair in summary.significance:
        if (p := pair.p_holm) is not None:
            for a, b, sign in ((pair.a, pair.b, 1), (pair.b, pair.a, -1)):
                better, text = sign * (pair.estimate or 0) > 0, "< 0.001" if p < 0.001 else f"{p:.3f}"
                shade, end = (0.5, "") if p >= ALPHA else (0.95, " +") if better else (0.05, " \N{MINUS SIGN}")
                compared[a, b] = p, shade, text + end
    if len(names) < 2 or not compared:
        return None
    rows = [[compared.get((x, y), (None, None, "")) for y in names] for x in names]
    ps, values, texts = (tuple(tuple(cell[i] for cell in row) for row in rows) for i in range(3))
    columns = (_MODEL, *(Column(f"m{i}", name, p_value) for i, name in enumerate(names)))
    cells = tuple((name, *row) for name, row in zip(names, ps, strict=True))
    title = "p-values of paired differences (Holm); +: the row is significantly better, \N{MINUS SIGN}: worse"
    return Figure(Table(title, columns, cells), (Grid("", names, names, values, texts, diverging=True),))


def scores(summary: Summary, decimals: Mapping[str, int] | None = None) -> Table:
    """Means with as many digits as their intervals support; on a page, with at least `decimals`, and the intervals."""
    names = list(dict.fromkeys(name for model in summary.models for name in model.scores))
    columns = [_MODEL]
    for name in names:
        halves = [(ends[1] - ends[0]) / 2 for model in summary.models if (ends := model.intervals.get(name))]
        form = f".{max(digits(halves), (decimals or {}).get(name, 0))}f"
        columns.append(Column(name, name, form, higher_is_better=name not in summary.lower_is_better))
        if decimals is not None:
            columns += [Column(f"{name} {end}", end, form, below=True) for end in ("low", "high")]
    rows: list[tuple[Cell, ...]] = []
    for model in summary.models:
        row: list[Cell] = [model.label]
        for name in names:
            row.append(model.scores[name].mean if name in model.scores else None)
            row += model.intervals.get(name, (None, None)) if decimals is not None else ()
        rows.append(tuple(row))
    return _marked(Table("Scores (means)" if decimals is None else "Scores", tuple(columns), tuple(rows)))


def categories(summary: Summary) -> Table:
    names = sorted({name for model in summary.models for name in model.settlement.by_category})

    def cell(total: Total | None) -> float | None:
        return None if total is None else total.share if summary.priced else total.deliverable_acceptance

    columns = (_MODEL, *(Column(name, name, percent, higher_is_better=True) for name in names))
    rows = [(model.label, *map(cell, map(model.settlement.by_category.get, names))) for model in summary.models]
    title = f"{'Share of the value' if summary.priced else 'Fraction of images accepted'}, by category"
    return _marked(Table(title, columns, tuple(rows)))


_TABLES: Mapping[str, Callable[[Summary], Table]] = {
    "leaderboard": leaderboard, "scores": scores, "categories": categories, "significance": _significance,
}  # fmt: skip


def _marked(table: Table) -> Table:
    """The best and second best value."""
    return replace(table, marks=ranked(table, ("best", "second")).marks)


def digits(half_widths: Sequence[float]) -> int:
    """Decimals with two significant digits of the median half-width of the intervals; 2 without any."""
    widths = sorted(width for width in half_widths if width > 0)
    if not widths:
        return 2
    return min(6, max(0, 1 - math.floor(math.log10(widths[len(widths) // 2]))))


def _front(points: Sequence[tuple[float, float]]) -> set[int]:
    """Indices of the Pareto-optimal points: no other point is at most as costly and better, or cheaper and equally
    good."""
    return {
        i
        for i, (cost, rate) in enumerate(points)
        if not any(c <= cost and r >= rate and (c, r) != (cost, rate) for c, r in points)
    }


def write_exports(run: RunDir, money: Accounting, note: Callable[[str], None]) -> list[Path]:
    """Write the run's data and the tables for papers to `<run>/exports/`; return the files. Without the extra `tables`
    there are no files of data, and earlier ones, which may have other numbers, are removed. Raises as the functions
    that write them."""
    try:
        require("tables")
    except MissingExtra as e:
        note(f"the run's data are not exported: {e}")
        for parquet in (run.path / "exports").glob("*.parquet"):
            parquet.with_suffix(".csv").unlink(missing_ok=True)
            parquet.unlink()
        files = list[Path]()
    else:
        from local_bench.report import exports

        files = exports.write_exports(run, money)
    return files + write_tables(tables(summary([run], [money])), run.path / "exports" / "tables")


def write_run_figures(run: RunDir, money: Accounting) -> list[Path]:
    """Write every figure to `<run>/exports/figures/`, with its numbers as CSV; return the files. StorageError if a
    write fails."""
    people = RunDetails(run, {}).decided_by_people
    drawn = figures(summary([run], [money])) | run_figures(run, money, run.store.outcomes(), people)
    return write_figures(drawn, run.path / "exports" / "figures")
