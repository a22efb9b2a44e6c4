"""The budget of a run is computed from the plan, the judges' questions and the devices, whose prices are a table."""

import pytest

from local_bench.core.errors import ConfigError
from local_bench.core.files import configs_dir
from local_bench.core.yamlfile import load_yaml
from local_bench.judges.metrics.registry import metric_card, metric_names
from local_bench.models.gpus import gpu
from local_bench.runs.config import RunConfig, SettlementConfig, load_config
from local_bench.runs.estimate import (
    ANSWER_TOKENS,
    COMPILE_S,
    DECODE_FACTOR,
    JUDGE_START_S,
    NETWORK_SLOWER,
    TEXT_TOKENS,
    TOKENS,
    budget,
    measured_seconds,
    metric_time,
)
from local_bench.runs.prices import Price, PriceTable, price_of
from local_bench.runs.progress import Late
from tests.orders import Recorded

H100 = gpu("h100")
PRICE = Price("h100", "own", 2_000_000, "test", "")
PHASES = {"encode": {"weights_gb": 10.0}, "denoise": {"weights_gb": 25.0}, "decode": {"weights_gb": 25.0}}
MODEL = {"model": "a", "load": "weights", "gpu_hours": 8.0, "host_gb": 30.0, "all_resident_gb": 35.0, "phases": PHASES}


def planned(model=MODEL, gpus=1, nodes=1, n=1000, device=H100, price=PRICE, models=1, points=1000, **judge):
    config = RunConfig(name="b", models=[{"card": "tiny-flux"}], judge={"card": "qwen3-vl-8b"} | judge)
    return budget(config, [model] * models, (n, [points * 1024.0]), device, price, gpus, nodes)


def test_total_time_is_generation_judging_and_loading():
    total = planned(models=2, gpus=4, nodes=2, points=1500)
    tokens = 1000 * (TEXT_TOKENS + DECODE_FACTOR * ANSWER_TOKENS) + 1500 * 1048576 / 32**2
    judge_s = tokens * 2 * 8.8e9 / (H100.tflops(False) * 1e12)
    assert total["judge_gpu_hours"] == pytest.approx(judge_s / 3600, rel=0.02)
    assert (total["load_s"], total["host_gb"]) == (70, 30)
    assert total["judge_start_s"] == pytest.approx(JUDGE_START_S + 17.6, abs=0.5)
    wall_s = (16 * 3600 + judge_s) / 8 + 70 + total["judge_start_s"]
    assert total["wall_hours"] == pytest.approx(wall_s / 3600, rel=1e-3)
    assert total["gpu_hours"] == pytest.approx(8 * total["wall_hours"])
    assert total["cost_usd"] == pytest.approx(2 * total["gpu_hours"], abs=0.01)


def test_compilation_widens_the_range():
    model = MODEL | {"n_images": 10_000, "megapixels": 10_486.0}
    without, compiled = (planned(model | {"n_compiled": n}, gpus=2, n=0, points=0) for n in (0, 3))
    low_s, high_s = COMPILE_S
    assert compiled["compile_s"] == [3 * low_s, 3 * high_s]
    assert 3600 * (compiled["wall_hours"] - without["wall_hours"]) == pytest.approx(3 * low_s)
    assert 3600 * (compiled["wall_hours_high"] - without["wall_hours_high"]) == pytest.approx(3 * high_s)
    assert compiled["cost_usd_high"] > compiled["cost_usd"]


def test_metrics_take_their_measured_seconds_and_networks_the_time_of_their_operations():
    seconds = measured_seconds()
    assert set(seconds) == {"read"} | {name for name in metric_names() if metric_card(name) is None}
    host = metric_time(["piqe", "entropy"], 100, 105.0, H100, 2)
    expected = 105 * (seconds["read"] + seconds["piqe"] + seconds["entropy"])
    assert host.host_s == pytest.approx(expected)
    assert host.low_s == host.high_s == pytest.approx(expected / 2)
    network = metric_time(["dino_ref"], 10**6, 1e-9, H100, 2)
    assert network.low_s == pytest.approx(2 * 1.14e9 * TOKENS * 10**6 / (H100.tflops(False) * 1e12), rel=1e-3)
    assert network.high_s == pytest.approx(NETWORK_SLOWER * network.low_s, rel=1e-3)
    assert metric_time(["dino_ref"], 10, 10.0, None, 2).unknown == ("dino_ref",)
    assert metric_time([], 10, 10.0, H100, 2).high_s == 0


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
    assert (recorded.begun, recorded.done) == ([("long", 9)], 9)


def test_more_devices_take_less_time_and_not_less_cost():
    single, many = planned(), planned(gpus=8, nodes=4)
    assert many["wall_hours"] < single["wall_hours"] / 15
    assert many["cost_usd"] > single["cost_usd"]


def test_a_mixture_of_experts_counts_its_active_parameters():
    dense, sparse = (planned(card=card, price=None) for card in ("qwen3-vl-32b", "qwen3-vl-30b-a3b"))
    assert sparse["judge_gpu_hours"] < dense["judge_gpu_hours"] / 5
    assert sparse["cost_usd"] is None


def test_unknown_times_are_none_and_an_external_judge_takes_no_device_time():
    external = planned(base_url="http://127.0.0.1:1/v1")
    assert external["judge_gpu_hours"] == external["judge_start_s"] == 0
    unknown, cpu = planned(MODEL | {"gpu_hours": None}), planned(device=None, price=None)
    assert unknown["wall_hours"] is unknown["cost_usd"] is cpu["wall_hours"] is cpu["judge_gpu_hours"] is None


def test_a_model_without_images_is_not_loaded_and_takes_no_time():
    config = RunConfig(name="b", models=[{"card": "tiny-flux"}], judge={"card": "qwen3-vl-8b"})
    none = MODEL | {"model": "b", "n_images": 0, "gpu_hours": None, "host_gb": 90.0}
    alone, both = (budget(config, models, (9, [9.0]), H100, PRICE, 1, 1) for models in ([MODEL], [MODEL, none]))
    assert alone == both
    assert alone["cost_usd"] is not None


CONFIG = "name: t\nsuite: {name: studio}\nmodels: [{card: tiny-flux}]\njudge: {card: tiny-qwen3-vl}\n"


def test_every_price_has_an_amount_a_source_and_a_date():
    table = load_yaml(configs_dir() / "prices.yaml", PriceTable)
    rows = [r for g in table.gpus.values() for r in (g.low, g.mid, g.high) if r]
    assert len(rows) > 15
    assert all(float(r.usd_per_hour) > 0 and r.source and r.date.startswith("2026") for r in rows)


@pytest.mark.parametrize(
    ("device", "gpu", "micro"),
    [
        ("cpu", "cpu", 50_000),
        ("NVIDIA H100 80GB HBM3", "h100", 2_950_000),
        ("NVIDIA H200", "h200", 3_990_000),
        ("NVIDIA A100-SXM4-80GB", "a100-80", 1_790_000),
        ("NVIDIA A100-SXM4-40GB", "a100-40", 1_300_000),
        ("NVIDIA RTX A6000", "a6000", 800_000),
    ],
)
def test_a_device_has_the_price_of_its_row(device, gpu, micro):
    price = price_of(SettlementConfig(), device)
    assert (price.gpu, price.micro_usd_per_hour) == (gpu, micro)


def test_a_missing_row_is_no_price_and_a_wrong_row_is_an_error():
    assert price_of(SettlementConfig(), "NVIDIA B300") is None
    with pytest.raises(ConfigError, match="has no row 'h300'"):
        price_of(SettlementConfig(gpu="h300"), "cpu")
    with pytest.raises(ConfigError, match="no 'low' price for cpu"):
        price_of(SettlementConfig(price="low"), "cpu")


@pytest.mark.parametrize(
    ("written", "micro"),
    [("1.20", 1_200_000), ("2", 2_000_000), ("'0.11'", 110_000), ("1e-5", 10), ("0.1", 100_000), ("1_000", 10**9)],
)
def test_an_amount_is_written_as_a_number_or_a_text(tmp_path, written, micro):
    """And is the decimal that was written, in the file and with `--set`."""
    (tmp_path / "own.yaml").write_text(f"{CONFIG}settlement: {{usd_per_hour: {written}}}\n")
    (tmp_path / "set.yaml").write_text(CONFIG)
    setting = (f"settlement.usd_per_hour={written}",)
    for config in (load_config(tmp_path / "own.yaml"), load_config(tmp_path / "set.yaml", setting)):
        assert price_of(config.settlement, "NVIDIA H200").micro_usd_per_hour == micro


@pytest.mark.parametrize("written", ["true", ".nan", ".inf", "[1]", "-2", "'-1'", "1e-9", "null please", "2e9"])
def test_what_is_no_amount_is_refused(tmp_path, written):
    (tmp_path / "c.yaml").write_text(f"{CONFIG}settlement: {{usd_per_hour: {written}}}\n")
    kind = (
        "input should be a valid string"
        if written in ("true", "[1]")
        else "must be an amount in US dollars from 0 to 1,000"
    )
    with pytest.raises(ConfigError, match=f"usd_per_hour: {kind}"):
        load_config(tmp_path / "c.yaml")
