"""The budget of a run is computed from the plan, the judges' questions and the devices."""

import pytest

from local_bench.judges.metrics.registry import metric_card, metric_names
from local_bench.models.gpus import gpu
from local_bench.runs.budget import (
    ANSWER_TOKENS,
    COMPILE_S,
    DECODE_FACTOR,
    JUDGE_START_S,
    NETWORK_SLOWER,
    TEXT_TOKENS,
    TOKENS,
    Devices,
    budget,
    measured_seconds,
    metric_time,
)
from local_bench.runs.config import RunConfig
from local_bench.runs.prices import Price
from local_bench.runs.progress import Late, Quiet

PRICE = Price("h100", "own", 2_000_000, "test", "")
MODEL = {
    "model": "a",
    "load": "weights",
    "gpu_hours": 8.0,
    "host_gb": 30.0,
    "phases": {"encode": {"weights_gb": 10.0}, "denoise": {"weights_gb": 25.0}},
}


def config(**judge):
    return RunConfig(name="b", models=[{"card": "tiny-flux"}], judge={"card": "qwen3-vl-8b"} | judge)


def test_total_time_is_generation_judging_and_loading():
    devices = Devices(gpu("h100"), 4, 2, PRICE)
    found = budget(config(), [MODEL, MODEL], 1000, 1500, devices)
    tokens = 1000 * (TEXT_TOKENS + DECODE_FACTOR * ANSWER_TOKENS) + 1500 * 1048576 / 32**2
    judge_s = tokens * 2 * 8.8e9 / (gpu("h100").tflops(False) * 1e12)
    assert found["judge_gpu_hours"] == pytest.approx(judge_s / 3600, rel=0.02)
    assert found["load_s"] == 70
    start_s = found["judge_start_s"]
    assert start_s == pytest.approx(JUDGE_START_S + 17.6, abs=0.5)
    wall_s = (16 * 3600 + judge_s) / 8 + 70 + start_s
    assert found["wall_hours"] == pytest.approx(wall_s / 3600, rel=1e-3)
    assert found["gpu_hours"] == pytest.approx(8 * found["wall_hours"])
    assert found["cost_usd"] == pytest.approx(2 * found["gpu_hours"], abs=0.01)
    assert found["host_gb"] == 30


def test_compilation_and_metrics_widen_the_range():
    devices, model = Devices(gpu("h100"), 2, 1, PRICE), MODEL | {"n_images": 10_000, "megapixels": 10_486.0}
    without = budget(config(), [model | {"n_compiled": 0}], 0, 0, devices)
    low_s, high_s = COMPILE_S
    compiled = budget(config(), [model | {"n_compiled": 3}], 0, 0, devices)
    assert compiled["compile_s"] == [3 * low_s, 3 * high_s]
    assert 3600 * (compiled["wall_hours"] - without["wall_hours"]) == pytest.approx(3 * low_s)
    assert 3600 * (compiled["wall_hours_high"] - without["wall_hours_high"]) == pytest.approx(3 * high_s)
    assert compiled["cost_usd_high"] > compiled["cost_usd"]


def test_metrics_take_their_measured_seconds_and_networks_the_time_of_their_operations():
    seconds = measured_seconds()
    host = metric_time(["piqe", "entropy"], 100, 105.0, gpu("h100"), 2)
    expected = 105 * (seconds["read"] + seconds["piqe"] + seconds["entropy"])
    assert host.host_s == pytest.approx(expected)
    assert host.low_s == host.high_s == pytest.approx(expected / 2)
    network = metric_time(["dino_ref"], 10**6, 1e-9, gpu("h100"), 2)
    flop = 2 * 1.14e9 * TOKENS * 10**6
    assert network.low_s == pytest.approx(flop / (gpu("h100").tflops(False) * 1e12), rel=1e-3)
    assert network.high_s == pytest.approx(NETWORK_SLOWER * network.low_s, rel=1e-3)
    assert metric_time(["dino_ref"], 10, 10.0, None, 2).unknown == ("dino_ref",)
    assert metric_time([], 10, 10.0, gpu("h100"), 2).high_s == 0


def test_every_metric_without_a_network_has_a_measured_time():
    names = {name for name in metric_names() if metric_card(name) is None}
    assert names | {"read"} == set(measured_seconds())


class Recorded(Quiet):
    def __init__(self):
        self.calls = []

    def begin(self, phase, total):
        self.calls.append((phase, total))

    def advance(self, n=1):
        self.calls.append(n)


def test_progress_of_a_phase_is_delayed_and_then_complete(monkeypatch):
    recorded, now = Recorded(), [0.0]
    monkeypatch.setattr("local_bench.runs.progress.time.monotonic", lambda: now[0])
    late = Late(recorded)
    late.begin("short", 2)
    late.advance(2)
    late.begin("long", 9)
    for _ in range(9):
        now[0] += 0.3
        late.advance()
    late.begin("next", 1)
    assert recorded.calls[0] == ("long", 9)
    assert sum(recorded.calls[1:]) == 9


def test_more_devices_take_less_time_and_not_less_cost():
    one, many = (
        budget(config(), [MODEL], 1000, 1000, Devices(gpu("h100"), n, nodes, PRICE)) for n, nodes in ((1, 1), (8, 4))
    )
    assert many["wall_hours"] < one["wall_hours"] / 15
    assert many["cost_usd"] > one["cost_usd"]


def test_a_mixture_of_experts_counts_its_active_parameters():
    devices = Devices(gpu("h100"), 1, 1, None)
    dense = budget(config(card="qwen3-vl-32b"), [MODEL], 1000, 1000, devices)
    sparse = budget(config(card="qwen3-vl-30b-a3b"), [MODEL], 1000, 1000, devices)
    assert sparse["judge_gpu_hours"] < dense["judge_gpu_hours"] / 5
    assert sparse["cost_usd"] is None


def test_unknown_times_are_none_and_an_external_judge_takes_no_device_time():
    found = budget(config(base_url="http://127.0.0.1:1/v1"), [MODEL], 1000, 1000, Devices(gpu("h100"), 1, 1, PRICE))
    assert found["judge_gpu_hours"] == found["judge_start_s"] == 0
    unknown = budget(config(), [MODEL | {"gpu_hours": None}], 1000, 1000, Devices(gpu("h100"), 1, 1, PRICE))
    assert unknown["wall_hours"] is unknown["cost_usd"] is None
    cpu = budget(config(), [MODEL], 1000, 1000, Devices(None, 1, 1, None))
    assert cpu["wall_hours"] is cpu["judge_gpu_hours"] is None
