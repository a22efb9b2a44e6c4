"""Plain-text tables without control characters."""

import re
import shutil
import sys
import unicodedata
from collections.abc import Sequence
from typing import TypeVar

FORMULA = "^'*[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
"""Text that is a formula in spreadsheets, including full-width forms (OWASP, CSV injection), or one behind `'`."""
_NUMBER = re.compile(r"[-+]?[0-9]+(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?")
T = TypeVar("T")
_FIGURE = re.compile(r"[-\N{EN DASH}$\d]")


def guarded(cell: T) -> T | str:
    """A cell of a CSV file: with `'` before text that a spreadsheet would run as a formula; numbers are unchanged."""
    formula = isinstance(cell, str) and re.match(FORMULA, cell) and not _NUMBER.fullmatch(cell)
    return f"'{cell}" if formula else cell


def unguarded(text: str) -> str:
    """The text that `guarded` made this of."""
    return text[1:] if text.startswith("'") and re.match(FORMULA, text) else text


def clean(text: str) -> str:
    """Remove control, format and bidirectional characters that a terminal would interpret."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns; those with numbers only are right-aligned. Cells are wrapped if stdout is a terminal that is too
    narrow; otherwise every row is one line."""
    cells = [[clean(c).replace("\n", " ") for c in row] for row in [header, *rows]]
    if sys.stdout.isatty():
        width = shutil.get_terminal_size().columns
        if sum(max(map(len, column)) + 2 for column in zip(*cells, strict=True)) > width:
            return _wrapped(cells, width)
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    figures = [all(_FIGURE.match(row[i]) for row in cells[1:]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        aligned = (c.rjust(w) if f else c.ljust(w) for c, w, f in zip(row, widths, figures, strict=True))
        return "  ".join(aligned).rstrip()

    return "\n".join([line(cells[0]), "  ".join("-" * w for w in widths), *map(line, cells[1:])])


def _wrapped(cells: Sequence[Sequence[str]], width: int) -> str:
    from rich import box
    from rich.console import Console, JustifyMethod
    from rich.table import Table
    from rich.text import Text

    header, *rows = cells
    words = [max((len(word) for row in cells for word in row[i].split()), default=1) for i in range(len(header))]
    whole = sum(words) + 2 * (len(words) - 1) <= width  # words are broken only if not all fit
    drawn = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0)
    for i, name in enumerate(header):
        justify: JustifyMethod = "right" if all(_FIGURE.match(row[i]) for row in rows) else "left"
        drawn.add_column(Text(name), justify=justify, overflow="fold", min_width=words[i] if whole else None)
    for row in rows:
        drawn.add_row(*map(Text, row))
    console = Console(width=width, color_system=None)
    with console.capture() as captured:
        console.print(drawn)
    return "\n".join(line.rstrip() for line in captured.get().strip("\n").splitlines())
