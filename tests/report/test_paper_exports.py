"""Tables and figures for papers: their numbers are those of the summary, marks are the best and second best."""

import csv
import io
import re
from dataclasses import replace

import pytest

from local_bench.core.money import MICRO, usd_number
from local_bench.core.table import Column, Table
from local_bench.report.panels import Figure, Point, Points
from local_bench.report.papers.draw import canvas_of, plain
from local_bench.report.render import latex, markdown
from local_bench.report.site.paper import _front, digits, figures, tables, write_figures, write_tables
from local_bench.report.site.summary import accounts_of, summary
from local_bench.report.text import small_usd
from local_bench.runs.config import JudgeConfig, ModelConfig, RunConfig
from local_bench.runs.rundir import RunDir
from tests.annotation.conftest import make_shop
from tests.report.conftest import GAMMA, Writer, order


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    paths = [make_shop(folder / name, n, seed=n).path for name, n in (("a", 6), ("b", 5))]
    runs = [RunDir.open(path) for path in paths]
    yield summary(runs, accounts_of(runs))
    for run in runs:
        run.store.close()


def test_tables_have_the_numbers_of_the_summary_and_mark_the_best_and_second_best(found, tmp_path):
    made = tables(found)
    names = ("leaderboard", "scores", "categories", "significance")
    assert set(made) == {f"{name}{end}" for name in names for end in ("", "_2")}, "the two runs have other tasks"
    assert all(note.startswith("not comparable: ") for note in (table.notes[-1] for table in made.values()))
    assert {row[-1] for name in ("leaderboard", "leaderboard_2") for row in made[name].rows} <= {"a", "b", "ab"}
    rows = {row[0]: row for name in ("leaderboard", "leaderboard_2") for row in made[name].rows}
    for one in found.models:
        total = one.settlement.total
        row = rows[f"{one.settlement.model} ({found.names[one.run]})"]
        assert [round(x * MICRO) for x in row[1:4]] == [total.revenue_micro_usd, *total.revenue_interval_micro_usd]
    files = write_tables(made, tmp_path)
    assert {path.suffix for path in files} == {".csv", ".tex", ".md"}
    for name, table in made.items():
        header, *read = csv.reader(io.StringIO((tmp_path / f"{name}.csv").read_text()))
        assert header == [column.header for column in table.columns]
        for texts, row in zip(read, table.rows, strict=True):
            cells = ["" if x is None else x if isinstance(x, str) else float(x) for x in row]
            assert [type(cell)(text) for text, cell in zip(texts, cells, strict=True)] == cells
        text = (tmp_path / f"{name}.tex").read_text()
        assert text.count(r"\\") == len(table.rows) + 1 + any(column.group for column in table.columns)
    for name in ("leaderboard", "leaderboard_2"):
        table = tables(found)[name]
        marks = {key: mark for key, mark in table.marks.items() if key[1] == 1}
        assert len({re.search(r"\((.)\)", row[0])[1] for row in table.rows}) == 1, "of one run"
        (_, best), (_, second) = sorted(((row[1], i) for i, row in enumerate(table.rows)), reverse=True)
        assert marks[best, 1] == "best"
        assert marks[second, 1] == "second"


def test_equal_scores_have_equal_means_and_one_rank_in_any_order(tmp_path):
    """0.1 + 0.2 + 0.3 and 0.3 + 0.2 + 0.1 differ in their last digit; the mean of both is 0.2."""
    values = {"rising": (0.1, 0.2, 0.3), "falling": (0.3, 0.2, 0.1), "worse": (0.1, 0.1, 0.1)}
    config = RunConfig(
        name="r", models=[ModelConfig(card=name) for name in values], judge=JudgeConfig(card="gamma"), metrics=[]
    )
    tasks = [order(f"t{i}", "Digital", 1_000_000, 1) for i in range(3)]
    with RunDir.begin(tmp_path / "run", config) as run:
        with run.store.transaction():
            to = Writer(run)
            to.judges({GAMMA: "gamma"})
            for position, task in enumerate(tasks):
                to.task(task, position)
            for model, of_model in values.items():
                for task, value in zip(tasks, of_model, strict=True):
                    work_id = to.candidate(task, 1, model)
                    to.decision(work_id, True)
                    to.score(work_id, "brf", value, spread=value)
        assert {(row.model, row.mean, row.spread) for row in run.store.score_summaries()} == {
            *(("rising", 0.2, 0.2), ("falling", 0.2, 0.2), ("worse", 0.1, 0.1))
        }
        table = tables(summary([run], accounts_of([run])))["scores"]
    column = table.keys.index("brf")
    marks = {row[0]: table.marks.get((i, column)) for i, row in enumerate(table.rows)}
    assert marks == {"rising": "best", "falling": "best", "worse": "second"}


def test_small_p_values_are_not_printed_as_zero(found, tmp_path):
    pair = replace(found.significance[0], p=0.00004, p_holm=0.00012)
    made = {"significance": tables(replace(found, significance=[pair]))["significance"]}
    texts = {path.suffix: path.read_text() for path in write_tables(made, tmp_path)}
    assert "| \\< 0.0001 | 0.0001 |" in texts[".md"]
    assert r"& \textless{} 0.0001 & 0.0001 &" in texts[".tex"]
    assert ",4e-05,0.00012," in texts[".csv"]


def test_marks_and_special_characters_in_latex_and_markdown():
    columns = (Column("m", "model"), Column("x", "score_a", ".1f"))
    rows = (("a_b & <i>|", 1.0), ("*c*", 2.0), ("d", None))
    table = Table("Scores", columns, rows, ("one note",), {(1, 1): "best", (0, 1): "second"})
    assert all(words in latex(table) for words in (r"\textbf{2.0}", r"\underline{1.0}"))
    text = markdown(table)
    assert all(words in text for words in ("**2.0**", "<u>1.0</u>", r"a\_b & \<i\>\|", r"\*c\*"))
    assert text.splitlines()[3] == "| --- | ---: |"


def test_figures_have_the_numbers_of_the_summary_and_are_the_same_each_time(found, tmp_path):
    made = figures(found)
    by_name = {}
    for name in ("revenue", "revenue_2"):
        (bars,) = made[name].panels
        by_name |= dict(zip(bars.labels, bars.series[0].values, strict=True))
    for one in found.models:
        assert by_name[one.label] == usd_number(one.settlement.total.revenue_micro_usd)
    first = {path.name: path.read_bytes() for path in write_figures(made, tmp_path / "x")}
    assert first == {path.name: path.read_bytes() for path in write_figures(made, tmp_path / "y")}
    assert {name.rpartition(".")[2] for name in first} == {"svg", "pdf", "png", "csv"}


def test_the_pareto_front():
    points = [(1, 0.5), (2, 0.7), (2, 0.6), (3, 0.7), (4, 0.9), (1, 0.5)]
    assert _front(points) == {0, 1, 4, 5}


@pytest.mark.parametrize("points", [[(1, 0.9), (2, 0.5)], [(1, 0.5), (2, 0.9), (20, 0.6)]])
def test_the_front_is_drawn_also_if_one_model_dominates(points):
    front = _front(points)
    panel = Points("", tuple(Point(str(i), *at, i in front) for i, at in enumerate(points)), "x", "y")
    (axes,) = canvas_of(Figure(Table("t", (Column("x", "x"),), ()), (panel,))).get_axes()
    (line,) = axes.get_lines()
    assert line.get_label() == "Pareto front"
    (_, right), (bottom, _) = axes.get_xlim(), axes.get_ylim()
    assert (line.get_xdata()[-1], line.get_ydata()[0]) == (right, bottom)
    assert {(1, points[0][1]), (right, 0.9)} <= set(zip(line.get_xdata(), line.get_ydata(), strict=True))


def test_numbers_are_in_fixed_notation():
    assert [plain(x) for x in (8e-05, 1e-06, 0.5, 1.0, 12000.0)] == ["0.00008", "0.000001", "0.5", "1", "12,000"]
    amounts = [small_usd(x) for x in (9.2e-05, 0.000189, 0.0, 1.234, 419.97)]
    assert amounts == ["0.0000920", "0.000189", "0.00", "1.23", "419.97"]
    columns = (Column("m", "model"), Column("cost_usd", "cost", small_usd))
    assert "0.0000920" in latex(Table("T", columns, (("a", 9.2e-05),)))


@pytest.mark.parametrize(
    ("halves", "expected"), [([], 2), ([0.012], 3), ([0.12], 2), ([1.2], 1), ([12], 0), ([0, 0.5, 0.04], 2)]
)
def test_digits_follow_the_interval(halves, expected):
    assert digits(halves) == expected
