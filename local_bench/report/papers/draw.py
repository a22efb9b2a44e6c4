"""A figure as SVG, PDF or PNG, by matplotlib; the same figure gives the same bytes."""

import io
import warnings
from collections.abc import Callable, Sequence
from itertools import product
from pathlib import Path
from textwrap import fill, shorten
from typing import TYPE_CHECKING, Any

import numpy as np

from local_bench.core.errors import UserError
from local_bench.core.files import write_atomic
from local_bench.core.table import DASH, clean
from local_bench.report.panels import Bars, Figure, Grid, Histogram, Images, Lines, Panel, Point, Points

if TYPE_CHECKING:
    from matplotlib.figure import Figure as Canvas

SUFFIXES = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {"Software": None}}
"""Metadata that would differ between times or releases; omitted."""
_SETTINGS = {"svg.hashsalt": "local-bench", "text.parse_math": False, "pdf.fonttype": 42, "axes.unicode_minus": True}
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#000000", "#F0E442")
"""Distinguishable with all common kinds of colour blindness (Okabe and Ito 2008)."""
_STYLES = ("-", "--", ":", "-.")
SMALL = 8.5
"""Size of the smallest text of figures in points, except captions of images."""
_TEXT = 9.5
_INCHES = {1: 6.4, 2: 4.4}
"""Width of a panel by their number side by side; 3.4 for more."""
_BINS = 20
_LONGEST = 200
"""Characters of a panel's title."""
_ACROSS = 5
"""Images side by side in a panel."""


def check_suffix(out: Path) -> None:
    """UserError if the file's suffix is not a supported figure format."""
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"--out {out}: a figure is written as {', '.join(SUFFIXES)}: give a name with one of them")


def draw_all(figure: Figure, files: Sequence[Path]) -> None:
    """Draw the figure once and write it to each of `files`, in the format of its suffix. UserError as `check_suffix`,
    StorageError if writing fails."""
    import matplotlib as mpl

    for out in files:
        check_suffix(out)
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # names in scripts that the font lacks
        canvas = canvas_of(figure)
        for out in files:
            buffer = io.BytesIO()
            suffix = out.suffix.lower()
            see_through = suffix == ".svg"  # on light and dark pages
            canvas.savefig(buffer, format=suffix[1:], dpi=150, metadata=SUFFIXES[suffix], transparent=see_through)
            write_atomic(out, buffer.getvalue())


def canvas_of(figure: Figure) -> "Canvas":
    """The figure as a matplotlib figure."""
    from matplotlib.figure import Figure as Canvas

    across = _across(figure)
    down = -(-len(figure.panels) // across)
    rows_inches = [1.2 + 0.25 * len(panel.rows) for panel in figure.panels if isinstance(panel, Grid)]
    tall = max([3.8 if across < 3 else 3.4, *rows_inches]) + max(map(_slanted_inches, figure.panels))
    canvas = Canvas(figsize=(width_inches(figure), tall * down + 0.4), layout="constrained")
    grid = canvas.subplots(down, across, squeeze=False).flatten()
    names = [_names(panel) for panel in figure.panels]
    for i, (axes, panel) in enumerate(zip(grid, figure.panels, strict=False)):
        characters = int(13 * width_inches(figure) / across)  # 13 to an inch; a long name of a model has no spaces
        axes.set_title(fill(shorten(clean(panel.title), _LONGEST), characters), fontsize=_TEXT)
        _DRAWN[type(panel)](axes, panel)
        if names[i] and (i == across - 1 or len(set(names)) > 1):  # next to the panel, where it covers nothing
            axes.legend(fontsize=SMALL, loc="upper left", bbox_to_anchor=(1, 1), frameon=False)
    for axes in grid[len(figure.panels) :]:
        axes.set_axis_off()
    canvas.suptitle(clean(figure.data.title), fontsize=_TEXT)
    return canvas


def _across(figure: Figure) -> int:
    return min(figure.columns, len(figure.panels))


def _names(panel: Panel) -> tuple[str, ...]:
    """What a legend explains; empty for one series whose panel says what it is."""
    series = panel.series if isinstance(panel, Bars) else panel.lines if isinstance(panel, Lines) else ()
    named = len(series) > 1 or (isinstance(panel, Lines) and not panel.title)
    return tuple(of_panel.name for of_panel in series) if named else ()


def width_inches(figure: Figure) -> float:
    """Width of the drawn figure."""
    across = _across(figure)
    panel = _INCHES.get(across, 3.4) * (1.5 if any(isinstance(panel, Images) for panel in figure.panels) else 1)
    return max(6.4, across * max(panel, *(_labels_inches(panel) + _slanted_inches(panel) for panel in figure.panels)))


def _slanted_inches(panel: Panel) -> float:
    """Height, and width at the left, that slanted labels of the x axis need for more than 20 characters."""
    labels = panel.labels if isinstance(panel, Bars) else panel.columns if isinstance(panel, Grid) else ()
    return 0.05 * max([0, *(len(_name(label)) - 20 for label in labels)])


def _labels_inches(panel: Panel) -> float:
    """Width that keeps the labels of the x axis apart."""
    match panel:
        case Bars():
            each = 0.28 if panel.stacked else max(0.28, 0.07 * len(panel.series))
            return 1 + each * len(panel.labels)
        case Grid():
            longest = max((len(text) for row in panel.texts for text in row), default=0)
            return 2 + max(0.45, 0.1 + 0.07 * longest) * len(panel.columns)
        case _:
            return 0


def _name(text: str) -> str:
    """The name of a model or series, of which more than 48 characters lack some in the middle."""
    text = clean(text)
    return text if len(text) <= 48 else f"{text[:28]}…{text[-19:]}"


def plain(x: float, at: int | None = None) -> str:
    """A tick of an axis in fixed notation: `0.00008`, `12,000`. `at` is its number, unused."""
    return f"{x:,.12f}".rstrip("0").rstrip(".")


def _logarithmic_x(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.xaxis.set_major_formatter(FuncFormatter(plain))
    axes.xaxis.set_minor_formatter(NullFormatter())


def _bars(axes: Any, panel: Bars) -> None:
    positions = np.arange(len(panel.labels))
    width = 0.8 if panel.stacked else 0.8 / max(1, len(panel.series))
    bottom = np.zeros(len(panel.labels))
    for i, series in enumerate(panel.series):
        at = positions if panel.stacked else positions + (i - (len(panel.series) - 1) / 2) * width
        heights = np.array([np.nan if value is None else value for value in series.values])
        colour = _COLOURS[i % len(_COLOURS)]
        hatch = "///" if i >= len(_COLOURS) else None
        axes.bar(at, heights, width, bottom, color=colour, hatch=hatch, label=_name(series.name))
        for x in () if panel.stacked else at[np.isnan(heights)]:  # a missing value is not 0
            axes.text(x, 0, DASH, ha="center", va="bottom", fontsize=SMALL)
        if panel.stacked:
            bottom += np.nan_to_num(heights)
            continue
        for x, height, ends in zip(at, heights, series.ends, strict=False):
            if ends is not None:
                low, high = ends
                top = max(low, 1.1 * np.nan_to_num(height)) if high is None else high
                axes.plot([x, x], [low, top], color="black", linewidth=1)
                axes.plot([x], [height], color="black", marker="_")
                if high is None:  # open above
                    axes.plot([x], [top], color="black", marker="^", markersize=4)
    axes.set_xticks(positions, [_name(label) for label in panel.labels], rotation=45, ha="right", fontsize=SMALL)
    axes.set_xlim(-0.6, len(panel.labels) - 0.4)
    if all(value is None for series in panel.series for value in series.values):
        axes.set_yticks([])
    axes.tick_params(axis="y", labelsize=SMALL)
    axes.set_ylabel(panel.unit, fontsize=_TEXT)


def _lines(axes: Any, panel: Lines) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

    for i, line in enumerate(panel.lines):
        colour, style = _COLOURS[i % len(_COLOURS)], _STYLES[i // len(_COLOURS) % len(_STYLES)]
        axes.plot(
            line.xs, line.ys, style, color=colour, marker="o", markersize=3, linewidth=1.2, label=_name(line.name)
        )
        if line.ends:
            axes.fill_between(line.xs, *zip(*line.ends, strict=True), color=colour, alpha=0.15, linewidth=0)
    if panel.diagonal:
        axes.plot([0, 1], [0, 1], color="#777777", linestyle=":", linewidth=1)
        axes.set_xlim(0, 1)
        axes.set_ylim(0, 1)
    if panel.fractions:
        axes.set_ylim(-0.02, 1.02)
    for name, y in panel.levels:
        axes.axhline(y, color="#777777", linestyle="--", linewidth=0.8)
        axes.annotate(
            clean(name), (1, y), (-2, 2), ("axes fraction", "data"), "offset points", ha="right", fontsize=SMALL
        )
    if not any(x % 1 for line in panel.lines for x in line.xs):  # as the k of pass@k
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    if panel.logarithmic:
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.xaxis.set_major_formatter(FuncFormatter(plain))
        axes.yaxis.set_major_locator(LogLocator(numticks=8))
        axes.yaxis.set_major_formatter(FuncFormatter(plain))
        axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_xlabel(panel.x_label, fontsize=_TEXT)
    axes.set_ylabel(panel.y_label, fontsize=_TEXT)
    axes.tick_params(labelsize=SMALL)


def _histogram(axes: Any, panel: Histogram) -> None:
    values = np.array([value for value in panel.values if value > 0])  # a logarithm has no 0
    if len(values):
        low, high = values.min(), values.max()
        edges = np.geomspace(low, high, _BINS + 1) if low < high else [low / 2, low * 2]
        axes.hist(values, edges)
        _logarithmic_x(axes)
        axes.axvline(float(np.median(panel.values)) or np.nan, color="black", linestyle="--", linewidth=1)
    n_zeros = len(panel.values) - len(values)
    axes.set_xlabel(panel.unit + (f" ({n_zeros:,} of 0 are not shown)" if n_zeros else ""), fontsize=_TEXT)
    axes.set_ylabel("count", fontsize=_TEXT)
    axes.yaxis.get_major_locator().set_params(integer=True)
    axes.tick_params(labelsize=SMALL)


def _points(axes: Any, panel: Points) -> None:
    front = sorted((point.x, point.y) for point in panel.points if point.on_front)
    for on_front, colour in ((True, "#0072B2"), (False, "#777777")):
        shown = [point for point in panel.points if point.on_front == on_front]
        axes.scatter([point.x for point in shown], [point.y for point in shown], s=18, color=colour, zorder=3)
    costs = [point.x for point in panel.points]
    if min(costs) > 0 and max(costs) > 10 * min(costs):
        _logarithmic_x(axes)
    else:
        axes.ticklabel_format(axis="x", style="plain", useOffset=False)
    axes.set_xlabel(panel.x_label, fontsize=_TEXT)
    axes.set_ylabel(panel.y_label, fontsize=_TEXT)
    axes.tick_params(labelsize=SMALL)
    axes.margins(0.15)
    low, high = axes.get_ylim()  # of a fraction, so that ticks in the margins say nothing
    axes.set_yticks([tick for tick in axes.get_yticks() if max(low, 0) <= round(tick, 9) <= min(high, 1)])
    _names_at(axes, panel.points)
    if not front:
        return
    # From the axes' lower edge to their right one, so that a single point that dominates all has a front too.
    (_, right), (bottom, _) = axes.get_xlim(), axes.get_ylim()
    xs, ys = zip(*front, strict=True)
    axes.plot(
        [xs[0], *xs, right], [bottom, *ys, ys[-1]], color="#0072B2", linewidth=1, drawstyle="steps-post",
        label="Pareto front", scalex=False, scaley=False,
    )  # fmt: skip
    axes.legend(fontsize=SMALL, loc="lower right", frameon=False)


def _names_at(axes: Any, points: Sequence[Point]) -> None:
    """Write each name next to its point, inside the axes and over no other name or point if there is such a place."""
    from matplotlib.transforms import Bbox

    axes.figure.draw_without_rendering()  # sets the axes' place
    frame = axes.get_window_extent()
    centres = axes.transData.transform([(point.x, point.y) for point in points])
    taken = [Bbox([centre - 3, centre + 3]) for centre in centres]
    for point in points:
        text = axes.annotate(_name(point.name), (point.x, point.y), (4, 4), textcoords="offset points", fontsize=SMALL)
        for y, x in product((4, -4, 14, -14, 24, -24), (4, -4)):
            text.set(position=(x, y), ha="left" if x > 0 else "right", va="bottom" if y > 0 else "top")
            box = text.get_window_extent()
            if frame.x0 <= box.x0 and box.x1 <= frame.x1 and not box.count_overlaps(taken):
                break
        taken.append(box)


def _grid(axes: Any, panel: Grid) -> None:
    values = np.array([[np.nan if x is None else x for x in row] for row in panel.values])
    axes.imshow(values, cmap="PuOr" if panel.diverging else "cividis", vmin=0, vmax=1, aspect="auto")
    texts = panel.texts or tuple(tuple(DASH if x is None else f"{100 * x:.0f} %" for x in row) for row in panel.values)
    for i, row in enumerate(panel.values):
        for j, value in enumerate(row):
            dark = value is not None and (abs(value - 0.5) > 0.3 if panel.diverging else value <= 0.55)
            axes.text(j, i, texts[i][j], ha="center", va="center", fontsize=SMALL, color="white" if dark else "black")
    axes.set_xticks(
        range(len(panel.columns)), [_name(x) for x in panel.columns], rotation=45, ha="right", fontsize=SMALL
    )
    axes.set_yticks(range(len(panel.rows)), [_name(x) for x in panel.rows], fontsize=SMALL)


def _images(axes: Any, panel: Images) -> None:
    axes.set_axis_off()
    across = min(_ACROSS, len(panel.images)) or 1
    down = -(-len(panel.images) // across)
    for i, (image, caption) in enumerate(zip(panel.images, panel.captions, strict=True)):
        bounds = (i % across / across, 1 - (i // across + 1) / down + 0.1 / down, 0.96 / across, 0.88 / down)
        inner = axes.inset_axes(bounds)
        inner.set(xticks=[], yticks=[])
        inner.set_xlabel(clean(caption), fontsize=6)
        if image is not None:
            inner.imshow(np.asarray(image))


_DRAWN: dict[type, Callable[[Any, Any], None]] = {
    Bars: _bars, Histogram: _histogram, Images: _images, Points: _points, Lines: _lines, Grid: _grid,
}  # fmt: skip
