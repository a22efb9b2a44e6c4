"""The judges on the page: what was tried and what was not, who was fooled, who agrees with whom."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from local_bench.core.errors import LedgerError
from local_bench.report.candidate import label_lines
from local_bench.report.page import write_report
from local_bench.runs.rundir import RunDir
from tests.report.conftest import DELTA, DELTA_NOTE, GAMMA, SCRIPT, Writer, note_of
from tests.report.test_report import Page, report

MakeRun = Callable[..., Path]


def noted(path: Path, **changes: object) -> Page:
    with RunDir.open(path) as run:
        Writer(run).judges({GAMMA: "gamma"}, note_of("gamma", GAMMA, **changes))
    return report(path)


def test_an_unchecked_judge_is_not_called_reproducible(make_run: MakeRun) -> None:
    page = noted(make_run(gap=False, coverage_min=0.5))
    [row] = page.tables["t-judges"][1:]
    assert [" ".join(cell.split()) for cell in row] == [
        "gamma",
        "json-2 a JSON object",
        "embedded",
        "not tried",
        "not tried",
        "",
    ]
    assert "banner" not in {a.get("class") for _, a in page.tags}
    assert "The judge" in page.text
    assert "The judge " in page.text
    assert "t-agreement" not in page.tables  # one judge has nobody to agree with
    assert "±" not in page.text


def test_a_judge_that_passed_its_checks_is_called_reproducible(make_run: MakeRun) -> None:
    tried = {"reproducible": True, "note": "the same answers alone and in a crowd"}
    page = noted(make_run(gap=False, coverage_min=0.5), **tried, attacks={"n": 16, "n_unscored": 0, "fooled_by": []})
    [row] = page.tables["t-judges"][1:]
    assert row[3].split() == ["reproducible", "the", "same", "answers", "alone", "and", "in", "a", "crowd"]
    assert row[4] == "0 of 16 0.0 % to 19.4 %"
    assert "banner" not in {a.get("class") for _, a in page.tags}


def test_a_fooled_judge_is_reported_before_the_scores(make_run: MakeRun) -> None:
    page = report(make_run(panel=True))
    assert page.faults() == []
    assert "Judge delta: 2 of 15 prompt injections successful; text in an image" in page.text
    assert "Judge delta is not reproducible: its answers change in a crowd: a second run may find others." in page.text
    row = page.tables["t-judges"][2]
    assert row[3].startswith("not reproducible")
    assert row[4:] == ["2 of 15 3.7 % to 37.9 %", "1"]
    assert f"Successful against delta: painted-json, {SCRIPT}." in page.text
    assert "served external server" in " ".join(row[2].split())


def test_notes_about_another_judge_are_not_used(make_run: MakeRun) -> None:
    """A judge that was changed under the same name has not been tried."""
    path = make_run()
    with RunDir.open(path) as run:
        Writer(run).judges({GAMMA: "delta"}, DELTA_NOTE)
    [row] = report(path).tables["t-judges"][1:]
    assert row[3:5] == ["not tried", "not tried"]


def test_judges_of_a_panel_are_compared(make_run: MakeRun) -> None:
    """`gamma` rejects all by brf; `delta` accepts what `alpha` made; of `beta` two images have no brf from `gamma`."""
    page = report(make_run(panel=True))
    table = page.tables["t-agreement"]
    groups = [row[0].partition(".")[0] for row in table if len(row) == 1]
    assert groups == ["brf", "veq", "cns", "overall"]
    brf = table[2]
    assert brf[0].split() == ["gamma", "delta"]
    assert brf[1:3] == ["4", "25.0 % 0.1 % to 99.3 %"]
    assert brf[4:] == ["2", "n/a", "n/a", "2"]  # gamma gives both models the same mean
    veq = table[4]
    assert veq[1:] == ["0", "n/a", "n/a", "0", "n/a", "n/a", "6"]
    assert "Krippendorff's alpha" in table[1][0]
    assert "over 2 judges and 4 images" in table[1][0]
    assert "Scores are the mean over 2 judges." in page.text


def test_order_swaps_and_repetitions_are_reported(make_run: MakeRun) -> None:
    page = report(make_run(panel=True))
    assert page.tables["t-order"][1:] == [[name, "4", "50.0 %", "-1.00", "0"] for name in ("gamma", "delta")]
    assert "Repeatability of gamma, all questions asked again: 1 of 2 answers the same every time." in page.text
    assert page.tables["t-retest-1"][1:] == [["brf", "met", "2 times", "2", "50.0 % 0.2 % to 99.8 %", "0.50", "1"]]
    assert "t-retest-2" not in page.tables  # delta has no repetition


def test_scores_show_their_spread_and_verdicts_their_judge(make_run: MakeRun) -> None:
    path = make_run(panel=True)
    page = report(path)
    scores = page.tables["t-scores"]
    assert scores[scores.index(["brf"]) + 1][1] == "4.00 0.04 to 5.00 each ± 0.25"
    assert scores[scores.index(["piqe"]) + 1][1] == "41.25"
    assert "4.00 ± 0.25" in page.text
    assert "the standard deviation between the judges' scores" in page.text
    assert "met 0: 12 %, 1: 88 %" in page.text
    assert page.text.count("cns_set set in the other order") == 2 * 4
    with RunDir.open(path) as run:
        for name, judge in (("gamma", GAMMA), ("delta", DELTA)):
            n = len(run.store.rows("SELECT 1 FROM verdicts WHERE judge = ?", judge))
            cells = re.findall(rf'<td>{name} <code class="answer">[0-9a-f]{{12}} {judge[:12]}</code>', page.html)
            assert len(cells) == n > 0


def test_verdicts_of_a_single_judge_have_no_name(make_run: MakeRun) -> None:
    assert not re.search('<td>gamma <code class="answer">', report(make_run()).html)


def test_the_spread_of_a_single_judge_is_reported_as_its_own(make_run: MakeRun) -> None:
    path = make_run()
    with RunDir.open(path) as run:
        run.store.write("UPDATE scores SET spread = 0.5 WHERE name = 'brf'")
    page = report(path)
    assert "4.00 ± 0.50" in page.text
    assert "under the judge's label probabilities" in page.text


def test_a_run_without_verdicts_has_a_page(make_run: MakeRun) -> None:
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
