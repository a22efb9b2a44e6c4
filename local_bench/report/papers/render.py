"""A table as text, CSV, LaTeX (booktabs) or JSON."""

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

from local_bench.core.tables import clean, guarded
from local_bench.core.tables import table as aligned
from local_bench.report.papers.table import DASH, NO, YES, Cell, Column, Mark, Table

_MARKS: dict[Mark | None, str] = {
    "best": r"\textbf{{{}}}",
    "second": r"\underline{{{}}}",
    "third": r"\textit{{{}}}",
    None: "{}",
}

_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\N{GREEK SMALL LETTER RHO}": r"$\rho$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    NO: r"$\times$",
    DASH: "--",
    "†": r"$\dagger$",
}


def shown(cell: Cell, column: Column) -> str:
    """A cell as the paper prints it."""
    if cell is None:
        return DASH
    if isinstance(cell, bool):
        return YES if cell else NO
    if isinstance(cell, str):
        return cell
    return column.form(cell) if callable(column.form) else format(cell, column.form)


def text(table: Table) -> str:
    """Title, aligned columns, notes."""
    rows = [[shown(cell, column) for cell, column in zip(row, table.columns, strict=True)] for row in table.rows]
    return "\n".join([table.title, "", aligned([c.header for c in table.columns], rows)])


def csv_text(table: Table) -> str:
    """The paper's headers, numbers unrounded, missing values empty; text that a spreadsheet would run as a formula
    begins with `'`."""
    buffer = io.StringIO(newline="")
    lines = csv.writer(buffer, lineterminator="\n")
    lines.writerow([guarded(column.header) for column in table.columns])
    lines.writerows(map(guarded, row) for row in table.rows)
    return buffer.getvalue().removesuffix("\n")


def latex(table: Table) -> str:
    """A tabular of booktabs rules inside a table environment; text columns left, numbers right."""
    texts = [all(isinstance(row[i], str | None) for row in table.rows) for i in range(len(table.columns))]
    lines = [r"\begin{table}", r"\centering", rf"\begin{{tabular}}{{{''.join('l' if t else 'r' for t in texts)}}}"]
    lines.append(r"\toprule")
    if any(column.group for column in table.columns):
        lines += _groups(table.columns)
    lines += [_line([_escaped(column.name) for column in table.columns]), r"\midrule"]
    for i, row in enumerate(table.rows):
        cells = [_latex_cell(cell, column) for cell, column in zip(row, table.columns, strict=True)]
        lines.append(_line([_MARKS[table.marks.get((i, j))].format(cell) for j, cell in enumerate(cells)]))
    lines += [r"\bottomrule", r"\end{tabular}", rf"\caption{{{_escaped(table.title)}}}", r"\end{table}"]
    return "\n".join(
        [r"% \usepackage{booktabs,amssymb}", *(f"% {clean(note)}".replace("\n", " ") for note in table.notes), *lines]
    )


def _groups(columns: tuple[Column, ...]) -> list[str]:
    cells, rules, at = [], [], 1
    for group, of in groupby(column.group for column in columns):
        n = len(list(of))
        cells.append(rf"\multicolumn{{{n}}}{{c}}{{{_escaped(group)}}}" if group else " & ".join([""] * n))
        if group:
            rules.append(rf"\cmidrule(lr){{{at}-{at + n - 1}}}")
        at += n
    return [_line(cells), " ".join(rules)]


def _line(cells: list[str]) -> str:
    return " & ".join(cells) + r" \\"


def _latex_cell(cell: Cell, column: Column) -> str:
    if isinstance(cell, bool):
        return r"$\checkmark$" if cell else r"$\times$"
    return _escaped(shown(cell, column))


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(c, c) for c in clean(text).replace("\n", " "))


def markdown(table: Table) -> str:
    """A table of Markdown, with the title above and the notes below."""
    rows = [
        [
            _marked(shown(cell, column), table.marks.get((i, j)))
            for j, (cell, column) in enumerate(zip(row, table.columns, strict=True))
        ]
        for i, row in enumerate(table.rows)
    ]
    lines = [[_cell(column.header) for column in table.columns], ["---", *["---:"] * (len(table.columns) - 1)], *rows]
    body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([f"**{_cell(table.title)}**", "", *body, *([""] if table.notes else []), *map(_cell, table.notes)])


def _marked(text: str, mark: Mark | None) -> str:
    return {"best": "**{}**", "second": "<u>{}</u>", "third": "*{}*", None: "{}"}[mark].format(_cell(text))


def _cell(text: str) -> str:
    """Text with Markdown's special characters escaped."""
    return re.sub(r"([\\`*_{}\[\]<>|#~])", r"\\\1", clean(text).replace("\n", " "))


def as_json(table: Table) -> dict[str, Any]:
    """Rows by the columns' keys, numbers unrounded."""
    keys = table.keys
    return {
        "title": table.title,
        "columns": {key: column.header for key, column in zip(keys, table.columns, strict=True)},
        "rows": [dict(zip(keys, row, strict=True)) for row in table.rows],
        "notes": list(table.notes),
    }


FORMATS: Mapping[str, Callable[[Table], str]] = {
    "text": text,
    "csv": csv_text,
    "latex": latex,
    "json": lambda table: json.dumps(as_json(table), indent=2, ensure_ascii=False, allow_nan=False),
}
