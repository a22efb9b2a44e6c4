"""The four benchmarks end to end: own files, small models, a judge in this process, metrics, report, export, score."""

import json

import pytest

from local_bench.analysis.official import run_results
from local_bench.cli.main import main
from local_bench.runs.rundir import RunDir
from local_bench.suites.ice_bench.results import results_by_model
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
        tasks = {card: {item.task for item in results.items} for card, results in by_model.items()}
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
