"""`agreement`, and the report of the judging commands about the judges."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from local_bench.cli.tables import outcome_json, outcome_text
from local_bench.runs.rundir import RunDir
from local_bench.runs.stages import Outcome
from tests.report.conftest import make_run  # noqa: F401

MakeRun = Callable[..., Path]


def test_the_figures_under_their_names(cli, make_run, tmp_path):  # noqa: F811
    run = make_run(panel=True)
    people = tmp_path / "people.jsonl"
    people.write_text('{"model": "alpha", "task_id": "t1", "deliverable": 1, "brf": true}\n')
    ended = cli("agreement", run, "--people", people, "--top", 2, "--json")
    assert ended.returncode == 0, ended.stderr
    output = json.loads(ended.stdout)
    assert set(output) == {"run_dir", "judges", "raters", "top_k", "notes", "pairs", "krippendorff_alpha", "order_swap"}
    assert (output["judges"], output["raters"], output["top_k"]) == (["gamma", "delta"], ["people"], 2)
    pairs = {(p["judge"], p["against"], p["dimension"]): p for p in output["pairs"]}
    assert pairs["gamma", "people", "brf"]["agreement_rate"]["value"] == 0
    assert pairs["delta", "people", "brf"]["agreement_rate"]["value"] == 1
    both = pairs["gamma", "delta", "brf"]
    assert set(both) == {
        *("dimension", "judge", "against", "agreement_rate", "cohen_kappa", "spearman", "top_k_overlap")
    }
    assert both["agreement_rate"] == {
        "value": 0.25,
        "low": pytest.approx(0.0008, abs=1e-4),  # two tasks
        "high": pytest.approx(0.9931, abs=1e-4),
        "n": 4,
        "n_unscored": 2,
        "undefined": None,
    }
    assert both["spearman"]["value"] is None
    assert both["spearman"]["undefined"] == "fewer than 4 models have both values"
    assert {(a["dimension"], a["among"]) for a in output["krippendorff_alpha"]} >= {("brf", "judges")}
    assert output["order_swap"][0]["judge"] == "gamma"
    assert output["order_swap"][0]["same"]["value"] == 0.5
    assert output["order_swap"][0]["mean_difference"] == -1.0


def test_the_tables_name_undefined_values(cli, make_run):  # noqa: F811
    ended = cli("agreement", make_run(panel=True))
    assert ended.returncode == 0, ended.stderr
    lines = [line.split() for line in ended.stdout.splitlines()]
    assert ["gamma", "delta", "brf", "4", "0.250", "0.00", "to", "0.99"] in [line[:8] for line in lines]
    assert "top 3 is undefined in 4 rows: fewer than 4 models have both values" in ended.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "has one judge and no other rater"),
        (["--people", "nowhere.jsonl"], "nowhere.jsonl does not exist"),
        (["--people", "bad.jsonl"], "bad.jsonl, line 1: there is no key 'brv'; did you mean 'brf'?"),
        (["--top", "0"], "'--top'"),
    ],
)
def test_wrong_input_exits_with_2(cli, make_run, tmp_path, arguments, message):  # noqa: F811
    (tmp_path / "bad.jsonl").write_text('{"model": "alpha", "task_id": "t1", "deliverable": 1, "brv": true}\n')
    ended = cli("agreement", make_run(), *arguments)
    assert ended.returncode == 2, ended.stderr
    assert message in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not ended.stdout


def test_a_folder_without_a_run_is_an_error(cli):
    ended = cli("agreement", ".")
    assert ended.returncode == 2
    assert "is not a run directory" in ended.stderr


def test_judging_reports_each_judge_and_its_repetition(make_run):  # noqa: F811
    with RunDir.open(make_run(panel=True)) as run:
        outcome = Outcome(run.path, 6, 6, 0, 0, 20, 1)
        text = outcome_text(run, outcome, None).splitlines()
        judges = outcome_json(run, outcome, None)["judges"]
    assert text[1] == "gamma: batch invariance was not checked; prompt injection not tested"
    assert (
        text[2]
        == "delta: its answers change in a crowd: a second run may find others; 2 of 15 prompt injections successful"
    )
    assert text[-1].split()[:7] == ["gamma", "brf", "met", "2", "2", "50.0", "%"]
    gamma, delta = judges
    assert gamma.items() >= {"name": "gamma", "protocol": "json-2", "reproducible": None, "attacks": None}.items()
    assert delta["attacks"] == {"n": 15, "n_fooled": 2, "n_unscored": 1}
    assert delta["reproducible"] is False
    assert delta["retest"] == []
    [again] = gamma["retest"]
    assert (again["rubric"], again["criterion"], again["n_rounds"]) == ("brf", "met", 2)
    assert (again["n"], again["n_unscored"], again["same"], again["mean_abs_difference"]) == (2, 1, 0.5, 0.5)
    json.dumps(judges, allow_nan=False)
