"""The report: hostile text stays text, missing values are reported, the sums are the ledger's."""

import re
from decimal import Decimal

import pytest

from local_bench.analysis.settlement import accounting
from local_bench.core.errors import LedgerError
from local_bench.core.money import held_cost, usd_fine
from local_bench.core.table import DASH
from local_bench.report import text
from local_bench.report.sections import sections
from local_bench.report.site.build import write_report
from local_bench.report.view import warnings
from local_bench.runs.rundir import RunDir

from .conftest import Writer, write_run
from .written import change, report

COSTS = "Device time and cost, by phase and model"
MEANS = "Means, and the images behind them"
TOO_LITTLE = "beta: 63.0 % of the tasks' value could be settled, less than the required 70.0 % "
NO_PRICE = "UPDATE sessions SET device = 'an unheard-of device'"


@pytest.fixture(scope="module")
def plain(tmp_path_factory):
    """A run that no test changes."""
    return write_run(tmp_path_factory.mktemp("plain") / "run", coverage_min=0.7)


@pytest.fixture(scope="module")
def page(plain):
    return report(plain)


def micro(dollars):
    return int(Decimal(dollars.replace("$", "").replace(",", "")) * 1_000_000)


def test_hostile_text_is_escaped_and_unscored_values_have_their_reason(make_run):
    written = report(make_run(panel=True, no_source=True))
    assert "<script" not in written.html.replace("<script src=", "").lower()
    assert "<svg" not in written.html
    assert written.raw.isascii()
    for payload in ("<script>alert(1)</script>", '"><svg onload=alert(2)>', "</style><style>*{display:none}</style>"):
        assert payload in written.text
    assert "veq: the answer was cut off <script>alert(1)</script>" in written.text
    assert "The source image is not there" in written.text
    rows = written.rows(MEANS, "score", "model", "mean", "images", "unscored", "not applicable", "missing")
    assert ["veq", "beta", "3.50 0.03 to 4.99", "2", "1", "0", "1"] in rows
    assert ["veq_text", "alpha", DASH, "0", "0", "3", "1"] in rows
    assert ["piqe", "beta", "41.25", "2", "0", "0", "2"] in rows
    assert [row[2] for row in written.tables["Why images have no decision"]] == ["1", "1", "1"]


def test_the_policy_allows_the_site_s_own_files_alone_and_hidden_characters_are_visible(page):
    (policy,) = re.findall('Security-Policy" content="([^"]*)"', page.html)
    assert policy == (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; base-uri 'none'; form-action 'none'"
    )
    assert set(re.findall(r'(?:src|href)="([^"]*)"', page.html)) == {
        *("compare.css", "viewer.css", "compare.js", "viewer.js", "#main")
    }
    assert not re.search(r"\\u(202[a-e]|206[6-9]|200b|000[0-8])", page.raw)
    assert "evil⟨U+202E⟩gnp.exe⟨U+2066⟩⟨U+200B⟩⟨U+0007⟩⟨U+0000⟩" in page.text
    assert text.clean("a\r\nb\tc \ud800 👩‍🚀") == "a\nb\tc ⟨U+D800⟩ 👩‍🚀"


def test_a_page_has_questions_thresholds_and_warnings(plain, page):
    assert page.data["0-tasks-0"]["t1"]["points"][0] == "The lamp is lit"
    first = page.candidate("t1", "alpha")["verdicts"][0]
    assert (first["rubric"], first["point"], first["answer"]) == ("brf", 0, '{"met": 1}')
    assert page.candidate("t1", "beta")["missed"] == ["brf 2.50 < 3"]
    assert page.warnings == [TOO_LITTLE + "(settlement.coverage_min)."]
    assert not list((plain / "report").rglob("*.png"))  # full images are the run's own
    assert page.data["summary"]["runs"][0]["full"] == {"images": "../images", "inputs": "../inputs"}
    second = report(plain)
    assert (page.html, page.raw) == (second.html, second.raw)


def test_means_have_their_direction_equal_decimals_and_enough_digits(make_run):
    path = make_run(coverage_min=0.6)
    with RunDir.open(path) as run:
        rows = {(row.model, row.task_id, row.deliverable): row for row in run.store.candidates()}
        run.store.set_meta("metric:piqe", '{"higher_is_better": false}')
        Writer(run).score(rows["beta", "t1", 1].work_id, "small", 0.28349, kind="metric")
    alpha = "work_id IN (SELECT work_id FROM candidates WHERE model = 'alpha')"
    change(
        path,
        f"UPDATE scores SET value = 9.87654 WHERE name = 'piqe' AND {alpha}",
        "UPDATE scores SET value = 2.9999 WHERE name = 'brf' AND value < 3",
        "UPDATE sessions SET held_ns = held_ns + 5000000000",
        f"UPDATE candidates SET pixels_sha256 = '{rows['alpha', 't2', 1].pixels_sha256}' "
        f"WHERE work_id = '{rows['beta', 't2', 1].work_id}'",
    )
    written = report(path)
    rows = [[*row[:2], row[2].split()[0], row[3]] for row in written.rows(MEANS, "score", "model", "mean", "better")]
    assert [row for row in rows if row[0] in ("piqe", "small") and row[2] != DASH] == [
        ["piqe", "alpha", "9.88", "lower is better"],
        ["piqe", "beta", "41.25", "lower is better"],
        ["small", "beta", "0.2835", DASH],
    ]
    assert [row[3] for row in rows if row[0] == "veq"] == [DASH, DASH]  # a judge's go from 0 to 5
    assert written.candidate("t1", "beta")["missed"] == ["brf 2.9999 < 3"]  # not 3.00 < 3
    assert "5.0 s of held time is on none of the rows." in written.text
    (warning,) = written.warnings  # coverage is no warning above the least
    assert warning.startswith("alpha, beta have the same pixels in 1 image of the same deliverables")


def test_unfinished_work_is_a_warning_and_costs_without_a_price_are_not_zero(make_run):
    written = report(change(make_run(planned=True, price=None), NO_PRICE))
    assert "beta: 1 of 3 images have not been generated yet." in written.warnings
    assert "beta: 1 of 3 deliverables have no decision yet and count as unscored." in written.warnings
    assert "The price table has no row for the device of this run" in written.text
    assert {row[-1] for row in written.tables[COSTS]} == {"no price"}
    assert not {"cost", "profit"} & set(written.headings["Leaderboard"])


def test_a_model_with_fewer_of_the_runs_tasks_is_a_warning(make_run):
    """As after a merge with a run on a part of the tasks."""
    path = make_run()
    sentence = "beta: 1 of the run's 2 tasks; its figures are of these."
    assert sentence not in report(path).warnings
    with RunDir.open(path) as run:
        assert len(run.store.tasks()) == 2
        of_task = "work_id IN (SELECT work_id FROM candidates WHERE model = 'beta' AND task_id = 't1')"
        for table in ("scores", "verdicts", "decisions", "candidates"):
            run.store.write(f"DELETE FROM {table} WHERE {of_task}")
    assert sentence in report(path).warnings


def test_what_was_configured_is_not_rounded(make_run):
    path = make_run(price="1.2345", coverage_min=0.6875)
    (path / "run.yaml").write_text((path / "run.yaml").read_text().replace("brf: 3.0", "brf: 4.125"))
    written = report(path)
    assert "(brf at least 4.125 and " in written.text
    assert "Time is priced at $1.234500 for an hour of " in written.text
    assert "$1.234500" in written.headings["Profit at other prices of a device-hour"]
    assert "could be settled, less than the required 68.75 % (settlement" in written.text


def test_warnings_of_one_image_are_in_the_singular(make_run):
    path = make_run()
    change(
        path,
        *(f"DELETE FROM {table}" for table in ("decisions", "scores", "verdicts")),
        "DELETE FROM candidates WHERE task_id = 't2'",
        "UPDATE candidates SET state = 'planned', pixels_sha256 = NULL, identity = NULL",
    )
    with RunDir.open(path) as run:
        sentences = warnings(run, accounting(run.store, run.config.settlement).settlements)
    assert "alpha: 1 of 1 image has not been generated yet." in sentences
    assert "alpha: 1 of 1 deliverable has no decision yet and counts as unscored." in sentences


def test_a_run_that_has_just_begun_has_a_report(make_run):
    written = report(
        change(
            make_run(),
            *(f"DELETE FROM {table}" for table in ("decisions", "scores", "verdicts", "meter")),
            "DELETE FROM meta WHERE key IN ('judges', 'provenance')",
            "UPDATE candidates SET state = 'planned', pixels_sha256 = NULL, identity = NULL",
        )
    )
    assert "alpha: 3 of 3 images have not been generated yet." in written.warnings
    assert "alpha: 3 of 3 deliverables have no decision yet and count as unscored." in written.warnings
    rows = written.rows("Leaderboard", "tasks accepted", "images accepted", "unscored")
    assert rows == [["0 / 2", "0 / 3 0.0 % to 98.9 %", "3 $135.00"]] * 2
    assert ["alpha", "0", "3"] in written.rows(MEANS, "model", "images", "missing")
    assert "mean" not in written.headings[MEANS]
    assert "No device time was metered." in written.text
    assert "Nothing has been judged yet." in written.text


def test_revenues_and_costs_are_those_of_the_ledger(plain, page):
    columns = ("model", "revenue", "share", "tasks accepted", "images accepted", "unscored", "cost", "profit")
    rows = {row[0]: row[1:] for row in page.rows("Leaderboard", *columns)}
    with RunDir.open(plain) as run:
        settled = {s.model: s for s in accounting(run.store, run.config.settlement).settlements}
        held_ns = run.store.rows("SELECT sum(t1_ns - t0_ns) AS ns FROM meter")[0]["ns"]
    assert {model: micro(row[0].split()[0]) for model, row in rows.items()} == {"alpha": 135_000_000, "beta": 0}
    assert rows["alpha"][1].startswith("100.0 % ")
    assert rows["alpha"][2:4] == ["2 / 2", "3 / 3 1.1 % to 100.0 %"]
    assert (rows["beta"][4], rows["alpha"][6]) == ("1 $50.00", "$134.99")
    assert micro(rows["alpha"][5]) == pytest.approx(settled["alpha"].cost_micro_usd, rel=0.01)
    costs, total = page.tables[COSTS], held_cost(held_ns, 1_800_000)
    assert sum(micro(row[-1]) for row in costs[:-1]) == total
    assert costs[-1] == ["all", "all", "1 min 20 s", *costs[-1][3:4], "at least 18.0 J", usd_fine(total)]
    assert costs[3][:5] == ["judge", "whole run", "1 min 01 s", "12", "9.0 J"]
    assert "on none of the rows" not in page.text


@pytest.mark.parametrize(
    ("statement", "sentence"),
    [
        ("UPDATE tasks SET content = '[]'", "task 't1' is invalid"),
        ("UPDATE meta SET value = '[\"gamma\"]' WHERE key = 'judges'", "its entry 'judges' is a list"),
        (
            """INSERT OR REPLACE INTO meta VALUES ('provenance', '{"judge": {"name": 1}}')""",
            "the judge metadata in .* cannot be read",
        ),
        ("INSERT OR REPLACE INTO meta VALUES ('provenance', '[\"x\"]')", "its entry 'provenance' is a list"),
    ],
)
def test_damaged_entries_are_explained(make_run, statement, sentence):
    path = change(make_run(), statement)
    with RunDir.open(path) as run, pytest.raises(LedgerError, match=sentence):
        write_report(run)


def test_any_provenance_makes_a_section(make_run):
    path = make_run()
    with RunDir.open(path) as run:
        money = accounting(run.store, run.config.settlement)
        for content, shown in (
            ("{", "provenance.json cannot be read as JSON."),
            ("[" * 100_000, "provenance.json cannot be read as JSON."),
            (None, "This run directory contains no provenance.json."),
            ('{"a": [{"b": null}], "c": [1, "x"]}', "('c', '1, x')"),
            ('{"k": ' * 8 + "1" + "}" * 8, '{"k": {"k": 1}}'),
        ):
            (path / "provenance.json").unlink(missing_ok=True)
            if content is not None:
                (path / "provenance.json").write_text(content)
            (section,) = (section for section in sections(run, money, None) if section.name == "provenance")
            assert shown in repr(section)
            assert "Root of all results" in repr(section)


@pytest.mark.parametrize(
    ("ns", "expected"),
    [(0, "0 ms"), (31e7, "310 ms"), (4.2e9, "4.2 s"), (189e9, "3 min 09 s"), (7.5e12, "2 h 05 min")],
)
def test_durations(ns, expected):
    assert text.duration(int(ns)) == expected
