"""Every shipped config plans: its models, judges and metrics exist, and the benchmark's own files fit it."""

import pytest

from local_bench.core.paths import configs_dir
from local_bench.runs.config import load_config
from local_bench.runs.estimate import estimate
from local_bench.runs.plan import make_plan
from tests.suites.benchmarks import layouts

LAYOUTS = {"hype-edit-1": "hype", "idea-bench": "idea", "ice-bench": "ice", "servimage": "servimage"}


@pytest.mark.parametrize("path", sorted((configs_dir() / "runs").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_shipped_config_plans(path, tmp_path):
    config = load_config(path, ())
    if config.suite.name in LAYOUTS:
        data = getattr(layouts, LAYOUTS[config.suite.name])(tmp_path / "data")
        config = load_config(path, (f"suite.path={data}",))
    told = estimate(config, make_plan(config, files=False), "h100")
    assert told["n_tasks"] > 0
    assert told["judge"]["n_questions"] > 0
    if path.stem == "hype-edit-1":
        assert [model.attempts for model in config.models] == [10] * 4
        assert len({judge.card for judge in config.judges}) == 5


def test_identical_repeats_are_named(tmp_path):
    """IDEA-Bench asks three times; labels' probabilities are not sampled."""
    config = configs_dir() / "runs/idea-bench.yaml"
    path = f"suite.path={layouts.idea(tmp_path / 'data')}"
    said = {
        protocol: make_plan(load_config(config, (path, f"judge.protocol={protocol}")), files=False).notes
        for protocol in ("json", "logit")
    }
    (note,) = set(said["logit"]) - set(said["json"])
    assert "the 3 repeats of each question are identical under protocol logit and count as one" in note
