"""A table as text, CSV, LaTeX (booktabs), Markdown, JSON, or for a page."""

import csv
import io
import json
import re
import shutil
import sys
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from itertools import groupby
from typing import Any

from local_bench.core.table import DASH, Cell, Column, Mark, Table, clean, guarded, table_of

_MARKS: dict[Mark | None, str] = {
    "best": r"\textbf{{{}}}",
    "second": r"\underline{{{}}}",
    "third": r"\textit{{{}}}",
    None: "{}",
}
_MARKDOWN: dict[Mark | None, str] = {"best": "**{}**", "second": "<u>{}</u>", "third": "*{}*", None: "{}"}

DAGGER = "\N{DAGGER}"
YES, NO = "\N{CHECK MARK}", "\N{MULTIPLICATION SIGN}"
_FIGURE = re.compile(r"[-\N{EN DASH}$\d]")
_SPECIAL = {c: f"\\{c}" for c in "&%$#_{}"} | {
    "\0": "{}",  # between hyphens, which would be a dash
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\N{GREEK SMALL LETTER RHO}": r"$\rho$",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "↑": r"$\uparrow$",
    "↓": r"$\downarrow$",
    YES: r"$\checkmark$",
    NO: r"$\times$",
    DASH: "--",
    "†": r"$\dagger$",
}


def interval(key: str, form: str | Callable[[Any], str], low: str = "low", high: str = "high") -> tuple[Column, Column]:
    """The columns of the 95 % interval at `key`."""
    prefix = f"{key}." if key else ""
    return tuple(Column(f"{prefix}{end}", end, form, "95 %", below=True) for end in (low, high))  # type: ignore[return-value]


def printed(columns: Sequence[Column], rows: Iterable[Any], notes: Sequence[str] = ()) -> str:
    """For a terminal: the columns of the rows' table, and notes."""
    return "\n".join([columns_text(table_of("", columns, rows)), *notes])


def ranked(table: Table, marks: Sequence[Mark] = ("best", "second", "third")) -> Table:
    """`table` with the first values of each ranking column marked; values that are equal to 12 digits have one rank."""
    cells: dict[tuple[int, int], Mark] = {}
    within = None if table.ranked_within is None else table.keys.index(table.ranked_within)
    groups: dict[Cell, list[int]] = {}
    for i, row in enumerate(table.rows):
        groups.setdefault(None if within is None else row[within], []).append(i)
    for j, column in enumerate(table.columns):
        for rows in groups.values() if column.higher_is_better is not None else ():
            numbers = {i: float(f"{x:.12g}") for i in rows if isinstance(x := table.rows[i][j], float | int)}
            ordered = sorted(set(numbers.values()), reverse=bool(column.higher_is_better))
            by_value = dict(zip(ordered, marks, strict=False)) if len(ordered) > 1 else {}
            cells |= {(i, j): by_value[value] for i, value in numbers.items() if value in by_value}
    return replace(table, marks=cells)


def shown(cell: Cell, column: Column) -> str:
    """A cell as the paper prints it."""
    if cell is None:
        return DASH
    if isinstance(cell, bool):
        return YES if cell else NO
    if isinstance(cell, str):
        return cell
    if column.unit == "$" and isinstance(cell, float) and isinstance(column.form, str):
        return format(Decimal(str(cell)), column.form)  # rounds half a cent as `usd` does
    text = column.form(cell) if callable(column.form) else format(cell, column.form)
    return text.removeprefix("-") if "0" in text and not re.search("[1-9]", text) else text  # no negative zero


def with_unit(cell: Cell, column: Column) -> str:
    """A cell for readers, with the unit of its column: `$1.50`, `3.2 s`."""
    if not column.unit or cell is None or isinstance(cell, bool | str):
        return shown(cell, column)
    if column.unit != "$":
        return f"{shown(cell, column)} {column.unit}"
    size = shown(abs(cell), column)
    return f"{'-' if cell < 0 and size.strip('0.,') else ''}${size}"


def _joined(cells: Sequence[tuple[Cell, Column]]) -> str:
    """`low to high`, `from low` or `up to high`; empty without a value."""
    texts = [with_unit(cell, column) for cell, column in cells if cell not in (None, "")]
    is_open = len(cells) == 2 and len(texts) == 1 and None in (cells[0][0], cells[1][0])
    return f"{'from' if cells[1][0] is None else 'up to'} {texts[0]}" if is_open else " to ".join(texts)


def text(table: Table) -> str:
    """The title and `columns_text`."""
    return f"{table.title}\n\n{columns_text(table)}"


def columns_text(table: Table) -> str:
    """Aligned columns; the two ends of an interval are one column."""
    spans: list[list[int]] = []
    for i, column in enumerate(table.columns):
        before = table.columns[spans[-1][-1]] if spans else column
        if column.below and spans and before.below and before.group == column.group and len(spans[-1]) == 1:
            spans[-1].append(i)
        else:
            spans.append([i])
    header = [
        c.group or c.name if c.below else f"{c.group} {c.name}".strip()
        for c in (table.columns[span[0]] for span in spans)
    ]
    rows = [[_joined([(row[i], table.columns[i]) for i in span]) or DASH for span in spans] for row in table.rows]
    return aligned(header, rows)


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; those with numbers only are right-aligned. Cells are wrapped if stdout is a terminal that is too
    narrow; otherwise every row is one line."""
    from rich.cells import cell_len, set_cell_size

    cells = [[clean(c).replace("\n", " ") for c in row] for row in [header, *rows]]
    widths = [max(cell_len(row[i]) for row in cells) for i in range(len(header))]
    if sys.stdout.isatty() and sum(widths) + 2 * len(widths) > (width := shutil.get_terminal_size().columns):
        return _wrapped(cells, widths, width)
    figures = [all(_FIGURE.match(row[i]) for row in cells[1:]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        aligned = (c.rjust(w) if f else set_cell_size(c, w) for c, w, f in zip(row, widths, figures, strict=True))
        return "  ".join(aligned).rstrip()

    return "\n".join([line(cells[0]), "  ".join("-" * w for w in widths), *map(line, cells[1:])])


def _wrapped(cells: Sequence[Sequence[str]], full: Sequence[int], width: int) -> str:
    from rich import box
    from rich.cells import cell_len
    from rich.console import Console, JustifyMethod
    from rich.table import Table
    from rich.text import Text

    header, *rows = cells
    widths = [max((cell_len(word) for row in cells for word in row[i].split()), default=1) for i in range(len(header))]
    room = width - sum(widths) - len(widths) - 1  # a space between columns and at both ends
    whole = room >= 0  # words are broken only if not all fit
    for _ in range(room):
        widest = max(range(len(widths)), key=lambda i: full[i] - widths[i])
        widths[widest] = min(widths[widest] + 1, full[widest])
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for i, name in enumerate(header):
        justify: JustifyMethod = "right" if all(_FIGURE.match(row[i]) for row in rows) else "left"
        drawn.add_column(Text(name), justify=justify, overflow="fold", width=widths[i] if whole else None)
    for row in rows:
        drawn.add_row(*map(Text, row))
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(drawn)
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())


def csv_text(table: Table) -> str:
    """The paper's headers, numbers unrounded, missing values empty; text that a spreadsheet would run as a formula
    begins with `'`."""
    buffer = io.StringIO(newline="")
    lines = csv.writer(buffer, lineterminator="\n")
    lines.writerow([guarded(column.header) for column in table.columns])
    lines.writerows(map(guarded, row) for row in table.rows)
    return buffer.getvalue().removesuffix("\n")


def latex(table: Table) -> str:
    """A tabular of booktabs rules inside a table environment, no wider than the line; text columns left, of several
    lines if long, numbers and empty columns right."""
    aligned = "".join(_alignment(i, [row[i] for row in table.rows]) for i in range(len(table.columns)))
    lines = [r"\begin{table}", r"\centering", r"\begin{adjustbox}{max width=\linewidth}"]
    lines += [rf"\begin{{tabular}}{{{aligned}}}", r"\toprule"]
    if any(column.group for column in table.columns):
        heads, rules, at = [], [], 1
        for group, members in groupby(column.group for column in table.columns):
            n = len(list(members))
            heads.append(rf"\multicolumn{{{n}}}{{c}}{{{_escaped(group)}}}" if group else " & ".join([""] * n))
            rules += [rf"\cmidrule(lr){{{at}-{at + n - 1}}}"] * bool(group)
            at += n
        lines += [_line(heads), " ".join(rules)]
    names = [_escaped(column.name if column.group else column.header) for column in table.columns]
    lines += [_line(names), r"\midrule"]
    for i, row in enumerate(table.rows):
        texts = [_escaped(shown(cell, column)) for cell, column in zip(row, table.columns, strict=True)]
        cells = [t if isinstance(cell, str) else re.sub(r"^-\b", "$-$", t) for cell, t in zip(row, texts, strict=True)]
        lines.append(_line([_MARKS[table.marks.get((i, j))].format(cell) for j, cell in enumerate(cells)]))
    lines += [r"\bottomrule", r"\end{tabular}", r"\end{adjustbox}"]
    lines += [rf"\caption{{{_escaped(table.title)}}}", r"\end{table}"]
    before = [r"% \usepackage{booktabs,amssymb,adjustbox}"]
    if any(unicodedata.east_asian_width(c) in "FW" for line in lines for c in line):
        before.append(r"% \usepackage[scheme=plain]{ctex} and XeLaTeX or LuaLaTeX, for the Chinese characters")
    return "\n".join([*before, *(f"% {clean(note)}".replace("\n", " ") for note in table.notes), *lines])


def _alignment(i: int, cells: Sequence[Cell]) -> str:
    if {type(cell) for cell in cells} - {type(None)} != {str}:
        return "r"
    return "p{5cm}" if i and max(len(str(cell)) for cell in cells) > 40 else "l"  # the first column names the row


def _line(cells: list[str]) -> str:
    before = "{}" if cells[0].startswith(("[", "*")) else ""  # which \\ of the line before would take as its argument
    return before + " & ".join(cells) + r" \\"


def _escaped(text: str) -> str:
    return "".join(_SPECIAL.get(c, c) for c in re.sub("-(?=-)", "-\0", clean(text).replace("\n", " ")))


def markdown(table: Table) -> str:
    """A table of Markdown, with the title above and the notes below."""
    rows = [
        [
            _MARKDOWN[table.marks.get((i, j))].format(_cell(shown(cell, column)))
            for j, (cell, column) in enumerate(zip(row, table.columns, strict=True))
        ]
        for i, row in enumerate(table.rows)
    ]
    lines = [[_cell(column.header) for column in table.columns], ["---", *["---:"] * (len(table.columns) - 1)], *rows]
    body = ["| " + " | ".join(line) + " |" for line in lines]
    return "\n".join([f"**{_cell(table.title)}**", "", *body, *([""] if table.notes else []), *map(_cell, table.notes)])


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


def page_table(table: Table, first: Sequence[dict[str, Any]] = ()) -> dict[str, Any]:
    """For a page, as JSON: `columns` (heading, sentence, what is below) and `rows` of cells, a text or `{t: text,
    s: small print, k: what the column is sorted by, m: mark, b: [fraction, low, high] of a bar, h: address}`; `first`
    is added to the first cells."""
    heads = [i for i, column in enumerate(table.columns) if not column.below]
    spans = [range(i, end) for i, end in zip(heads, [*heads[1:], len(table.columns)], strict=True)]
    rows = [[_page_cell(table, i, span) for span in spans] for i in range(len(table.rows))]
    for row, more in zip(rows, first, strict=False):
        row[0] = (row[0] if isinstance(row[0], dict) else {"t": row[0]}) | more
    columns = []
    for head, *below in ([table.columns[i] for i in span] for span in spans):
        small = below[0].group or (below[0].name if len(below) == 1 else "95 %") if below else ""
        columns.append([f"{head.group} {head.name}".strip(), head.about, small])
    return {"title": table.title, "columns": columns, "rows": rows, "notes": list(table.notes)}


def _page_cell(table: Table, row: int, span: range) -> Any:
    cells, column = table.rows[row], table.columns[span[0]]
    value = cells[span[0]]
    number = isinstance(value, int | float) and not isinstance(value, bool)
    parts = {
        "s": _joined([(cells[i], table.columns[i]) for i in span[1:]]),
        "k": value if number else None,
        "m": table.marks.get((row, span[0])),
        "b": [cells[i] for i in span if isinstance(cells[i], float)] if column.bar and number else None,
    }
    text = with_unit(value, column)
    used = {name: part for name, part in parts.items() if part not in (None, "")}
    return {"t": text} | used if used else text


FORMATS: Mapping[str, Callable[[Table], str]] = {
    "text": text,
    "csv": csv_text,
    "latex": latex,
    "json": lambda table: json.dumps(as_json(table), indent=2, ensure_ascii=False, allow_nan=False),
}
