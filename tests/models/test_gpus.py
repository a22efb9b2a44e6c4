import pytest

from local_bench.core.errors import ConfigError
from local_bench.core.paths import configs_dir
from local_bench.core.yamlfile import check, read_yaml
from local_bench.models.cards import cards
from local_bench.models.gpus import Gpu, gpu, gpu_of, gpus
from local_bench.runs.config import SettlementConfig
from local_bench.runs.prices import price_of


def test_gpus_and_prices_have_the_same_rows():
    prices, _ = read_yaml(configs_dir() / "prices.yaml")
    assert {"cpu", *gpus()} == set(prices["gpus"])
    assert {known.name: known.title for known in gpus().values()} == {
        name: row["title"] for name, row in prices["gpus"].items() if name != "cpu"
    }


def test_rates_are_plausible():
    for known in gpus().values():
        assert 0.3 < known.sustained_eager <= known.sustained_compiled < 0.8
        assert known.tflops(compiled=True) < known.peak_tflops
        assert known.source


def test_a_judge_s_server_has_a_batch_size_on_every_gpu():
    """More than vLLM's default for small GPUs, no less than a judge's largest image, more with more memory."""
    judges = [card for card in cards().values() if card.role == "judge"]
    image = max(card.tokens_of_image(card.judge_max_pixels) for card in judges)
    by_memory = sorted(gpus().values(), key=lambda known: known.memory_gb)
    for known in by_memory:
        assert known.judge_batched_tokens > 2048
        assert known.judge_batched_tokens >= image
        assert known.judge_batched_tokens >= known.judge_sequences
    for field in ("judge_batched_tokens", "judge_sequences"):
        figures = [getattr(known, field) for known in by_memory]
        assert figures == sorted(figures)
        assert figures[0] < figures[-1]


@pytest.mark.parametrize("field", ["judge_batched_tokens", "judge_sequences"])
def test_a_gpu_without_them_is_refused(field):
    rows, _ = read_yaml(configs_dir() / "gpus.yaml")
    row = dict(rows["gpus"][0])
    del row[field]
    with pytest.raises(ConfigError, match=f"the key '{field}' is missing"):
        check(row, Gpu, "gpus.yaml")


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("NVIDIA RTX A6000", "a6000"),
        ("NVIDIA A100-SXM4-40GB", "a100-40"),
        ("NVIDIA A100-PCIE-40GB", "a100-40"),
        ("NVIDIA A100-SXM4-80GB", "a100-80"),
        ("NVIDIA A100 80GB PCIe", "a100-80"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA H200", "h200"),
        ("NVIDIA L40S", "l40s"),
        ("NVIDIA GeForce RTX 4090", "rtx4090"),
        ("NVIDIA H100 PCIe", "h100-pcie"),
        ("NVIDIA H100 NVL", "h100-nvl"),
        ("NVIDIA GH200 480GB", "gh200"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA A40", "a40"),
        ("NVIDIA L4", "l4"),
        ("NVIDIA GeForce RTX 5090", "rtx5090"),
        ("NVIDIA RTX PRO 6000 Blackwell Workstation Edition", "rtxpro6000"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "rtxpro6000"),
    ],
)
def test_a_device_is_recognised_by_its_name(device, name):
    assert gpu_of(device).name == name
    assert price_of(SettlementConfig(), device).gpu == name


OTHERS = ["NVIDIA L40", "NVIDIA GH200 144G HBM3e", "NVIDIA B300", "NVIDIA GB200", "NVIDIA RTX A600", "NVIDIA RTX A4000"]
OTHERS += ["NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "NVIDIA GeForce RTX 4090 Laptop GPU"]
OTHERS += ["NVIDIA GeForce RTX 5090 D"]


@pytest.mark.parametrize("device", ["cpu", *OTHERS])
def test_another_device_is_not_recognised(device):
    assert gpu_of(device) is None
    assert device == "cpu" or price_of(SettlementConfig(), device) is None


def test_a_name_may_be_a_unique_part():
    assert gpu("4090").name == gpu("rtx4090").name == "rtx4090"
    assert gpu("H200").name == "h200"


@pytest.mark.parametrize(
    ("name", "message"),
    [("h300", "did you mean 'h"), ("a100", "available: a100-40, a100-80"), ("tpu-v5", "available: a6000, a100-40")],
)
def test_an_unknown_name_is_an_error(name, message):
    with pytest.raises(ConfigError, match=message):
        gpu(name)
