"""The form in which a benchmark's numbers come out."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any


@dataclass(frozen=True)
class Published:
    """A benchmark's numbers."""

    data: dict[str, Any]
    """For programs: the contract's names, and beside them counts and ends."""
    tables: Sequence[tuple[Sequence[str], list[list[str]]]]
    """For people: (header, rows)."""
    notes: list[str] = field(default_factory=list)
    """What is missing, open or left out: a sentence each."""


def number(value: Fraction | float | None) -> float | None:
    """For JSON: the nearest float, null for None."""
    return None if value is None else float(value)


def percent(value: Fraction | float | None) -> str:
    return "-" if value is None else f"{float(value):.1%}"


def dollars(value: Fraction | None) -> str:
    return "-" if value is None else f"${float(value):,.2f}"


def figure(value: Fraction | float | None, form: str = ".2f") -> str:
    return "-" if value is None else format(float(value), form)


def listed(names: Sequence[str], most: int = 5) -> str:
    """`a, b and 3 more`."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
