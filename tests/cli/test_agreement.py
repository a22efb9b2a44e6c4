"""`agreement`, and the report of the judging commands about the judges."""

import json

import pytest

from local_bench.cli.tables import outcome_json, outcome_text
from local_bench.runs.rundir import RunDir
from local_bench.runs.stages import Outcome
from tests.report.conftest import make_run  # noqa: F401


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
        outcome = Outcome(run.path, 6, 6, 0, 0, 20, 1)
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
