"""`judges compare`: several judges on one labelled set, in one table and one figure."""

import csv
import io
import json

import pytest

from local_bench.cli.main import main
from local_bench.runs.rundir import RunDir
from tests.report.conftest import GAMMA, make_run  # noqa: F401

LABELS = [("alpha", "t1", 1, 4.0, True), ("alpha", "t2", 1, 3.5, True), ("beta", "t1", 1, 1.0, False)]
KEYS = ("model", "task_id", "deliverable", "brf", "overall")


@pytest.fixture
def judged(make_run, tmp_path):  # noqa: F811
    """A run of the judges gamma and delta, and three annotations."""
    people = tmp_path / "people.jsonl"
    people.write_text("".join(json.dumps(dict(zip(KEYS, line, strict=True))) + "\n" for line in LABELS))
    return make_run(panel=True), people


def output(capsys, *arguments):
    assert main(["judges", "compare", *map(str, arguments)]) == 0, capsys.readouterr().err
    return capsys.readouterr().out


def test_everything_known_of_each_judge_is_in_one_table(judged, capsys):
    run, people = judged
    with RunDir.open(run) as opened:
        opened.store.set_meta(f"pace:{GAMMA}", json.dumps({"n": 120, "seconds": 30.0}))
    found = json.loads(output(capsys, run, "--people", people, "--json"))
    rows = {(row["judge"], row["dimension"]): row for row in found["rows"]}
    assert set(rows) == {(j, d) for j in ("gamma", "delta", "the panel") for d in ("brf", "overall")}
    # people: 4, 3.5, 1; gamma: 2.5 for each (one of two points is met); delta: 5, 5, 2.5; at least 3 is accepted
    gamma, delta = rows["gamma", "brf"], rows["delta", "brf"]
    assert (gamma["n"], gamma["agreement"], gamma["bias"]) == (3, pytest.approx(1 / 3), pytest.approx((7.5 - 8.5) / 3))
    assert (delta["n"], delta["agreement"], delta["kappa"]) == (3, 1, 1)
    assert delta["bias"] == pytest.approx((12.5 - 8.5) / 3)
    assert gamma["bias_unit"] == "points"
    assert -5 <= gamma["bias_low"] < gamma["bias"] < gamma["bias_high"] <= 5
    overall = rows["delta", "overall"]
    assert overall["bias_unit"] == "share accepted"
    assert (gamma["same_in_both_orders"], gamma["same_when_repeated"], gamma["questions_per_s"]) == (0.5, 0.5, 4.0)
    assert (gamma["injections"], delta["injections"]) == (None, pytest.approx(2 / 15))
    assert delta["injections_low"] < 2 / 15 < delta["injections_high"]
    assert delta["questions_per_s"] is None
    assert {rows["the panel", "brf"][key] for key in ("injections", "questions_per_s", "same_when_repeated")} == {None}


def test_text_csv_and_figure(judged, capsys, tmp_path):
    run, people = judged
    drawn = tmp_path / "judges.svg"
    text = output(capsys, run, "--people", people, "--out", drawn)
    assert text.startswith("Judges of hostile compared with people\n")
    assert "bias (share accepted)" in drawn.read_text()
    rows = list(csv.DictReader(io.StringIO(output(capsys, run, "--people", people, "--format", "csv"))))
    assert [row["judge"] for row in rows] == ["gamma", "gamma", "delta", "delta", "the panel", "the panel"]
    assert float(rows[2]["injections"]) == pytest.approx(2 / 15)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "the suite studio has no ground truth: give people's annotations with --people FILE"),
        (["--people", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["--out", "judges.txt"], "a figure is written as .svg, .pdf, .png"),
    ],
)
def test_wrong_input_is_an_error(judged, capsys, arguments, message):
    assert main(["judges", "compare", str(judged[0]), *arguments]) == 2
    assert message in capsys.readouterr().err


def test_a_run_that_was_not_judged(judged, capsys):
    with RunDir.open(judged[0]) as run:
        run.store.set_meta("judges", "{}")
    assert main(["judges", "compare", str(judged[0])]) == 2
    assert "has not been judged: run `local-bench judge" in capsys.readouterr().err
