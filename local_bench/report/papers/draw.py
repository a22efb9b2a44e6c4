"""A figure as SVG, PDF or PNG, by matplotlib; the same figure gives the same bytes."""

import io
import warnings
from pathlib import Path
from textwrap import shorten
from typing import Any

import numpy as np

from local_bench.core.errors import UserError
from local_bench.core.storage import write_atomic
from local_bench.core.tables import clean
from local_bench.report.papers.table import DASH, Bars, Figure, Grid, Histogram, Panel, Pictures, Points

SUFFIXES = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}, ".png": {"Software": None}}
"""With the metadata that would differ from one time or release to another."""
_SETTINGS = {"svg.hashsalt": "local-bench", "text.parse_math": False, "pdf.fonttype": 42, "axes.unicode_minus": True}
_INCHES = 3.4
_BINS = 20
_LONGEST = 200
"""Characters of a panel's title."""
_ACROSS = 5
"""Images side by side in a panel."""


def check_suffix(out: Path) -> None:
    """UserError where the file's ending is no format of a figure."""
    if out.suffix.lower() not in SUFFIXES:
        raise UserError(f"--out {out}: a figure is written as {', '.join(SUFFIXES)}: give a name with one of them")


def draw(figure: Figure, out: Path) -> None:
    """Writes the figure, in the format of the ending of `out`. UserError as `check_suffix`, StorageError if the disk
    refuses."""
    import matplotlib as mpl
    from matplotlib.figure import Figure as Canvas

    check_suffix(out)
    with mpl.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from")  # names in scripts that the font lacks
        across = min(figure.columns, len(figure.panels))
        down = -(-len(figure.panels) // across)
        inches = _INCHES * (1.5 if any(isinstance(panel, Pictures) for panel in figure.panels) else 1)
        canvas = Canvas(figsize=(max(6.4, inches * across), inches * down + 0.4), layout="constrained")
        places = canvas.subplots(down, across, squeeze=False).flatten()
        for axes, panel in zip(places, figure.panels, strict=False):
            axes.set_title(shorten(clean(panel.title), _LONGEST), fontsize=9, wrap=True)
            _draw(axes, panel)
        for axes in places[len(figure.panels) :]:
            axes.set_axis_off()
        canvas.suptitle(clean(figure.data.title), fontsize=10)
        buffer = io.BytesIO()
        suffix = out.suffix.lower()
        canvas.savefig(buffer, format=suffix[1:], dpi=150, metadata=SUFFIXES[suffix])
    write_atomic(out, buffer.getvalue())


def _draw(axes: Any, panel: Panel) -> None:
    match panel:
        case Bars():
            _bars(axes, panel)
        case Histogram():
            _histogram(axes, panel)
        case Pictures():
            _pictures(axes, panel)
        case Points():
            _points(axes, panel)
        case Grid():
            _grid(axes, panel)


def _bars(axes: Any, panel: Bars) -> None:
    places = np.arange(len(panel.labels))
    width = 0.8 / max(1, len(panel.series))
    for i, series in enumerate(panel.series):
        at = places + (i - (len(panel.series) - 1) / 2) * width
        heights = [np.nan if value is None else value for value in series.values]
        axes.bar(at, heights, width, label=clean(series.name))
        for x, height, ends in zip(at, heights, series.ends, strict=False):
            if ends is not None:
                axes.plot([x, x], ends, color="black", linewidth=1)
                axes.plot([x], [height], color="black", marker="_")
    axes.set_xticks(places, [clean(label) for label in panel.labels], rotation=45, ha="right", fontsize=7)
    axes.set_xlim(-0.6, len(panel.labels) - 0.4)
    axes.tick_params(axis="y", labelsize=7)
    axes.set_ylabel(panel.unit, fontsize=8)
    if len(panel.series) > 1:
        axes.legend(fontsize=7)


def _histogram(axes: Any, panel: Histogram) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    values = np.array([value for value in panel.values if value > 0])  # a logarithm has no 0
    if len(values):
        low, high = values.min(), values.max()
        edges = np.geomspace(low, high, _BINS + 1) if low < high else [low / 2, low * 2]
        axes.hist(values, edges)
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
        axes.xaxis.set_minor_formatter(NullFormatter())
        axes.axvline(float(np.median(values)), color="black", linestyle="--", linewidth=1)
    axes.set_xlabel(panel.unit, fontsize=8)
    axes.set_ylabel("count", fontsize=8)
    axes.tick_params(labelsize=7)


def _points(axes: Any, panel: Points) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

    front = sorted((point.x, point.y) for point in panel.points if point.on_front)
    axes.plot([x for x, _ in front], [y for _, y in front], color="#0072B2", linewidth=1, drawstyle="steps-post")
    for on_front, colour in ((True, "#0072B2"), (False, "#777777")):
        of = [point for point in panel.points if point.on_front == on_front]
        axes.scatter([point.x for point in of], [point.y for point in of], s=18, color=colour, zorder=3)
    for point in panel.points:
        axes.annotate(clean(point.name), (point.x, point.y), xytext=(4, 4), textcoords="offset points", fontsize=6.5)
    costs = [point.x for point in panel.points]
    if min(costs) > 0 and max(costs) > 10 * min(costs):
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        axes.xaxis.set_minor_formatter(NullFormatter())
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.set_xlabel(panel.x_label, fontsize=8)
    axes.set_ylabel(panel.y_label, fontsize=8)
    axes.tick_params(labelsize=7)
    axes.margins(0.15)


def _grid(axes: Any, panel: Grid) -> None:
    values = np.array([[np.nan if x is None else x for x in row] for row in panel.values])
    axes.imshow(values, cmap="cividis", vmin=0, vmax=1, aspect="auto")
    for i, row in enumerate(panel.values):
        for j, value in enumerate(row):
            colour = "black" if value is None or value > 0.55 else "white"
            axes.text(
                j, i, DASH if value is None else f"{value:.0%}", ha="center", va="center", fontsize=7, color=colour
            )
    axes.set_xticks(range(len(panel.columns)), [clean(x) for x in panel.columns], rotation=45, ha="right", fontsize=7)
    axes.set_yticks(range(len(panel.rows)), [clean(x) for x in panel.rows], fontsize=7)


def _pictures(axes: Any, panel: Pictures) -> None:
    axes.set_axis_off()
    across = min(_ACROSS, len(panel.images)) or 1
    down = -(-len(panel.images) // across)
    for i, (image, caption) in enumerate(zip(panel.images, panel.captions, strict=True)):
        place = (i % across / across, 1 - (i // across + 1) / down + 0.1 / down, 0.96 / across, 0.88 / down)
        inner = axes.inset_axes(place)
        inner.set_xticks([])
        inner.set_yticks([])
        inner.set_xlabel(clean(caption), fontsize=6)
        if image is not None:
            inner.imshow(np.asarray(image))
