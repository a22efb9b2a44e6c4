"""IDEA-Bench on two cases outside its mini subset, whose categories are only in their meta.json."""

import json

import pytest

from local_bench.cli.main import main
from tests.suites.benchmarks import layouts


@pytest.mark.slow
def test_two_cases_outside_the_mini_subset_have_their_category(tmp_path, capsys):
    path = layouts.idea(tmp_path / "data", ("0901", "0902"))
    config = {
        "name": "two",
        "suite": {"name": "idea-bench", "path": str(path)},
        "models": [{"card": "tiny-flux"}, {"card": "tiny-omnigen"}],
        "judge": {"card": "tiny-qwen3-vl", "transport": "local", "canaries": False},
        "metrics": [],
        "engine": {"device": "cpu"},
    }
    (tmp_path / "run.yaml").write_text(json.dumps(config))
    assert main(["run", str(tmp_path / "run.yaml"), "--run-dir", str(tmp_path / "run"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["benchmark"]["tiny-omnigen"]
    assert set(found["tasks"]) == {"0901", "0902"}
    assert found["without_category"] == []
    assert found["without_tasks"] == ["Is2I", "T2Is", "I(s)2Is"]
    assert found["categories"]["T2I"] == found["tasks"]["0901"] is not None
    assert found["categories"]["I2I"] == found["tasks"]["0902"] is not None
    assert found["overall"] == pytest.approx(sum(found["categories"].values()) / 5)
    assert main(["settle", str(tmp_path / "run")]) == 0
    stdout = capsys.readouterr().out
    assert "T2I" in stdout
    assert "all" in stdout
