"""Cells of CSV files and texts for a terminal, without formulas and control characters."""

import re
import unicodedata
from typing import Any

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
