"""`judges compare` and `agreement`: several judges on one labelled set, and the report about the judges."""

import csv
import io
import json

import pytest

from local_bench.cli.main import main
from local_bench.cli.tables import outcome_json, outcome_text
from local_bench.runs.rundir import RunDir
from local_bench.runs.stages import Outcome
from local_bench.runs.store.rows import Counts
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


def test_the_figures_under_their_names(cli, make_run, tmp_path):  # noqa: F811
    run = make_run(panel=True)
    people = tmp_path / "people.jsonl"
    people.write_text('{"model": "alpha", "task_id": "t1", "deliverable": 1, "brf": true}\n')
    ended = cli("agreement", run, "--people", people, "--top", 2, "--json")
    assert ended.returncode == 0, ended.stderr
    output = json.loads(ended.stdout)
    assert set(output) == {"run_dir", "judges", "raters", "top_k", "notes", "pairs", "krippendorff_alpha", "order_swap"}
    assert (output["judges"], output["raters"], output["top_k"]) == (["gamma", "delta"], ["people"], 2)
    pairs = {(p["judge"], p["against"]): p for p in output["pairs"] if p["dimension"] == "brf"}
    rates = [pairs[judge, "people"]["agreement_rate"]["value"] for judge in ("gamma", "delta")]
    assert rates == [0, 1]
    both = pairs["gamma", "delta"]
    assert set(both) == {
        *("dimension", "judge", "against", "agreement_rate", "cohen_kappa", "spearman", "top_k_overlap")
    }
    ends = {"low": pytest.approx(0.0008, abs=1e-4), "high": pytest.approx(0.9931, abs=1e-4)}  # two tasks
    assert both["agreement_rate"] == {"value": 0.25, "n": 4, "n_unscored": 2, "undefined": None} | ends
    undefined = "fewer than 4 models have both values"
    assert (both["spearman"]["value"], both["spearman"]["undefined"]) == (None, undefined)
    assert {(a["dimension"], a["among"]) for a in output["krippendorff_alpha"]} >= {("brf", "judges")}
    swap = output["order_swap"][0]
    assert (swap["judge"], swap["same"]["value"], swap["mean_difference"]) == ("gamma", 0.5, -1.0)
    ended = cli("agreement", run)
    lines = [line.split()[:8] for line in ended.stdout.splitlines()]
    assert ["gamma", "delta", "brf", "4", "0.250", "0.00", "to", "0.99"] in lines
    assert f"top 3 is undefined in 4 rows: {undefined}" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["RUN"], "has one judge and no other rater"),
        (["RUN", "--people", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["RUN", "--people", "bad.jsonl"], "bad.jsonl, line 1: there is no key 'brv'; did you mean 'brf'?"),
        (["RUN", "--top", "0"], "'--top'"),
        (["."], "is not a run directory"),
    ],
)
def test_wrong_input_exits_with_2(cli, make_run, tmp_path, arguments, message):  # noqa: F811
    (tmp_path / "bad.jsonl").write_text('{"model": "alpha", "task_id": "t1", "deliverable": 1, "brv": true}\n')
    path = make_run()
    ended = cli("agreement", *(path if word == "RUN" else word for word in arguments))
    assert (ended.returncode, ended.stdout) == (2, "")
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr


def test_judging_reports_each_judge_and_its_repetition(make_run):  # noqa: F811
    with RunDir.open(make_run(panel=True)) as run:
        outcome = Outcome(Counts(6, 6, 0, 20, 1))
        text = outcome_text(run, outcome, None).splitlines()
        gamma, delta = outcome_json(run, outcome, None)["judges"]
    assert text[:3] == [
        "6 of 6 images generated, 0 unscored; 20 verdicts, 1 unscored",
        "gamma: batch invariance was not checked; prompt injection not tested",
        "delta: its answers change in a crowd: a second run may find others; 2 of 15 prompt injections successful",
    ]
    assert text[-1].split()[:7] == ["gamma", "brf", "met", "2", "2", "50.0", "%"]
    assert gamma.items() >= {"name": "gamma", "protocol": "json-2", "reproducible": None, "attacks": None}.items()
    attacks = {"n": 15, "n_fooled": 2, "n_unscored": 1}
    assert delta.items() >= {"attacks": attacks, "reproducible": False, "retest": []}.items()
    (again,) = gamma["retest"]
    assert (again["rubric"], again["criterion"], again["n_rounds"]) == ("brf", "met", 2)
    assert (again["n"], again["n_unscored"], again["same"], again["mean_abs_difference"]) == (2, 1, 0.5, 0.5)
    json.dumps([gamma, delta], allow_nan=False)
