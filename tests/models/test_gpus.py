import pytest

from local_bench.core.errors import ConfigError
from local_bench.core.files import configs_dir
from local_bench.core.yamlfile import check, read_yaml
from local_bench.models.cards import cards
from local_bench.models.gpus import Gpu, gpu, gpu_of, gpus
from local_bench.runs.config import SettlementConfig
from local_bench.runs.prices import price_of


def test_gpus_have_prices_plausible_rates_and_a_batch_size_for_a_judge_s_server():
    """More than vLLM's default for small GPUs, no less than a judge's largest image, more with more memory."""
    prices, _ = read_yaml(configs_dir() / "prices.yaml")
    assert {"cpu", *gpus()} == set(prices["gpus"])
    judges = [card for card in cards().values() if card.role == "judge"]
    image = max(card.tokens_of_image(card.judge_max_pixels) for card in judges)
    by_memory = sorted(gpus().values(), key=lambda listed: listed.memory_gb)
    for listed in by_memory:
        assert listed.title == prices["gpus"][listed.name]["title"]
        assert 0.3 < listed.sustained_eager <= listed.sustained_compiled < 0.8
        assert listed.tflops(compiled=True) < listed.peak_tflops
        assert listed.source
        assert listed.judge_batched_tokens > 2048
        assert listed.judge_batched_tokens >= max(image, listed.judge_sequences)
    for field in ("judge_batched_tokens", "judge_sequences"):
        figures = [getattr(listed, field) for listed in by_memory]
        assert figures == sorted(figures)
        assert figures[0] < figures[-1]


@pytest.mark.parametrize("field", ["judge_batched_tokens", "judge_sequences"])
def test_a_gpu_without_them_is_refused(field):
    rows, _ = read_yaml(configs_dir() / "gpus.yaml")
    row = dict(rows["gpus"][0])
    del row[field]
    with pytest.raises(ConfigError, match=f"the key '{field}' is missing"):
        check(row, Gpu, "gpus.yaml")


DEVICES = {
    "a6000": ["NVIDIA RTX A6000"],
    "a100-40": ["NVIDIA A100-SXM4-40GB", "NVIDIA A100-PCIE-40GB"],
    "a100-80": ["NVIDIA A100-SXM4-80GB", "NVIDIA A100 80GB PCIe"],
    "h100": ["NVIDIA H100 80GB HBM3"],
    "h200": ["NVIDIA H200"],
    "l40s": ["NVIDIA L40S"],
    "rtx4090": ["NVIDIA GeForce RTX 4090"],
    "h100-pcie": ["NVIDIA H100 PCIe"],
    "h100-nvl": ["NVIDIA H100 NVL"],
    "gh200": ["NVIDIA GH200 480GB"],
    "b200": ["NVIDIA B200"],
    "a40": ["NVIDIA A40"],
    "l4": ["NVIDIA L4"],
    "rtx5090": ["NVIDIA GeForce RTX 5090"],
    "rtxpro6000": [f"NVIDIA RTX PRO 6000 Blackwell {edition} Edition" for edition in ("Workstation", "Server")],
}


def test_a_device_is_recognised_by_its_name_and_another_is_not():
    assert set(DEVICES) == set(gpus())
    for name, devices in DEVICES.items():
        for device in devices:
            assert gpu_of(device).name == price_of(SettlementConfig(), device).gpu == name
    assert [device for device in ("cpu", *OTHERS) if gpu_of(device) is not None] == []
    assert [device for device in OTHERS if price_of(SettlementConfig(), device) is not None] == []


OTHERS = ["NVIDIA L40", "NVIDIA GH200 144G HBM3e", "NVIDIA B300", "NVIDIA GB200", "NVIDIA RTX A600", "NVIDIA RTX A4000"]
OTHERS += ["NVIDIA RTX PRO 6000 Blackwell Max-Q Workstation Edition", "NVIDIA GeForce RTX 4090 Laptop GPU"]
OTHERS += ["NVIDIA GeForce RTX 5090 D"]


@pytest.mark.parametrize(
    ("name", "message"),
    [("h300", "did you mean 'h"), ("a100", "available: a100-40, a100-80"), ("tpu-v5", "available: a6000, a100-40")],
)
def test_a_name_may_be_a_unique_part_and_an_unknown_one_is_an_error(name, message):
    assert [gpu(part).name for part in ("4090", "rtx4090", "H200")] == ["rtx4090", "rtx4090", "h200"]
    with pytest.raises(ConfigError, match=message):
        gpu(name)
