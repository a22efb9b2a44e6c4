"""A table as data, which `report.render` shows as text, JSON, CSV, LaTeX, Markdown or a table of a page; cells of CSV
files and texts for a terminal, without formulas and control characters."""

import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import groupby
from typing import Any, Literal

DASH = "\N{EN DASH}"
Cell = str | float | bool | None  # None: no value, shown as DASH
Mark = Literal["best", "second", "third"]  # bold, underlined, italic


@dataclass(frozen=True)
class Column:
    key: str
    """The name in JSON."""
    name: str
    """The heading."""
    form: str | Callable[[Any], str] = ""
    """The format of its numbers for readers; CSV and JSON have them unrounded."""
    group: str = ""
    """The heading over several columns."""
    higher_is_better: bool | None = None
    """None: the column does not rank the rows."""
    unit: str = ""
    """In the heading of CSV, LaTeX and Markdown, and in every cell of text and pages."""
    below: bool = False
    """On a page, in small print below the column before: two such columns are an interval, `low to high`."""
    bar: bool = False
    """On a page, fractions of 1 have a bar; with an interval below, also its ends."""
    about: str = ""
    """What the column means, as a sentence."""

    @property
    def header(self) -> str:
        heading = f"{self.name} ({self.unit})" if self.unit and not self.group else self.name
        return f"{self.group} {heading}".strip()


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    """Notes on values that are missing, estimated or interpreted, one sentence each."""
    marks: Mapping[tuple[int, int], Mark] = field(default_factory=dict)
    """(row, column) -> how readers see the cell."""
    ranked_within: str | None = None
    """The key of a column: rows with the same value of it are ranked among each other."""

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.title

    @property
    def keys(self) -> list[str]:
        """The columns' keys; one that an earlier column has is followed by the column's number."""
        keys = [column.key for column in self.columns]
        return [key if keys.index(key) == i else f"{key}_{i + 1}" for i, key in enumerate(keys)]


def table_of(title: str, columns: Sequence[Column], rows: Iterable[Any], notes: Sequence[str] = ()) -> Table:
    """The table of `rows` by the columns' keys: of a mapping its keys; of any other object attributes and indices with
    dots between them (`rate.interval.0`), without a value after None. A column is left out if it and what is below it
    have no value in any row; an interval has both ends or none."""
    cells = [[_value(row, column.key) for column in columns] for row in rows]
    intervals = groupby(range(len(columns)), lambda i: columns[i].group if columns[i].below else i)
    used: list[int] = []
    for ends in reversed([list(ends) for _, ends in intervals]):
        has_values = any(row[i] is not None for row in cells for i in ends)
        if has_values or (used and columns[used[0]].below and not columns[ends[0]].below):
            used = [*ends, *used]
    kept = tuple(columns[i] for i in used)
    return Table(title, kept, tuple(tuple(row[i] for i in used) for row in cells), tuple(notes))


def _value(row: Any, key: str) -> Any:
    if isinstance(row, Mapping):
        row = row.get(key)
    else:
        for part in key.split("."):
            if row is not None:
                row = row[int(part)] if part.isdigit() else getattr(row, part)
    return float(row) if isinstance(row, Fraction) else row


FORMULA = "^'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
"""Text that is a formula in spreadsheets, including full-width forms (OWASP, CSV injection), or one behind `'`."""
_NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")


def guarded(cell: Any) -> Any:
    """A cell of a CSV file: with `'` before text that a spreadsheet would run as a formula; numbers are unchanged."""
    formula = isinstance(cell, str) and re.match(FORMULA, cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if formula else cell


def unguarded(text: str) -> str:
    """The text that `guarded` made this of."""
    return text[1:] if text.startswith("'") and re.match(FORMULA, text) else text


def clean(text: str) -> str:
    """Remove control, format and bidirectional characters that a terminal would interpret."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))
