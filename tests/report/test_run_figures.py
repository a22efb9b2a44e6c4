"""Figures: they have the values of their tables, and the tables have those of the run."""

import json
import sqlite3
from dataclasses import replace
from decimal import Decimal
from math import comb
from pathlib import Path

import numpy as np
import pytest
from matplotlib.text import Text

from local_bench.analysis.settlement import accounting
from local_bench.cli.main import main
from local_bench.core.table import Table
from local_bench.report.panels import Bars, Figure, Grid, Histogram, Lines, Point, Points
from local_bench.report.papers.draw import SMALL, canvas_of, width_inches
from local_bench.report.site.details import RunDetails
from local_bench.report.site.paper import figures, tables
from local_bench.report.site.run_figures import numbered, run_figures
from local_bench.report.site.significance import Pair, letters
from local_bench.report.site.summary import accounts_of, summary
from local_bench.runs.config import JudgeConfig, ModelConfig, RunConfig
from local_bench.runs.rundir import RunDir
from tests.annotation.conftest import MODELS, answer_all, make_shop
from tests.report.conftest import Writer, order

HOUR = 3_600_000_000_000
PHASES = ("load", "denoise", "decode")


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """Three attempts of two models, with metered time and an annotator's decisions."""
    path = tmp_path_factory.mktemp("figures") / "shop"
    make_shop(path, 8, attempts=3)
    ledger = sqlite3.connect(path / "ledger.sqlite")
    with ledger:
        ledger.execute("INSERT INTO sessions VALUES (1, '2026-11-24T00:00:00+00:00', 'cpu', 0, 'done')")
        for n, (work_id,) in enumerate(ledger.execute("SELECT work_id FROM candidates").fetchall()):
            for name, value in (("veq", 1 + n % 5), ("cns", None)):  # without other images, cns does not apply
                row = (work_id, name, value, value is not None)
                ledger.execute("INSERT INTO scores VALUES (?, ?, 'judge', ?, NULL, ?, NULL)", row)
        t = 0
        for i, model in enumerate((*MODELS, None)):
            for k, phase in enumerate(PHASES if model else ("judge",)):
                end = t + (1 + i + k) * HOUR
                ledger.execute("INSERT INTO meter VALUES (1, ?, ?, ?, ?, 10, NULL)", (t, end, phase, model))
                t = end
    ledger.close()
    answers = iter(range(10**6))
    answer_all(path, "accept", {"a": "annotator"}, lambda name, item, field, key: next(answers) % 3 > 0)
    with RunDir.open(path) as opened:
        yield opened


@pytest.fixture(scope="module")
def made(run):
    decided = RunDetails(run, {}).decided_by_people
    assert decided
    money = accounting(run.store, run.config.settlement)
    found = summary([run], [money])
    return figures(found) | run_figures(run, money, run.store.outcomes(), decided)


def test_all_figures_are_made(run, made):
    of_people = {"acceptance_by_score", "what_predicts_payment", "calibration"}
    of_run = {"scores_by_category", "time_by_phase", "throughput", "break_even", "pass_at_k"}
    assert set(made) == {"revenue", "cost_quality", "categories", "significance"} | of_run | of_people
    without_people = run_figures(run, accounting(run.store, run.config.settlement), run.store.outcomes())
    assert not {"acceptance_by_score", "calibration"} & set(without_people)
    assert "scores_by_category" in without_people
    numbered_figures = numbered(made, 1, "shop")  # those of several runs
    assert set(numbered_figures) == {f"{name}_2" for name in made}
    assert numbered_figures["revenue_2"].data.title.endswith(": shop")


def _drawn(axes, panel):
    """The numbers that matplotlib was given, in the order of the panel's table."""
    match panel:
        case Bars():
            heights = [bar.get_height() for container in axes.containers for bar in container]
            assert [text.get_text() for text in axes.get_xticklabels()] == list(panel.labels)
            return heights
        case Lines():
            lines = [line for line in axes.get_lines() if line.get_marker() == "o"]
            dashed = [line.get_ydata()[0] for line in axes.get_lines() if line.get_linestyle() == "--"]
            levels = dashed[-len(panel.levels) :] if panel.levels else []
            return [y for line in lines for y in line.get_ydata()] + levels
        case Points():
            return sorted(tuple(at) for found in axes.collections for at in found.get_offsets())
        case Grid():
            return [x for row in axes.get_images()[0].get_array().filled(np.nan) for x in row]


def test_figures_have_the_values_of_their_tables_labels_of_one_size_and_one_legend(made):
    for name, figure in made.items():
        columns = [column.key for column in figure.data.columns]
        axes = canvas_of(figure).get_axes()
        if "value" in columns:
            values = [row[columns.index("value")] for row in figure.data.rows]
        elif name == "revenue":
            values = [row[1] for row in figure.data.rows]
        elif name == "cost_quality":
            values = sorted((row[1], row[2]) for row in figure.data.rows)
        else:
            values = [x for row in figure.data.rows for x in row[1:]]
        drawn = [x for place, panel in zip(axes, figure.panels, strict=False) for x in _drawn(place, panel)]
        if name == "significance":  # the shades mark differences; the texts are the numbers
            texts = [text.get_text().rstrip(" +\N{MINUS SIGN}") for text in axes[0].texts]
            drawn = [float(text) if text else None for text in texts]
            values = [None if x is None else round(x, 3) for x in values]
        assert len(drawn) == len(values), name
        for one, other in zip(drawn, values, strict=True):
            assert (other is None and (one is None or np.isnan(one))) or one == pytest.approx(other), name
    for name, figure in made.items():
        canvas = canvas_of(figure)
        assert canvas.get_size_inches()[0] == pytest.approx(width_inches(figure))
        texts = [one for one in canvas.findobj(Text) if one.get_text()]
        assert min(one.get_fontsize() for one in texts) >= SMALL, name
        assert min(figure.columns, len(figure.panels)) <= 2
    assert sum(axes.get_legend() is not None for axes in canvas_of(made["scores_by_category"]).get_axes()) == 1


def test_time_by_phase_is_that_of_the_meter(made):
    rows = made["time_by_phase"].data.rows
    hours = {(label, phase): value for _, phase, label, value, *_ in rows if value is not None}
    assert hours == {
        (model or "all models", phase): 1 + i + k
        for i, model in enumerate((*MODELS, None))
        for k, phase in enumerate(PHASES if model else ("judge",))
    }
    (axes,) = canvas_of(made["time_by_phase"]).get_axes()
    tops = [bar.get_y() + np.nan_to_num(bar.get_height()) for bars in axes.containers for bar in bars]
    assert max(tops) == pytest.approx(sum(2 + k for k in range(3)))  # the second model's hours, stacked
    assert not axes.texts, "a phase that a model has not is no missing value at the foot of its bar"


def test_a_single_line_has_its_model_s_name_and_costs_of_0_are_on_no_logarithmic_axis(run, made):
    curve = made["break_even"].panels[0]
    (axes,) = canvas_of(replace(made["break_even"], panels=(replace(curve, lines=curve.lines[1:]),))).get_axes()
    assert [text.get_text() for text in axes.get_legend().get_texts()] == [curve.lines[1].name]
    figures_of_models = [made["pass_at_k"].panels[0].lines, made["scores_by_category"].panels[0].series, curve.lines]
    assert [[one.name for one in shown] for shown in figures_of_models] == [list(MODELS)] * 3, "in the same colours"
    costs = made["cost_quality"].panels[0]
    assert (costs.x_label, costs.y_label) == (
        "cost of all attempts in US dollars",
        "fraction of first attempts accepted",
    )
    free = accounting(run.store, run.config.settlement.model_copy(update={"usd_per_hour": Decimal(0)}))
    assert "break_even" not in run_figures(run, free, run.store.outcomes())


def test_names_of_close_points_and_texts_of_cells_do_not_cover_each_other():
    costs, accepted = (32, 36, 33, 35, 40, 43, 43, 44), (0.71, 0.67, 0.3, 0.13, 0.79, 0.8, 0.89, 0.87)
    points = tuple(
        Point(f"mini-model-{i} (demo)", x, y, i == 0) for i, (x, y) in enumerate(zip(costs, accepted, strict=True))
    )
    names, cells = tuple(point.name for point in points), (("< 0.001 \N{MINUS SIGN}",) * 8,) * 8
    panels = Points("", points, "cost", "accepted"), Grid("", names, names, ((0.0,) * 8,) * 8, cells)
    for panel in panels:
        canvas = canvas_of(Figure(Table("figure", (), ()), (panel,)))
        canvas.draw_without_rendering()
        (axes,) = canvas.get_axes()
        boxes, frame = [text.get_window_extent() for text in axes.texts], axes.get_window_extent()
        assert all(box.count_overlaps(boxes) == 1 for box in boxes)
        assert all(frame.x0 <= box.x0 < box.x1 <= frame.x1 for box in boxes)


def test_the_median_of_a_histogram_is_that_of_all_values_and_zeros_are_counted():
    prices = Histogram("Digital", (0.0, 0.0, 10.0, 100.0, 1000.0), "US dollars")
    (axes,) = canvas_of(Figure(Table("prices", (), ()), (prices,))).get_axes()
    assert [line.get_xdata()[0] for line in axes.get_lines()] == [10]
    assert sum(bar.get_height() for bar in axes.patches) == 3
    assert axes.get_xlabel() == "US dollars (2 of 0 are not shown)"


def test_pass_at_k_is_that_of_the_decisions_and_ends_at_the_model_s_own_attempts(run, made):
    passes = {}
    for row in run.store.outcomes():
        of = row.candidate
        key = of.model, of.task_id, of.attempt
        passes[key] = passes.get(key, True) and row.accepted
    curves, gaps = made["pass_at_k"].panels
    for model in MODELS:
        tasks = sorted({task for one, task, _ in passes if one == model})
        counts = [sum(passes[model, task, k] for k in (1, 2, 3)) for task in tasks]
        expected = [np.mean([1 - comb(3 - c, k) / comb(3, k) for c in counts]) for k in (1, 2, 3)]
        (line,) = [one for one in curves.lines if one.name == model]
        assert line.ys == pytest.approx(expected)
        first = np.mean([passes[model, task, 1] for task in tasks])
        assert gaps.series[0].values[gaps.labels.index(model)] == pytest.approx(expected[2] - first)
    few = [row for row in run.store.outcomes() if row.candidate.model != MODELS[0] or row.candidate.attempt == 1]
    money = accounting(run.store, run.config.settlement)
    curves, gaps_of_few = run_figures(run, money, few)["pass_at_k"].panels
    first = [row.accepted for row in few if row.candidate.model == MODELS[0]]
    assert gaps_of_few.series[0].values[gaps_of_few.labels.index(MODELS[0])] is None, "one attempt has no gap"
    assert [(line.xs, line.name) for line in curves.lines] == [((1.0,), MODELS[0]), ((1.0, 2.0, 3.0), MODELS[1])]
    assert curves.lines[0].ys == pytest.approx([np.mean(first)])


def test_significance_is_the_paired_test_with_groups(run):
    found = summary([run], accounts_of([run]))
    (pair,) = found.significance
    paid = {}
    for row in run.store.outcomes(1):
        key = row.candidate.task_id, row.candidate.model
        paid[key] = paid.get(key, 0) + (row.part_micro_usd / 1e6 if row.accepted else 0)
    tasks = sorted({task for task, _ in paid})
    a, b = pair.a, pair.b
    differences = np.array([[paid[task, a] - paid[task, b]] for task in tasks])
    assert pair.estimate == pytest.approx(differences.sum())
    signs = np.random.default_rng(1).choice((-1, 1), (20_000, len(tasks)))
    larger = np.mean(np.abs(signs @ differences) >= abs(differences.sum()) - 1e-9)
    assert pair.p == pair.p_holm == pytest.approx(larger, abs=0.02)
    assert (pair.low > 0 or pair.high < 0) == (pair.p < 0.05)
    table = tables(found)["leaderboard"]
    groups = {row[0]: row[-1] for row in table.rows}
    assert len(set(groups.values())) == (1 if pair.p_holm >= 0.05 else 2)
    assert "Holm" in table.notes[-1]


def test_images_are_compared_as_they_are_ranked(tmp_path):
    """Without prices: by first attempts. All second attempts of the better model are refused, all of the other pass."""
    models = [ModelConfig(card=model) for model in MODELS]
    config = RunConfig(name="free", models=models, judge=JudgeConfig(card="gamma"), metrics=[])
    with RunDir.begin(tmp_path / "free", config) as run, run.store.transaction():
        to = Writer(run)
        for i in range(16):
            to.task(task := order(f"t{i:02d}", "Digital", 0, 1), i)
            for better, model in enumerate(MODELS):
                for attempt in (2, 1):
                    work_id = to.candidate(task, 1, model, work_too={"attempt": attempt})
                    to.write("UPDATE candidates SET attempt = ? WHERE work_id = ?", attempt, work_id)
                    to.decision(work_id, bool(better) if attempt == 1 else not better)
    with RunDir.open(tmp_path / "free") as run:
        accounts = accounts_of([run])
        found = summary([run], accounts)
        (pair,) = found.significance
        assert (pair.a, pair.estimate) == (MODELS[1], 1)
        lead, sure = found.sentences(accounts)[:2]
    assert lead.startswith(f"{MODELS[1]} has the most first attempts accepted: 16 of 16 (")
    assert "is significant" in sure


@pytest.mark.parametrize("rates", [(0, 0), (1, 1), (0, 1), (0.2, 0.7)])
def test_no_tick_is_a_fraction_that_cannot_be_or_half_a_task(rates):
    points = tuple(Point("m", i, rate, on_front=True) for i, rate in enumerate(rates, 1))
    panels = Points("", points, "cost", "accepted"), Histogram("", (3.0, 8.0), "price")
    fractions, counts = canvas_of(Figure(Table("figure", (), ()), panels)).get_axes()
    ticks = [round(float(tick), 9) for tick in fractions.get_yticks()]
    assert len(ticks) > 1
    assert all(0 <= tick <= 1 for tick in ticks)
    assert all(tick == int(tick) for tick in counts.get_yticks())


def test_letters_of_groups_without_significant_difference():
    """a = b, b = c, but a and c differ; d differs from all."""
    same = {("a", "b"), ("b", "c")}
    p = {(x, y): 0.5 if (x, y) in same else 0.001 for x in "abcd" for y in "abcd" if x < y}
    pairs = [Pair(*names, 1.0, None, None, p_holm, p_holm, p_holm, 2, 2, None) for names, p_holm in p.items()]
    assert letters("abcd", pairs) == {"a": "a", "b": "ab", "c": "b", "d": "c"}
    assert letters("abcd", []) == {}


def test_report_writes_tables_and_figures_into_the_run(run, made, capsys):
    exports = run.path / "exports"
    earlier = [exports / "figures" / f"payment_x{suffix}" for suffix in (".svg", ".pdf", ".png", ".csv")]
    earlier += [exports / "tables" / f"common.{suffix}" for suffix in ("csv", "tex", "md")]
    own = [exports / "figures" / "of-mine.png", exports / "tables" / "of-mine.tex"]
    for path in (*earlier, *own):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("of other numbers")
    assert main(["report", str(run.path), "--figures", "--json"]) == 0
    assert not any(path.exists() for path in earlier)
    assert all(path.exists() for path in own)
    for path in own:
        path.unlink()
    exports = {Path(path) for path in json.loads(capsys.readouterr().out)["exports"]}
    assert all(path.exists() for path in exports)
    folder = run.path / "exports"
    assert {path.stem for path in exports if path.parent == folder / "figures"} == set(made)
    assert {path.name for path in exports if path.parent == folder / "tables"} == {
        f"{name}.{suffix}"
        for name in ("leaderboard", "scores", "categories", "significance")
        for suffix in ("csv", "tex", "md")
    }
