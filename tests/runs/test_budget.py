"""The budget of a whole run follows from the plan, the judges' questions and the devices."""

import pytest

from local_bench.models.gpus import gpu
from local_bench.runs.budget import ANSWER_TOKENS, DECODE_FACTOR, JUDGE_START_S, TEXT_TOKENS, Devices, budget
from local_bench.runs.config import RunConfig
from local_bench.runs.prices import Price

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


def test_the_whole_is_generation_judging_and_loading():
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


def test_what_is_not_known_is_none_and_an_external_judge_takes_no_time_here():
    found = budget(config(base_url="http://127.0.0.1:1/v1"), [MODEL], 1000, 1000, Devices(gpu("h100"), 1, 1, PRICE))
    assert found["judge_gpu_hours"] == found["judge_start_s"] == 0
    unknown = budget(config(), [MODEL | {"gpu_hours": None}], 1000, 1000, Devices(gpu("h100"), 1, 1, PRICE))
    assert unknown["wall_hours"] is unknown["cost_usd"] is None
    cpu = budget(config(), [MODEL], 1000, 1000, Devices(None, 1, 1, None))
    assert cpu["wall_hours"] is cpu["judge_gpu_hours"] is None
