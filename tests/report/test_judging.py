"""The judges in the report: what was tried and what was not, who was fooled, who agrees with whom."""

import pytest

from local_bench.core.table import DASH
from local_bench.report.site.details import label_lines
from local_bench.runs.judge import retest_rows
from local_bench.runs.rundir import RunDir
from tests.report.conftest import DELTA_NOTE, GAMMA, SCRIPT, Writer, note_of, write_run

from .written import change, report

JUDGES = "The judges"


@pytest.fixture(scope="module")
def panel(tmp_path_factory):
    return report(write_run(tmp_path_factory.mktemp("panel") / "run", panel=True))


def test_an_unchecked_judge_is_not_called_reproducible(make_run):
    path = make_run(gap=False, coverage_min=0.5)
    with RunDir.open(path) as run:
        Writer(run).judges({GAMMA: "gamma"}, note_of("gamma", GAMMA))
    written = report(change(path, "UPDATE scores SET spread = 0.5 WHERE name = 'veq'"))
    columns = ("judge", "protocol", "transport", "batch invariance", "injections successful")
    assert written.rows(JUDGES, *columns) == [["gamma", "json-2 a JSON object", "embedded", "not tried", "not tried"]]
    assert written.warnings == []
    assert "Agreement" not in written.tables  # one judge has nobody to agree with
    assert "± 0.50" in written.text
    assert "under the judge's label probabilities" in written.text


def test_a_judge_that_passed_its_checks_is_called_reproducible(make_run):
    path = make_run(gap=False, coverage_min=0.5)
    tried = {"reproducible": True, "note": "the same answers alone and in a crowd"}
    with RunDir.open(path) as run:
        attacks = {"n": 16, "n_unscored": 0, "fooled_by": []}
        Writer(run).judges({GAMMA: "gamma"}, note_of("gamma", GAMMA, **tried, attacks=attacks))
    written = report(path)
    assert written.rows(JUDGES, "batch invariance", "injections successful", "of") == [
        ["reproducible the same answers alone and in a crowd", "0 0.0 % to 19.4 %", "16"]
    ]
    assert written.warnings == []
    assert "±" not in written.text


def test_notes_about_another_judge_are_not_used(make_run):
    """A judge that was changed under the same name has not been tried."""
    path = make_run()
    with RunDir.open(path) as run:
        Writer(run).judges({GAMMA: "delta"}, DELTA_NOTE)
    assert report(path).rows(JUDGES, "batch invariance", "injections successful") == [["not tried", "not tried"]]


def test_judges_of_a_panel_are_warned_of_and_compared_and_scores_show_their_spread(panel):
    assert {
        "Judge delta: 2 of 15 prompt injections successful; text in an image or a brief can raise its scores.",
        "Judge delta is not reproducible: its answers change in a crowd: a second run may find others.",
    } <= set(panel.warnings)
    columns = ("transport", "batch invariance", "injections successful", "of", "injections unscored")
    transport, check, *injections = panel.rows(JUDGES, *columns)[1]
    assert transport == "served external server"
    assert check.startswith("not reproducible its answers change")
    assert injections == ["2 3.7 % to 37.9 %", "15", "1"]
    assert f"Successful against delta: painted-json, {SCRIPT}." in panel.text
    # `gamma` rejects all by brf; `delta` accepts what `alpha` made; of `beta` two images have no brf from `gamma`
    assert panel.rows("Agreement", "dimension", "judge", "against", "images", "agreement", "models", "unscored") == [
        ["brf", "gamma", "delta", "4", "0.250 0.00 to 0.99", "2", "2"],
        ["veq", "gamma", "delta", "0", DASH, "0", "6"],
        ["cns", "gamma", "delta", "0", DASH, "0", "4"],
        ["overall", "gamma", "delta", "1", "1.000", "0", "5"],
    ]
    assert not {"rho", "top 3"} & set(panel.headings["Agreement"])  # gamma gives both models the same mean
    assert panel.rows("Krippendorff's alpha", "dimension", "raters", "images")[0] == ["brf", "2", "4"]
    assert "Scores are the mean over 2 judges." in panel.text
    assert panel.tables["Sets shown in both orders"] == [
        [name, "4", "0.500", "-1.00", "0"] for name in ("gamma", "delta")
    ]
    assert "Repeatability of gamma, all questions asked again: 1 of 2 answers the same every time." in panel.text
    assert panel.tables["Repeatability by criterion"] == [  # delta has no repetition
        ["gamma", "brf", "met", "2", "2", "50.0 % 0.2 % to 99.8 %", "0.50", "1"]
    ]
    rows = panel.rows("Means, and the images behind them", "score", "model", "mean", "uncertainty of one image")
    assert ["brf", "alpha", "4.00 0.04 to 5.00", "± 0.25"] in rows
    assert ["piqe", "alpha", "41.25", DASH] in rows
    assert "the standard deviation between the judges' scores" in panel.text
    first = panel.candidate("t1", "alpha")
    assert first["score_reasons"]["brf"] == "± 0.25"
    assert "met 0:\u00a012 %, 1:\u00a088 %" in [verdict["labels"] for verdict in first["verdicts"]]
    assert {verdict["judge"] for verdict in first["verdicts"]} == {"gamma", "delta"}


def test_invalid_probabilities_are_printed_unchanged():
    assert label_lines('{"met": {"0": 0.005, "1": 0.995}, "x": {}}') == ["met 0:\u00a00 %, 1:\u00a0100 %", "x "]
    assert label_lines('[1, "<b>"]') == ['[1, "<b>"]']
    assert [label_lines(text) for text in ("{", None)] == [["{"], []]


def test_a_second_round_of_repetitions_that_was_interrupted_leaves_the_first_one_s_figures(tmp_path):
    path = write_run(tmp_path / "run", panel=True)
    with RunDir.open(path) as run:
        before = retest_rows(run)
        first = run.store.rows("SELECT work_id FROM candidates ORDER BY position")[0]["work_id"]
    with RunDir.begin(path, RunDir.open(path).config) as run:
        Writer(run).retest(first, "brf", {"met": 0}, round_=2)
        assert retest_rows(run) == before
    assert [row.rounds for row in before] == [2]
