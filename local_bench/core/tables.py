"""Plain-text tables without control characters."""

import re
import unicodedata
from collections.abc import Sequence

FORMULA = "^[=+\\-@\t\r\n\uff1d\uff0b\uff0d\uff20]"
"""Characters that start a formula in spreadsheets, including full-width forms (OWASP, CSV injection)."""
_FIGURE = re.compile(r"[-\N{EN DASH}$\d]")


def clean(text: str) -> str:
    """Remove control, format and bidirectional characters that a terminal would interpret."""
    return "".join(c for c in text if c in "\n\t" or unicodedata.category(c) not in ("Cc", "Cf", "Cs"))


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Format aligned columns; numeric columns are right-aligned."""
    cells = [[clean(c).replace("\n", " ") for c in row] for row in [header, *rows]]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    figures = [all(_FIGURE.match(row[i]) for row in cells[1:]) for i in range(len(header))]

    def line(row: Sequence[str]) -> str:
        aligned = (c.rjust(w) if f else c.ljust(w) for c, w, f in zip(row, widths, figures, strict=True))
        return "  ".join(aligned).rstrip()

    return "\n".join([line(cells[0]), "  ".join("-" * w for w in widths), *map(line, cells[1:])])
