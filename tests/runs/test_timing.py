"""`plan --measure`: the time of a run, measured with random weights before any weights are downloaded."""

import itertools
from types import SimpleNamespace

import pytest
from torch.nn.modules.module import register_module_forward_hook

from local_bench.runs import timing
from local_bench.runs.config import RunConfig
from local_bench.runs.estimate import estimate
from local_bench.runs.plan import make_plan
from local_bench.runs.timing import add_timings


@pytest.fixture(scope="module")
def planned():
    """A plan of two small models, one without applicable tasks, one without an architecture and one that ships
    with its weights, made without files. Instead of seconds the clock counts calls of modules, which do not depend on
    other processes."""
    calls = itertools.count()
    hook = register_module_forward_hook(lambda *_: next(calls) and None)
    clock = SimpleNamespace(monotonic=lambda: next(calls) * 1e-3)
    config = RunConfig(
        name="t",
        suite={"name": "studio", "limit": 2},
        models=[
            {"card": "tiny-flux", "num_inference_steps": 40, "attempts": 3},
            {"card": "tiny-sd3", "lossy": {"weights": "float8_e4m3fn"}},
            {"card": "tiny-pix2pix"},
            {"card": "sd-1.5"},
            {"card": "mini-flux"},
        ],
        metrics=[],
        engine={"device": "cpu"},
        settlement={"usd_per_hour": "3.60"},
    )
    plan = make_plan(config, files=False)
    figures = estimate(config, plan)
    with pytest.MonkeyPatch.context() as patch, hook:
        patch.setattr(timing, "time", clock)
        add_timings(config, plan, figures)
    return figures


def test_a_trial_predicts_the_time_of_the_run(planned):
    flux, sd3, pix2pix, pipeline, shipped = planned["models"]
    for entry in (flux, sd3, shipped):
        measured = entry["measured"]
        assert (measured["device"], measured["random_weights"]) == ("cpu", entry is not shipped)
        assert measured["batch_size"] == entry["batch_size"]
        assert measured["step_s"] > 0
        assert measured["gpu_hours"] * 3600 >= entry["n_images"] * measured["s_per_image"]
        assert measured["cost_usd"] == pytest.approx(measured["gpu_hours"] * 3.6, abs=1e-5)
        assert measured["mfu"] is None  # the peak of this device is unknown
    assert pix2pix["measured"] is None  # these orders have no source image
    assert pipeline["measured"] is None
    assert "not timed: its card has no architecture, which random weights need" in pipeline["sentences"]
    measured = flux["measured"]
    s_per_image = (40 * measured["step_s"]) / measured["batch_size"] + measured["decode_s_per_image"]
    assert measured["s_per_image"] == pytest.approx(s_per_image, rel=0.5)


def test_measuring_and_planning_for_another_gpu_exclude_each_other(cli, tmp_path):
    (tmp_path / "run.yaml").write_text("name: t\nmodels: [{card: flux1-dev}]\n")
    ended = cli("plan", "run.yaml", "--measure", "--gpu", "h200")
    assert ended.returncode == 2
    assert "give only one of them" in ended.stderr
