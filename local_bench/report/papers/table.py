"""What a builder returns: a table, or a figure with the table of its data. Values are in the paper's own units."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from PIL import Image

Cell = str | float | bool | None
"""None: no value (a dash)."""
Mark = Literal["best", "second", "third"]
"""Bold, underlined, italic."""
DASH = "\N{EN DASH}"
DAGGER = "\N{DAGGER}"
YES, NO = "\N{CHECK MARK}", "\N{MULTIPLICATION SIGN}"


@dataclass(frozen=True)
class Column:
    key: str
    """The name in JSON."""
    name: str
    """The header in the paper."""
    form: str | Callable[[float], str] = ""
    """The format of its numbers in text and LaTeX; CSV and JSON have them unrounded."""
    group: str = ""
    """The header over several columns."""
    higher_is_better: bool | None = None
    """None: the column does not rank the rows."""

    @property
    def header(self) -> str:
        return f"{self.group} {self.name}".strip()


@dataclass(frozen=True)
class Table:
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    notes: tuple[str, ...] = ()
    """Notes on values that are missing, estimated or interpreted, one sentence each."""
    marks: Mapping[tuple[int, int], Mark] = field(default_factory=dict)
    """(row, column) -> how LaTeX and Markdown mark the cell."""
    ranked_within: str | None = None
    """The key of a column: rows with the same value of it are ranked among each other."""

    @property
    def keys(self) -> list[str]:
        """The columns' keys; a key that an earlier column has is followed by the column's number (models and categories
        can have any name)."""
        own = [column.key for column in self.columns]
        return [key if own.index(key) == i else f"{key}_{i + 1}" for i, key in enumerate(own)]

    def __post_init__(self) -> None:
        assert all(len(row) == len(self.columns) for row in self.rows), self.title


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


def ranked(table: Table, marks: Sequence[Mark] = ("best", "second", "third")) -> Table:
    """`table` with the first values of each column that ranks its rows marked; equal values have one rank."""
    found: dict[tuple[int, int], Mark] = {}
    within = None if table.ranked_within is None else table.keys.index(table.ranked_within)
    groups: dict[Cell, list[int]] = {}
    for i, row in enumerate(table.rows):
        groups.setdefault(None if within is None else row[within], []).append(i)
    for j, column in enumerate(table.columns):
        for rows in groups.values() if column.higher_is_better is not None else ():
            values = {i: table.rows[i][j] for i in rows}
            found |= {(i, j): mark for i, mark in rank_marks(values, bool(column.higher_is_better), marks).items()}
    return replace(table, marks=found)


def rank_marks(values: Mapping[int, Cell], higher_is_better: bool, marks: Sequence[Mark]) -> dict[int, Mark]:
    """Row -> mark of its value; none for fewer than two different values."""
    numbers = {i: float(value) for i, value in values.items() if isinstance(value, float | int)}
    ordered = sorted(set(numbers.values()), reverse=higher_is_better)
    if len(ordered) < 2:
        return {}
    by_value = dict(zip(ordered, marks, strict=False))
    return {i: by_value[value] for i, value in numbers.items() if value in by_value}


def annotated(made: Table | Figure, unlike: Collection[str], notes: Sequence[str]) -> Table | Figure:
    """`made` with an asterisk after the models `unlike`, and `notes` before its own."""
    if isinstance(made, Figure):
        data = annotated(made.data, unlike, notes)
        assert isinstance(data, Table)
        return replace(made, data=data)
    if not unlike and not made.marks:
        made = ranked(made)
    rows = tuple((f"{row[0]} *", *row[1:]) if row and _name(row[0]) in unlike else row for row in made.rows)
    return replace(made, rows=rows, notes=(*notes, *made.notes))


def _name(cell: Cell) -> Cell:
    """A model's name without its dagger."""
    return cell.removesuffix(DAGGER) if isinstance(cell, str) else cell
