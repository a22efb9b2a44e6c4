"""The judges in the report: what was tried and what was not, who was fooled, who agrees with whom."""

from collections.abc import Callable
from pathlib import Path

import pytest

from local_bench.core.errors import LedgerError
from local_bench.core.table import DASH
from local_bench.report.site.build import write_report
from local_bench.report.site.details import label_lines
from local_bench.runs.rundir import RunDir
from tests.report.conftest import DELTA_NOTE, GAMMA, SCRIPT, Writer, note_of, write_run

from .written import Report, report

MakeRun = Callable[..., Path]
JUDGES = "The judges"
AGREEMENT = "Agreement"
REPEATED = "Repeatability by criterion"


@pytest.fixture(scope="module")
def panel(tmp_path_factory: pytest.TempPathFactory) -> Report:
    return report(write_run(tmp_path_factory.mktemp("panel") / "run", panel=True))


def noted(path: Path, **changes: object) -> Report:
    with RunDir.open(path) as run:
        Writer(run).judges({GAMMA: "gamma"}, note_of("gamma", GAMMA, **changes))
    return report(path)


def test_an_unchecked_judge_is_not_called_reproducible(make_run: MakeRun) -> None:
    written = noted(make_run(gap=False, coverage_min=0.5))
    columns = ("judge", "protocol", "transport", "batch invariance", "injections successful")
    assert written.rows(JUDGES, *columns) == [["gamma", "json-2 a JSON object", "embedded", "not tried", "not tried"]]
    assert written.warnings == []
    assert AGREEMENT not in written.tables  # one judge has nobody to agree with
    assert "±" not in written.text


def test_a_judge_that_passed_its_checks_is_called_reproducible(make_run: MakeRun) -> None:
    tried = {"reproducible": True, "note": "the same answers alone and in a crowd"}
    written = noted(make_run(gap=False, coverage_min=0.5), **tried, attacks={"n": 16, "n_unscored": 0, "fooled_by": []})
    assert written.rows(JUDGES, "batch invariance", "injections successful", "of") == [
        ["reproducible the same answers alone and in a crowd", "0 0.0 % to 19.4 %", "16"]
    ]
    assert written.warnings == []


def test_a_fooled_judge_is_a_warning(panel: Report) -> None:
    assert "Judge delta: 2 of 15 prompt injections successful; text in an image or a brief can raise its scores." in (
        panel.warnings
    )
    assert "Judge delta is not reproducible: its answers change in a crowd: a second run may find others." in (
        panel.warnings
    )
    columns = ("transport", "batch invariance", "injections successful", "of", "injections unscored")
    transport, check, *injections = panel.rows(JUDGES, *columns)[1]
    assert transport == "served external server"
    assert check.startswith("not reproducible its answers change")
    assert injections == ["2 3.7 % to 37.9 %", "15", "1"]
    assert f"Successful against delta: painted-json, {SCRIPT}." in panel.text


def test_notes_about_another_judge_are_not_used(make_run: MakeRun) -> None:
    """A judge that was changed under the same name has not been tried."""
    path = make_run()
    with RunDir.open(path) as run:
        Writer(run).judges({GAMMA: "delta"}, DELTA_NOTE)
    assert report(path).rows(JUDGES, "batch invariance", "injections successful") == [["not tried", "not tried"]]


def test_judges_of_a_panel_are_compared(panel: Report) -> None:
    """`gamma` rejects all by brf; `delta` accepts what `alpha` made; of `beta` two images have no brf from `gamma`."""
    assert panel.rows(AGREEMENT, "dimension", "judge", "against", "images", "agreement", "models", "unscored") == [
        ["brf", "gamma", "delta", "4", "0.250 0.00 to 0.99", "2", "2"],
        ["veq", "gamma", "delta", "0", DASH, "0", "6"],
        ["cns", "gamma", "delta", "0", DASH, "0", "4"],
        ["overall", "gamma", "delta", "1", "1.000", "0", "5"],
    ]
    assert not {"rho", "top 3"} & set(panel.headings[AGREEMENT])  # gamma gives both models the same mean
    alphas = panel.rows("Krippendorff's alpha", "dimension", "raters", "images")
    assert alphas[0] == ["brf", "2", "4"]
    assert "Scores are the mean over 2 judges." in panel.text


def test_order_swaps_and_repetitions_are_reported(panel: Report) -> None:
    assert panel.tables["Sets shown in both orders"] == [
        [name, "4", "0.500", "-1.00", "0"] for name in ("gamma", "delta")
    ]
    assert "Repeatability of gamma, all questions asked again: 1 of 2 answers the same every time." in panel.text
    assert panel.tables[REPEATED] == [  # delta has no repetition
        ["gamma", "brf", "met", "2", "2", "50.0 % 0.2 % to 99.8 %", "0.50", "1"]
    ]


def test_scores_show_their_spread_and_verdicts_their_judge(panel: Report) -> None:
    rows = panel.rows("Means, and the images behind them", "score", "model", "mean", "uncertainty of one image")
    assert ["brf", "alpha", "4.00 0.04 to 5.00", "± 0.25"] in rows
    assert ["piqe", "alpha", "41.25", DASH] in rows
    assert "the standard deviation between the judges' scores" in panel.text
    first = panel.candidate("t1", "alpha")
    assert first["score_reasons"]["brf"] == "± 0.25"
    assert "met 0:\u00a012 %, 1:\u00a088 %" in [verdict["labels"] for verdict in first["verdicts"]]
    assert {verdict["judge"] for verdict in first["verdicts"]} == {"gamma", "delta"}


def test_the_spread_of_a_single_judge_is_reported_as_its_own(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        run.store.write("UPDATE scores SET spread = 0.5 WHERE name = 'brf'")
    written = report(path)
    assert "± 0.50" in written.text
    assert "under the judge's label probabilities" in written.text


def test_a_run_without_verdicts_has_a_report(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        run.store.write("DELETE FROM meta WHERE key IN ('judges', 'provenance')")
    assert "Nothing has been judged yet." in report(path).text


@pytest.mark.parametrize(
    ("key", "value", "sentence"),
    [
        ("judges", '["gamma"]', "its entry 'judges' is a list"),
        ("provenance", '{"judge": {"name": 1}}', "the judge metadata in .* cannot be read"),
        ("provenance", '["x"]', "its entry 'provenance' is a list"),
    ],
)
def test_damaged_notes_are_explained(make_run: MakeRun, key: str, value: str, sentence: str) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        run.store.set_meta(key, value)
    with RunDir.open(path) as run, pytest.raises(LedgerError, match=sentence):
        write_report(run)


def test_invalid_probabilities_are_printed_unchanged() -> None:
    assert label_lines('{"met": {"0": 0.005, "1": 0.995}, "x": {}}') == ["met 0:\u00a00 %, 1:\u00a0100 %", "x "]
    assert label_lines('[1, "<b>"]') == ['[1, "<b>"]']
    assert label_lines("{") == ["{"]
    assert label_lines(None) == []
