import pytest

from local_bench.core.errors import ConfigError
from local_bench.core.paths import configs_dir
from local_bench.core.yamlfile import load_yaml
from local_bench.runs.config import SettlementConfig, load_config
from local_bench.runs.prices import PriceTable, price_of

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


@pytest.mark.parametrize("written", ["true", ".nan", ".inf", "[1]", "-2", "'-1'", "1e-9", "null please"])
def test_what_is_no_amount_is_refused(tmp_path, written):
    (tmp_path / "c.yaml").write_text(f"{CONFIG}settlement: {{usd_per_hour: {written}}}\n")
    with pytest.raises(ConfigError, match="usd_per_hour: must be an amount"):
        load_config(tmp_path / "c.yaml")
