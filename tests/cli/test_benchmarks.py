"""The four benchmarks end to end: own files, small models, a judge in this process, metrics, report, export, score."""

import json

import pytest

from local_bench.analysis.official import run_results
from local_bench.cli.main import main
from local_bench.runs.rundir import RunDir
from local_bench.suites.ice_bench.export import results_by_model
from tests.suites.benchmarks import layouts

pytestmark = pytest.mark.slow
CASES = {
    "hype-edit-1": ("hype", ["tiny-omnigen"], 2),
    "ice-bench": ("ice", ["tiny-flux", "tiny-flux-fill", "tiny-omnigen"], 1),
    "idea-bench": ("idea", ["tiny-flux"], 1),
    "servimage": ("servimage", ["tiny-omnigen"], 1),
}


def call(capsys, *arguments):
    status = main([*map(str, arguments), "--json"])
    out = capsys.readouterr()
    assert status == 0, out.err
    return json.loads(out.out)


@pytest.mark.parametrize("name", list(CASES))
def test_from_own_files_to_own_files(name, tmp_path, capsys, monkeypatch):
    layout, cards, attempts = CASES[name]
    path = getattr(layouts, layout)(tmp_path / "data")
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
    run = tmp_path / "run"
    result = call(capsys, "run", tmp_path / "run.yaml", "--run-dir", run)
    assert result["candidates"]["n"] == output["n_deliverables"] * attempts * len(cards)
    assert result["candidates"]["n_done"] > 0
    assert result["verdicts"]["n"] > 0
    assert (run / "report" / "index.html").is_file()
    files = call(capsys, "export", run, "--format", name, "--out", tmp_path / "out")["files"]
    costs = ("--costs", tmp_path / "out/costs.json")  # what the meter found
    if name in ("ice-bench", "idea-bench"):
        if name == "ice-bench":
            scored = [card for card in cards if result["benchmark"][card]["tasks"]]
            with RunDir.open(run) as opened:
                tasks = {
                    card: {item.task for item in found.items}
                    for card, found in results_by_model(run_results(opened)).items()
                }
            assert tasks["tiny-flux-fill"] == {"Local Subject Removal"}  # its mask as a mask
            assert tasks["tiny-flux"] == {"Text2Image"}  # the rest is not supported
            assert len(tasks["tiny-omnigen"]) == 5
        else:
            scored = cards
        assert [result["benchmark"][card] for card in scored] == [call(capsys, "score", name, file) for file in files]
        if name == "idea-bench":
            assert result["benchmark"]["tiny-flux"]["without_tasks"] == ["I2I", "Is2I", "T2Is", "I(s)2Is"]
    elif name == "hype-edit-1":
        assert result["benchmark"]["all"] == call(
            capsys, "score", name, *files, "--scores", tmp_path / "out/ratings.jsonl", *costs
        )
    else:
        more_files = ("--tasks", tmp_path / "out/tasks.jsonl", "--scores", tmp_path / "out/scores.jsonl")
        assert result["benchmark"]["all"] == call(capsys, "score", name, *files, *more_files, *costs)
