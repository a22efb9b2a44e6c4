"""The report: hostile text stays text, missing values are reported, the sums are the ledger's."""

import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from decimal import Decimal
from pathlib import Path

import pytest

from local_bench.analysis.settlement import accounting
from local_bench.core.errors import LedgerError
from local_bench.core.money import held_cost, usd_fine
from local_bench.core.table import DASH
from local_bench.report import text
from local_bench.report.site.build import write_report
from local_bench.runs.rundir import RunDir

from .conftest import write_run
from .written import Report, report

MakeRun = Callable[..., Path]
COSTS = "Device time and cost, by phase and model"
MEANS = "Means, and the images behind them"


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that no test changes."""
    return write_run(tmp_path_factory.mktemp("plain") / "run")


@pytest.fixture(scope="module")
def page(plain: Path) -> Report:
    return report(plain)


def micro(dollars: str) -> int:
    return int(Decimal(dollars.replace("$", "").replace(",", "")) * 1_000_000)


def test_hostile_text_does_not_end_its_script_and_is_escaped_in_the_page(make_run: MakeRun) -> None:
    written = report(make_run(panel=True))
    assert "<script" not in written.html.replace("<script src=", "").lower()
    assert "<svg" not in written.html
    assert written.raw.isascii()
    for payload in ("<script>alert(1)</script>", '"><svg onload=alert(2)>', "</style><style>*{display:none}</style>"):
        assert payload in written.text


def test_the_policy_allows_the_site_s_own_files_and_nothing_else(page: Report) -> None:
    (policy,) = re.findall('Security-Policy" content="([^"]*)"', page.html)
    assert policy == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'"
    )
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page.html)) == {
        *("compare.css", "viewer.css", "compare.js", "viewer.js", "#main")
    }


def test_hidden_characters_are_made_visible(page: Report) -> None:
    assert not re.search(r"\\u(202[a-e]|206[6-9]|200b|000[0-8])", page.raw)
    assert "evil⟨U+202E⟩gnp.exe⟨U+2066⟩⟨U+200B⟩⟨U+0007⟩⟨U+0000⟩" in page.text
    assert text.clean("a\r\nb\tc \ud800 👩‍🚀") == "a\nb\tc ⟨U+D800⟩ 👩‍🚀"


def test_unscored_values_have_their_reason(make_run: MakeRun) -> None:
    written = report(make_run(no_source=True))
    assert "veq: the answer was cut off <script>alert(1)</script>" in written.text
    assert "The source image is not there" in written.text
    rows = written.rows(MEANS, "score", "model", "mean", "images", "unscored", "not applicable", "missing")
    assert ["veq", "beta", "3.50 0.03 to 4.99", "2", "1", "0", "1"] in rows
    assert ["veq_text", "alpha", DASH, "0", "0", "3", "1"] in rows
    assert ["piqe", "beta", "41.25", "2", "0", "0", "2"] in rows
    assert [row[2] for row in written.tables["Why images have no decision"]] == ["1", "1", "1"]


def test_a_metric_has_its_direction_and_enough_digits(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        run.store.set_meta("metric:piqe", '{"higher_is_better": false}')
        run.store.write("UPDATE scores SET value = 0.28349 WHERE name = 'piqe'")
    rows = report(path).rows(MEANS, "score", "model", "mean", "better")
    assert ["piqe", "beta", "0.2835", "lower is better"] in rows
    assert [row[3] for row in rows if row[0] == "veq"] == [DASH, DASH]  # a judge's go from 0 to 5


def test_a_rejected_image_has_the_thresholds_that_it_misses(make_run: MakeRun) -> None:
    path = make_run()
    assert report(path).candidate("t1", "beta")["missed"] == ["brf 2.50 < 3"]
    with RunDir.open(path) as run:
        run.store.write("UPDATE scores SET value = 2.9999 WHERE name = 'brf' AND value < 3")
    assert report(path).candidate("t1", "beta")["missed"] == ["brf 2.9999 < 3"]  # not 3.00 < 3


def test_all_means_of_a_score_have_the_same_decimals(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        alpha = "(SELECT work_id FROM candidates WHERE model = 'alpha')"
        run.store.write(f"UPDATE scores SET value = 9.87654 WHERE name = 'piqe' AND work_id IN {alpha}")
    rows = report(path).rows(MEANS, "score", "mean")
    assert [mean.split()[0] for name, mean in rows if name == "piqe"] == ["9.88", "41.25"]


TOO_LITTLE = (
    "beta: 63.0 % of the tasks' value could be settled, less than the required 70.0 % (settlement.coverage_min)."
)


@pytest.mark.parametrize(("coverage_min", "warnings"), [(0.7, [TOO_LITTLE]), (0.6, [])])
def test_only_too_little_coverage_is_a_warning(make_run: MakeRun, coverage_min: float, warnings: list[str]) -> None:
    assert report(make_run(coverage_min=coverage_min)).warnings == warnings


def test_unfinished_work_is_a_warning(make_run: MakeRun) -> None:
    warnings = report(make_run(planned=True)).warnings
    assert "beta: 1 of 3 images have not been generated yet." in warnings
    assert "beta: 1 of 3 deliverables have no decision yet and count as unscored." in warnings


def test_models_with_equal_pixels_are_reported(make_run: MakeRun) -> None:
    path = make_run(coverage_min=0.6)
    with RunDir.open(path) as run:
        first = {(row.task_id, row.deliverable): row for row in run.store.candidates() if row.model == "alpha"}
        other = next(row for row in run.store.candidates() if row.model == "beta" and row.state == "done")
    same = first[other.task_id, other.deliverable].pixels_sha256
    with closing(sqlite3.connect(path / "ledger.sqlite")) as db, db:
        db.execute("UPDATE candidates SET pixels_sha256 = ? WHERE work_id = ?", (same, other.work_id))
    assert "alpha, beta have the same pixels in 1 image of the same deliverables" in report(path).text


def test_a_run_that_has_just_begun_has_a_report(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        for table in ("decisions", "scores", "verdicts", "meter"):
            run.store.write(f"DELETE FROM {table}")
        run.store.write("UPDATE candidates SET state = 'planned', pixels_sha256 = NULL, identity = NULL")
    written = report(path)
    assert "alpha: 3 of 3 images have not been generated yet." in written.warnings
    assert (
        written.rows("Leaderboard", "tasks accepted", "images accepted", "unscored")
        == [["0 / 2", "0 / 3 0.0 % to 98.9 %", "3 $135.00"]] * 2
    )
    assert ["alpha", "0", "3"] in written.rows(MEANS, "model", "images", "missing")
    assert "mean" not in written.headings[MEANS]
    assert "No device time was metered." in written.text


def test_revenues_are_those_of_the_ledger(plain: Path, page: Report) -> None:
    columns = ("model", "revenue", "share", "tasks accepted", "images accepted", "unscored", "cost", "profit")
    rows = {row[0]: row[1:] for row in page.rows("Leaderboard", *columns)}
    with RunDir.open(plain) as run:
        settled = {s.model: s for s in accounting(run.store, run.config.settlement).settlements}
    assert {model: micro(row[0].split()[0]) for model, row in rows.items()} == {"alpha": 135_000_000, "beta": 0}
    assert rows["alpha"][1].startswith("100.0 % ")
    assert rows["alpha"][2:4] == ["2 / 2", "3 / 3 1.1 % to 100.0 %"]
    assert rows["beta"][4] == "1 $50.00"
    assert micro(rows["alpha"][5]) == pytest.approx(settled["alpha"].cost_micro_usd, rel=0.01)
    assert rows["alpha"][6] == "$134.99"


def test_costs_add_up_to_the_held_time(plain: Path, page: Report) -> None:
    rows = page.tables[COSTS]
    with RunDir.open(plain) as run:
        held_ns = run.store.rows("SELECT sum(t1_ns - t0_ns) AS ns FROM meter")[0]["ns"]
    total = held_cost(held_ns, 1_800_000)
    assert sum(micro(row[-1]) for row in rows[:-1]) == total
    assert rows[-1][-1] == usd_fine(total)
    assert rows[-1][:3] == ["all", "all", "1 min 20 s"]
    assert rows[3][:5] == ["judge", "whole run", "1 min 01 s", "12", "9.0 J"]
    assert rows[-1][4] == "at least 18.0 J"
    assert "on none of the rows" not in page.text


def test_held_time_that_is_not_metered_is_reported(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        run.store.write("UPDATE sessions SET held_ns = held_ns + 5000000000")
    assert "5.0 s of held time is on none of the rows." in report(path).text


def test_without_a_price_costs_are_not_zero(make_run: MakeRun) -> None:
    path = make_run(price=None)
    with RunDir.open(path) as run:
        run.store.write("UPDATE sessions SET device = 'an unheard-of device'")
    written = report(path)
    assert "The price table has no row for the device of this run" in written.text
    assert {row[-1] for row in written.tables[COSTS]} == {"no price"}
    assert not {"cost", "profit"} & set(written.headings["Leaderboard"])


def test_a_missing_image_is_a_warning(make_run: MakeRun) -> None:
    path = make_run()
    next((path / "images").rglob("*.png")).unlink()
    written = report(path)
    assert len(list((path / "report" / "thumbs").rglob("*.webp"))) == 6  # five candidates and the image to edit
    assert not list((path / "report").rglob("*.png"))  # full images are the run's own
    assert written.data["summary"]["runs"][0]["full"] == {"images": "../images", "inputs": "../inputs"}


def test_verdicts_have_question_and_answer(page: Report) -> None:
    assert page.data["0-tasks-0"]["t1"]["points"][0] == "The lamp is lit"
    first = page.candidate("t1", "alpha")["verdicts"][0]
    assert (first["rubric"], first["point"], first["answer"]) == ("brf", 0, '{"met": 1}')


def test_the_same_ledger_gives_the_same_report(plain: Path, page: Report) -> None:
    second = report(plain)
    assert (page.html, page.raw) == (second.html, second.raw)


def test_an_invalid_task_is_explained(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        run.store.write("UPDATE tasks SET content = '[]'")
    with RunDir.open(path) as run, pytest.raises(LedgerError, match="task 't1' is invalid"):
        write_report(run)


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        ("{", "provenance.json cannot be read as JSON."),
        ("[" * 100_000, "provenance.json cannot be read as JSON."),
        (None, "This run directory contains no provenance.json."),
        ('{"a": [{"b": null}], "c": [1, "x"]}', "c 1, x"),
        ('{"k": ' * 8 + "1" + "}" * 8, '{"k": {"k": 1}}'),
    ],
)
def test_any_provenance_makes_a_report(make_run: MakeRun, content: str | None, shown: str) -> None:
    path = make_run()
    (path / "provenance.json").unlink()
    if content is not None:
        (path / "provenance.json").write_text(content)
    written = report(path)
    assert shown in written.text
    assert "Root of all results" in written.text


@pytest.mark.parametrize(
    ("ns", "expected"),
    [
        (0, "0 ms"),
        (310_000_000, "310 ms"),
        (4_200_000_000, "4.2 s"),
        (189_000_000_000, "3 min 09 s"),
        (7.5e12, "2 h 05 min"),
    ],
)
def test_durations(ns: float, expected: str) -> None:
    assert text.duration(int(ns)) == expected
