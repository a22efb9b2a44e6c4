"""The four benchmarks end to end: own files, small models, a judge in this process, metrics, report, export, score."""

import json

import pytest

from local_bench.analysis.official import run_results
from local_bench.cli.main import main
from local_bench.core.files import configs_dir
from local_bench.judges.metrics.pyiqa_metric import PyiqaNetwork
from local_bench.runs.rundir import RunDir
from local_bench.suites.ice_bench.results import results_by_model
from local_bench.suites.ice_bench.tasks import METRICS_OF
from tests.report.exported import assert_exports_are_those_of_load_run
from tests.suites.benchmarks import layouts

pytestmark = pytest.mark.slow
CASES = {
    "hype-edit-1": (layouts.hype, ["tiny-omnigen"], 2),
    "ice-bench": (layouts.ice, ["tiny-flux", "tiny-flux-fill", "tiny-omnigen"], 1),
    "idea-bench": (lambda path: layouts.idea(path, ("0901", "0902", "0903")), ["tiny-flux", "tiny-omnigen"], 1),
    "servimage": (layouts.servimage, ["tiny-omnigen"], 1),
}


def call(capsys, *arguments):
    status = main([*map(str, arguments), "--json"])
    out = capsys.readouterr()
    assert status == 0, out.err
    return json.loads(out.out)


@pytest.mark.parametrize("name", list(CASES))
def test_from_own_files_to_own_files(name, tmp_path, capsys):
    layout, cards, attempts = CASES[name]
    path, run, out = layout(tmp_path / "data"), tmp_path / "run", tmp_path / "out"
    output = call(capsys, "suites", "show", name, "--path", path)
    assert output["n_images"] == output["n_deliverables"] * output["attempts"]
    config = {
        "name": "bench",
        "suite": {"name": name, "path": str(path)},
        "models": [{"card": card, "attempts": attempts} for card in cards],
        "judge": {"card": "tiny-qwen3-vl", "transport": "local", "canaries": False},
        "metrics": ["l1_raw", "colorfulness", "entropy"],
        "engine": {"device": "cpu"},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    result = call(capsys, "run", tmp_path / "run.yaml", "--run-dir", run)
    assert result["candidates"]["n"] == output["n_deliverables"] * attempts * len(cards)
    assert result["candidates"]["n_done"] > 0
    assert result["verdicts"]["n"] > 0
    assert (run / "report" / "index.html").is_file()
    files = call(capsys, "export", run, "--format", name, "--out", out)["files"]
    published = result["benchmark"]
    costs = ("--costs", out / "costs.json")  # what the meter found
    if name == "hype-edit-1":
        scores = ("--scores", out / "ratings.jsonl")
        assert published["all"] == call(capsys, "score", name, *files, *scores, *costs)
    elif name == "servimage":
        more = ("--tasks", out / "tasks.jsonl", "--scores", out / "scores.jsonl")
        assert published["all"] == call(capsys, "score", name, *files, *more, *costs)
    elif name == "ice-bench":
        scored = [card for card in cards if published[card]["tasks"]]
        assert [published[card] for card in scored] == [call(capsys, "score", name, file) for file in files]
        with RunDir.open(run) as opened:
            by_model = results_by_model(run_results(opened))
        tasks = {card: {item.task for item in items} for card, items in by_model.items()}
        assert tasks["tiny-flux-fill"] == {"Local Subject Removal"}  # its mask as a mask
        assert tasks["tiny-flux"] == {"Text2Image"}  # the rest is not supported
        assert len(tasks["tiny-omnigen"]) == 5
    else:  # cases outside of the mini subset, whose categories are in their meta.json alone
        assert [published[card] for card in cards] == [
            call(capsys, "score", name, file, "--tasks", path) for file in files
        ]
        omnigen = published["tiny-omnigen"]
        assert (set(omnigen["tasks"]), omnigen["without_category"]) == ({"0901", "0902"}, [])  # it makes no two images
        assert omnigen["without_tasks"] == ["Is2I", "T2Is", "I(s)2Is"]
        assert omnigen["categories"]["T2I"] == omnigen["tasks"]["0901"] is not None
        assert omnigen["categories"]["I2I"] == omnigen["tasks"]["0902"] is not None
        assert omnigen["overall"] == pytest.approx(sum(omnigen["categories"].values()) / 5)
        assert published["tiny-flux"]["without_tasks"] == ["I2I", "Is2I", "T2Is", "I(s)2Is"]
        assert main(["settle", str(run)]) == 0
        stdout = capsys.readouterr().out
        assert ("T2I" in stdout, "all" in stdout) == (True, True)


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
    settings += ["judge.rubrics=miniature", "engine.device=cpu"]  # their answers are short
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
