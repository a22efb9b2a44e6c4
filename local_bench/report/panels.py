"""A figure: panels, and the table of their data."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from PIL import Image

from local_bench.core.table import Table
from local_bench.report.render import DAGGER, ranked


@dataclass(frozen=True)
class Series:
    """Numbers of one name; None leaves its bar out."""

    name: str
    values: tuple[float | None, ...]
    ends: tuple[tuple[float, float | None] | None, ...] = ()
    """An interval for each value, of which None is open above; empty without."""


@dataclass(frozen=True)
class Bars:
    """A bar for each label and series."""

    title: str
    labels: tuple[str, ...]
    series: tuple[Series, ...]
    unit: str = ""
    stacked: bool = False
    """The series on top of each other instead of side by side; without intervals."""


@dataclass(frozen=True)
class Histogram:
    """Counts of the values by bin, log-spaced, with a dashed line at the median."""

    title: str
    values: tuple[float, ...]
    unit: str


@dataclass(frozen=True)
class Images:
    """Images in rows, under a heading."""

    title: str
    images: tuple[Image.Image | None, ...]
    """RGB; None: an empty cell, for an image that was not generated."""
    captions: tuple[str, ...]


@dataclass(frozen=True)
class Point:
    """A labelled point; `on_front` if no other is better in both coordinates."""

    name: str
    x: float
    y: float
    on_front: bool


@dataclass(frozen=True)
class Points:
    """Labelled points, with a line through those on the Pareto front; x is logarithmic if it spans more than a
    decade."""

    title: str
    points: tuple[Point, ...]
    x_label: str
    y_label: str


@dataclass(frozen=True)
class Line:
    """Points joined by a line, with a band between lower and upper bounds if there are any."""

    name: str
    xs: tuple[float, ...]
    ys: tuple[float, ...]
    ends: tuple[tuple[float, float], ...] = ()
    """An interval for each point; empty without."""


@dataclass(frozen=True)
class Lines:
    """A line for each name."""

    title: str
    lines: tuple[Line, ...]
    x_label: str
    y_label: str
    logarithmic: bool = False
    """Both axes."""
    levels: tuple[tuple[str, float], ...] = ()
    """(name, y) of horizontal dashed lines."""
    fractions: bool = False
    """The y axis goes from 0 to 1."""
    diagonal: bool = False
    """Draw y = x, on axes from 0 to 1."""


@dataclass(frozen=True)
class Grid:
    """A heat map of numbers from 0 to 1, each cell with its text."""

    title: str
    rows: tuple[str, ...]
    columns: tuple[str, ...]
    values: tuple[tuple[float | None, ...], ...]
    texts: tuple[tuple[str, ...], ...] = ()
    """Percentages of the values if empty."""
    diverging: bool = False
    """A colour map with a neutral middle at 0.5."""


Panel = Bars | Histogram | Images | Points | Lines | Grid


@dataclass(frozen=True)
class Figure:
    data: Table
    """The figure's data, as numbers or text."""
    panels: tuple[Panel, ...] = field(repr=False)
    columns: int = 3
    """Panels side by side."""


def annotated(result: Table | Figure, unlike: Collection[str], notes: Sequence[str]) -> Table | Figure:
    """`result` with an asterisk after the models `unlike`, and `notes` before its own."""
    if isinstance(result, Figure):
        data = annotated(result.data, unlike, notes)
        assert isinstance(data, Table)
        return replace(result, data=data)
    if not unlike and not result.marks:
        result = ranked(result)
    marked = {*unlike, *(f"{name}{DAGGER}" for name in unlike)}
    rows = tuple((f"{row[0]} *", *row[1:]) if row and row[0] in marked else row for row in result.rows)
    return replace(result, rows=rows, notes=(*notes, *result.notes))
