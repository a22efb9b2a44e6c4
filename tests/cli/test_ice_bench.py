"""ICE-Bench's 31 tasks in the benchmark's own layout, on small models, with every metric of every task."""

import json

import pytest

from local_bench.cli.main import main
from local_bench.core.files import configs_dir
from local_bench.judges.metrics.pyiqa_metric import PyiqaNetwork
from local_bench.runs.rundir import RunDir
from local_bench.suites.ice_bench.tasks import METRICS_OF
from tests.report.exported import assert_exports_are_those_of_load_run
from tests.suites.benchmarks import layouts

CARDS = ["tiny-omnigen", "tiny-flux-fill", "tiny-flux-control"]
FILLED = 6
"""Tasks that give a mask and no reference besides it."""


@pytest.mark.slow
def test_all_tasks_are_made_judged_and_measured_by_their_own_metrics(tmp_path, capsys, monkeypatch):
    real = PyiqaNetwork.__init__  # MUSIQ at ICE-Bench's height of 1024 takes a second for each image
    monkeypatch.setattr(PyiqaNetwork, "__init__", lambda self, card, store, height: real(self, card, store, 64))
    path = layouts.ice_whole(tmp_path / "data")
    config = configs_dir() / "runs" / "ice-bench-tiny.yaml"
    models = json.dumps([{"card": card, "num_inference_steps": 1} for card in CARDS])
    settings = [f"suite.path={path}", f"models={models}", "judge.transport=local", "judge.canaries=false"]
    settings += ["engine.device=cpu"]
    run = tmp_path / "run"
    status = main(["run", str(config), "--run-dir", str(run), "--json", *(x for s in settings for x in ("--set", s))])
    out = capsys.readouterr()
    assert status == 0, out.err
    outcome = json.loads(out.out)["benchmark"]
    assert all(of["n_items"] == {} for of in outcome.values())  # small variants are none of the benchmark's metrics
    for number in range(3, 9):  # but the tables show them, under their own names
        assert main(["reproduce", "ice-bench", f"table-{number}", str(run), "--json"]) == 0
        table = json.loads(capsys.readouterr().out)
        made = [row for row in table["rows"] if row["n"]]
        assert made
        assert all(row["aesthetic"] is not None and row["imaging"] is not None for row in made)
        assert table["columns"]["clip_cap"].endswith(" (clip_cap:tiny-clip)")
    assert_exports_are_those_of_load_run(run)
    with RunDir.open(run) as finished:
        made = {row["work_id"]: row for row in finished.store.rows("SELECT * FROM candidates WHERE state = 'done'")}
        found = {}
        for row in finished.store.rows("SELECT * FROM scores"):
            found[row["work_id"], row["name"].partition(":")[0]] = row
        tasks = {item["ItemID"]: item["Task"] for item in map(json.loads, path.read_text().splitlines())}
    by_model = {card: [tasks[row["task_id"]] for row in made.values() if row["model"] == card] for card in CARDS}
    assert by_model["tiny-omnigen"] == list(METRICS_OF)
    assert len(by_model["tiny-flux-fill"]) == FILLED
    assert by_model["tiny-flux-control"] == ["Depth-guided Generation"]
    missing, unmeasured = [], {}
    for work_id, row in made.items():
        for metric in METRICS_OF[tasks[row["task_id"]]]:
            score = found.get((work_id, metric))
            if score is None or (score["value"] is None and not score["unscored"]):
                missing.append((tasks[row["task_id"]], metric))
            elif score["value"] is None:
                unmeasured[metric] = score["unscored"]
    assert not missing
    assert unmeasured == {"face_ref": "no face was found in the reference"}  # it is a drawing of a box
