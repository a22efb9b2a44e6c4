"""Every shipped config plans: its models, judges and metrics exist, and the benchmark's file layout fits it."""

import pytest

from local_bench.core.paths import configs_dir
from local_bench.runs.config import load_config
from local_bench.runs.estimate import estimate
from local_bench.runs.plan import make_plan
from tests.suites.benchmarks import layouts

LAYOUTS = {"hype-edit-1": "hype", "idea-bench": "idea", "ice-bench": "ice", "servimage": "servimage"}


@pytest.mark.parametrize("path", sorted((configs_dir() / "runs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_config_plans(path, tmp_path):
    config = load_config(path)
    assert config.name == path.stem
    if config.suite.name in LAYOUTS:
        data = getattr(layouts, LAYOUTS[config.suite.name])(tmp_path / "data")
        config = load_config(path, (f"suite.path={data}",))
    plan = estimate(config, make_plan(config, files=False), "h100")
    assert plan["n_tasks"] > 0
    assert plan["judge"]["n_questions"] > 0
    if config.suite.name == "idea-bench":  # for table 8
        assert [metric.partition(":")[0] for metric in config.metrics] == ["clip_cap"]
    if path.stem == "hype-edit-1":
        assert [model.attempts for model in config.models] == [10] * 4
        assert len({judge.card for judge in config.judges}) == 5


def test_identical_repeats_are_reported(tmp_path):
    """IDEA-Bench repeats each question three times; label probabilities are not sampled."""
    config = configs_dir() / "runs/idea-bench.yaml"
    path = f"suite.path={layouts.idea(tmp_path / 'data')}"
    notes = {
        protocol: make_plan(load_config(config, (path, f"judge.protocol={protocol}")), files=False).notes
        for protocol in ("json", "logit")
    }
    (note,) = set(notes["logit"]) - set(notes["json"])
    assert "the 3 repeats of each question are identical under protocol logit and count as one" in note
