"""A benchmark's published statistics, as data and as tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class Published:
    """A benchmark's statistics."""

    data: dict[str, Any]
    """JSON data: the names of the output contract, with counts and bounds."""
    tables: Sequence[tuple[Sequence[str], list[list[str]]]]
    """Tables for display: (header, rows)."""
    notes: list[str] = field(default_factory=list)
    """Missing, undecided or omitted data: one sentence each."""


def number(value: Fraction | float | None) -> float | None:
    """JSON number: the nearest float, null for None."""
    return None if value is None else float(value)


def percent(value: Fraction | float | None) -> str:
    return "-" if value is None else f"{100 * float(value):z.1f} %"


def dollars(value: Fraction | float | None) -> str:
    return "-" if value is None else f"${float(value):,.2f}"


def figure(value: Fraction | float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(float(value), form)


def within(ends: tuple[float, float] | None, form: str = ".2f") -> str:
    """`low to high`, the ends of an interval."""
    return "-" if ends is None else f"{ends[0]:{form}} to {ends[1]:{form}}"


def listed(names: Sequence[str], most: int = 5) -> str:
    """`a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
