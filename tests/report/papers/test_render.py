"""Tables of hostile text in every format."""

import csv
import io
import json
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest

from local_bench.core.table import Column, Table, table_of
from local_bench.report.panels import Bars, Figure, Grid, Images, Line, Lines, Point, Points, Series
from local_bench.report.papers.draw import canvas_of, draw_all
from local_bench.report.render import FORMATS, columns_text, interval, latex, markdown, page_table, ranked

HOSTILE = "=a & b_c $x$ 100% \\input{/etc/passwd} <script>#~^\u202e\n--><svg"
TABLE = Table(
    "A title with $ and _",
    (Column("model", "Model"), Column("x", "X", ".1f", "G"), Column("x", "Y (%)", "d", "G"), Column("is", "Is")),
    ((HOSTILE, 0.25, None, True), ("b", -1.5, 3, False)),
    ("a note\nof two lines",),
)


@pytest.mark.parametrize(("low", "high", "joined"), [(0.28, None, "from $0.28"), (None, 0.28, "up to $0.28")])
def test_an_interval_that_is_open_in_every_row_is_open_in_every_format(low, high, joined):
    columns = (
        Column("m", "M"),
        Column("x", "X"),
        *(replace(end, unit="$") for end in interval("ends", ".2f", "0", "1")),
    )
    table = table_of(
        "T", columns, [SimpleNamespace(m="a", x=1, ends=(low, high)), SimpleNamespace(m="b", x=2, ends=None)]
    )
    assert columns_text(table).splitlines()[2].split(maxsplit=2) == ["a", "1", joined]
    assert page_table(table)["rows"][0][1]["s"] == joined
    cells = ["a", "1", *("\N{EN DASH}" if end is None else "0.28" for end in (low, high))]
    assert f"| {' | '.join(cells)} |" in markdown(table)
    assert rf"{' & '.join(cells)} \\".replace("\N{EN DASH}", "--") in latex(table)
    assert FORMATS["csv"](table).splitlines()[1] == ",".join(cells).replace("\N{EN DASH}", "")
    assert set(json.loads(FORMATS["json"](table))["rows"][0]) == {"m", "x", "ends.0", "ends.1"}


def test_csv_has_unrounded_numbers_and_no_formula_and_json_every_column():
    lines = list(csv.reader(io.StringIO(FORMATS["csv"](TABLE))))
    assert lines[0] == ["Model", "G X", "G Y (%)", "Is"]
    assert lines[1] == ["'" + HOSTILE, "0.25", "", "True"]
    assert lines[2][1] == "-1.5"
    # the categories of a benchmark are columns of some tables
    table = Table("A title", (Column("x", "=cmd|x"), Column("y", "-Y")), ((1, 2),), ())
    assert next(csv.reader(io.StringIO(FORMATS["csv"](table)))) == ["'=cmd|x", "'-Y"]
    result = json.loads(FORMATS["json"](TABLE))
    assert result["columns"] == {"model": "Model", "x": "G X", "x_3": "G Y (%)", "is": "Is"}
    assert result["rows"][0] == {"model": HOSTILE, "x": 0.25, "x_3": None, "is": True}


def test_text_is_rounded_with_a_dash_for_missing_values_aligned_as_numbers():
    (row,) = [line for line in FORMATS["text"](TABLE).splitlines() if line.startswith("=a")]
    assert row.split()[-3:] == ["0.2", "\N{EN DASH}", "\N{CHECK MARK}"]
    assert "\u202e" not in row
    result = FORMATS["text"](Table("t", (Column("cost", "Effective Cost"),), ((None,), (None,))))
    assert result.splitlines()[-1] == "\N{EN DASH}".rjust(len("Effective Cost"))
    columns = (Column("saved", "saved", ".1f"), Column("profit", "profit", ",.2f", unit="$"))
    small = columns_text(Table("t", columns, ((-0.01, -0.00002), (-1.0, -1.0)))).splitlines()
    assert [line.split() for line in small[2:]] == [["0.0", "$0.00"], ["-1.0", "-$1.00"]]  # no negative zero


def test_latex_escapes_every_special_character():
    result = FORMATS["latex"](TABLE)
    (row,) = [line for line in result.splitlines() if line.startswith("=a")]
    cell = row.split(" & 0.2 & ")[0]
    assert cell.startswith(
        r"=a \& b\_c \$x\$ 100\% \textbackslash{}input\{/etc/passwd\} \textless{}script\textgreater{}"
    )
    assert not re.search(r"(?<!\\)[&%$#_]", cell)
    assert row.endswith(r"& 0.2 & -- & $\checkmark$ \\")
    assert "% a note of two lines" in result
    assert r"\begin{tabular}{lrrr}" in result
    assert r" & \multicolumn{2}{c}{G} &  \\" in result


def test_latex_has_the_units_of_columns_minus_signs_and_numbers_at_the_right():
    columns = (
        *(Column("m", "model"), Column("x", "cost", ".2f", unit="$"), Column("y", "time", ".1f", unit="s")),
        *interval("ends", ".1f", "0", "1"),
    )
    rows = (("-1", -1.5, None, -0.25, 2.0), ("b_c", 0.5, None, None, None))
    result = latex(Table("T", columns, rows, marks={(0, 1): "best"}))
    assert r"\begin{tabular}{lrrrr}" in result
    assert r"model & cost (\$) & time (s) & 0 & 1 \\" in result
    assert r"-1 & \textbf{$-$1.50} & -- & $-$0.2 & 2.0 \\" in result
    assert r"b\_c & 0.50 & -- & -- & -- \\" in result


def test_equal_means_are_both_marked_whatever_the_last_digits_of_their_sums():
    columns = (Column("m", "Model"), Column("x", "X", ".2f", higher_is_better=True))
    rows = (("a", (7 / 6 + 7 / 6) / 2), ("b", (1 + 4 / 3) / 2), ("c", 1.0))
    assert rows[0][1] != rows[1][1]
    assert ranked(Table("T", columns, rows)).marks == {(0, 1): "best", (1, 1): "best", (2, 1): "second"}


def test_latex_is_no_wider_than_the_line_and_names_what_its_characters_need():
    columns = (Column("m", "Model"), Column("d", "Task Description"), Column("x", "X"))
    result = latex(
        Table("T", columns, (("a" * 41, "换证件照底色 ≤ 2 ≥ 1", 1), ("b---2", "word " * 9, 2), ("c", None, 3)))
    )
    assert r"b-{}-{}-2 & " in result
    assert r"\begin{adjustbox}{max width=\linewidth}" + "\n" + r"\begin{tabular}{lp{5cm}r}" in result
    assert r"\end{tabular}" + "\n" + r"\end{adjustbox}" in result
    assert r"换证件照底色 $\leq$ 2 $\geq$ 1 & 1 \\" in result
    packages = [line for line in result.splitlines() if line.startswith(r"% \usepackage")]
    assert packages[0] == r"% \usepackage{booktabs,amssymb,adjustbox}"
    assert packages[1].startswith(r"% \usepackage[scheme=plain]{ctex} and XeLaTeX or LuaLaTeX")
    assert latex(TABLE).count("usepackage") == 1


@pytest.mark.parametrize("name", ["[1] by us", "*best*"])
def test_no_cell_of_latex_is_an_argument_of_the_line_before(name):
    result = FORMATS["latex"](Table("t", (Column("m", "Model"), Column("x", "X")), ((name, 1), (name, 2)), ()))
    assert result.count(f"{{}}{name} & ") == 2


def test_a_figure_of_hostile_text_is_drawn_and_a_missing_value_is_a_dash(tmp_path):
    bars = Bars(HOSTILE * 20, (HOSTILE, "b"), (Series("s", (1.0, None)), Series("t$", (2.0, 3.0), ((1, 3), None))))
    draw_all(Figure(TABLE, (bars,)), [tmp_path / "f.svg"])
    result = (tmp_path / "f.svg").read_text()
    assert "<script" not in result
    assert result.count("<svg") == 1
    bars = Bars("cost", ("a", "b", "c"), (Series("s", (1.0, None, 0.0)),))
    (axes,) = canvas_of(Figure(Table("t", (Column("x", "x"),), ()), (bars,))).get_axes()
    assert [(text.get_text(), text.get_position()) for text in axes.texts] == [("\N{EN DASH}", (1.0, 0))]


@pytest.mark.parametrize("length", [30, 73, 128])
def test_long_names_leave_room_for_what_is_drawn(length, tmp_path):
    """A layout that does not fit is a warning of matplotlib's, here an error. No name leaves the figure."""
    long = tuple(f"{'qwen-image-edit-' * 8}"[: length - 1] + end for end in "ab")
    data = Table("t", (Column("x", "x"),), ())
    series = tuple(Series(name, (1.0, 2.0)) for name in long)
    panels = {
        "labels": (Bars("Pass Rate (%)", long, (Series("s", (1.0, 2.0)),)),) * 6,
        "legend": (Bars("", ("a", "b"), series), Bars("", ("a", "b"), series)),
        "grid": (Grid("", long, long, ((0.1, 0.2), (0.3, None))),),
        "lines": (Lines("", tuple(Line(name, (1, 2), (0.1, 0.2)) for name in long), "k", "pass"),),
        "points": (Points("", tuple(Point(name, x, x / 9, True) for x, name in enumerate(long, 1)), "x", "y"),),
        "titles": (Images(long[0], (), ()),) * 3,
    }
    for name, of in panels.items():
        draw_all(Figure(data, of), [tmp_path / f"{name}.png"])
        canvas = canvas_of(Figure(data, of))
        canvas.draw_without_rendering()
        texts = [axes.title for axes in canvas.axes if axes.title.get_text()]
        texts += [label for axes in canvas.axes for label in axes.get_xticklabels() if "qwen" in label.get_text()]
        width, height = canvas.get_size_inches() * canvas.dpi
        for box in (text.get_window_extent() for text in texts):
            assert -3 < box.x0 < box.x1 < width + 3, name  # pixels
            assert -3 < box.y0 < box.y1 < height + 3, name
        areas = [axes.get_window_extent() for axes in canvas.axes]
        assert min(area.width for area in areas) > 0.7 * canvas.dpi, name
    (axes,) = canvas_of(Figure(data, (Bars("cost", ("a",), (Series("s", (None,)),)),))).get_axes()
    assert list(axes.get_yticks()) == []


@pytest.mark.parametrize(("last", "whole"), [(3.0, True), (2.5, False)])
def test_an_axis_of_whole_numbers_has_whole_ticks(last, whole):
    lines = Lines("pass@k", (Line("a", (1.0, 2.0, last), (0.1, 0.2, 0.3)),), "k", "fraction of tasks")
    (axes,) = canvas_of(Figure(Table("t", (Column("x", "x"),), ()), (lines,))).get_axes()
    assert all(tick.is_integer() for tick in axes.get_xticks()) is whole


def test_the_first_three_values_of_a_column_are_marked_within_their_group():
    columns = (
        Column("model", "Model"),
        Column("kind", "Kind"),
        Column("n", "N", "d", "", True),
        Column("e", "E", "d", "", False),
    )
    rows = (
        ("a", "x", 3, 1),
        ("b", "x", 5, 1),
        ("c", "x", None, 4),
        ("d", "x", 3, 9),
        ("e", "x", 1, 7),
        ("f", "y", 2, 2),
    )
    found = ranked(Table("T", columns, rows, ranked_within="kind"))
    best, second, third = "best", "second", "third"
    assert found.marks == {
        (1, 2): best,
        (0, 2): second,
        (3, 2): second,
        (4, 2): third,  # equal values have one rank
        (0, 3): best,
        (1, 3): best,
        (2, 3): second,
        (4, 3): third,
    }
    text = latex(found)
    assert r"b & x & \textbf{5} & \textbf{1}" in text
    assert r"e & x & \textit{1} & \textit{7}" in text
    assert "| a | x | <u>3</u> | **1** |" in markdown(found)
    assert ranked(Table("T", columns, rows[5:])).marks == {}  # one row
