import re
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
import yaml
from accelerate.utils import PrecisionType
from torch import nn
from transformers import Qwen3VLConfig, Qwen3VLForConditionalGeneration

from local_bench.core.errors import ConfigError
from local_bench.judges.payment.data import Lora, load_payment_config
from local_bench.judges.payment.inputs import Encoder
from local_bench.judges.payment.network import (
    DECISION,
    QUALITY,
    TARGETS,
    PaymentNetwork,
    activate,
    attach,
    checkpoint_gradients,
    concept_loss,
    full_model,
    hidden,
    load_backbone,
    load_processor,
    precision_of,
)
from local_bench.models.cards import card
from local_bench.models.gpus import gpu
from local_bench.models.weights import resolve
from scripts.payment_plan import Workload, trainable_by_group, training_plan
from tests.judges.payment import tiny

CPU = torch.device("cpu")
RECORDED = Path(__file__).parents[2] / "data" / "checkpoints" / "qwen3-vl-4b.yaml"


@pytest.mark.parametrize(("supported", "expected"), [(True, "bfloat16"), (False, "float32")])
def test_the_precision_follows_what_the_gpu_computes_itself(supported: bool, expected: str) -> None:
    config = tiny.config(precision="auto")
    with patch.object(torch.cuda, "is_bf16_supported", autospec=True, return_value=supported) as supports:
        assert precision_of(config, torch.device("cuda")) == expected
        assert precision_of(config, CPU) == "float32"
    supports.assert_called_once_with(including_emulation=False)
    assert "bf16" in PrecisionType.list()  # as `train` names it to accelerate


def backbone(name: str) -> Any:
    return load_backbone(resolve(card(name, "judge")), CPU, "float32")


def encoder(name: str) -> Encoder:
    return Encoder(load_processor(resolve(card(name, "judge"))), tiny.config(card=name), tiny.load)


def adapter_parameters(trunk: nn.Module, adapter: str) -> list[tuple[str, nn.Parameter]]:
    return [(name, parameter) for name, parameter in trunk.named_parameters() if f".{adapter}." in name]


def without_gradient(trunk: nn.Module, adapter: str) -> list[str]:
    return [n for n, p in adapter_parameters(trunk, adapter) if p.grad is None or not p.grad.abs().sum()]


def network_of(name: str = "tiny-qwen3-vl") -> PaymentNetwork:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return PaymentNetwork(backbone(name), tiny.config(card=name))


@pytest.mark.parametrize("name", ["tiny-qwen2-vl", "tiny-qwen3-vl"])
def test_every_linear_layer_of_a_group_has_an_adapter(name: str) -> None:
    model = backbone(name)
    linear = {n for n, module in model.named_modules() if isinstance(module, nn.Linear) and n != "lm_head"}
    assert attach(model, Lora(vision=False, projector=False, language=False)) is model
    trunk = attach(model, Lora(rank=2))
    names = [n.partition(".lora_")[0].removeprefix("base_model.model.") for n, _ in adapter_parameters(trunk, QUALITY)]
    assert set(names) == linear
    assert sum(bool(re.fullmatch(TARGETS["projector"], n)) for n in linear) == (6 if "qwen3" in name else 2)
    partly = attach(backbone(name), Lora(rank=2, language=False))
    assert set(trainable_by_group(partly, QUALITY)) == {"vision", "projector"}


def test_a_model_of_another_family_is_refused() -> None:
    model = nn.Linear(2, 2)
    model.config = type("Config", (), {"model_type": "llama"})()  # type: ignore[assignment]
    with pytest.raises(ConfigError, match=r"llama.*qwen3_vl"):
        attach(model, Lora())


def test_a_4b_model_has_the_expected_trainable_parameters() -> None:
    recorded = yaml.safe_load(RECORDED.read_text())["components"]["model"]
    with torch.device("meta"):
        model = Qwen3VLForConditionalGeneration(Qwen3VLConfig(**recorded["config"]))
        assert sum(parameter.numel() for parameter in model.parameters()) == recorded["parameters"]
        long = Workload(tokens=8192, image_tokens=6144, images=6, train=24_000)
        plan = training_plan(model, load_payment_config("qwen3-vl-4b-4xa6000"), long, gpu("a6000"), 4)
    assert plan.trainable == {"vision": 6_291_456, "projector": 950_272, "language": 33_030_144}
    assert sum(plan.trainable.values()) == 40_271_872
    assert plan.fits
    assert 14 < plan.memory_gb["total"] < 24
    assert plan.hours["total"] == plan.hours["stage 1"] + plan.hours["stage 2"] > 10


@pytest.mark.parametrize("name", ["tiny-qwen2-vl", "tiny-qwen3-vl"])
def test_padding_does_not_change_the_outputs(name: str) -> None:
    encode = encoder(name)
    short, long = tiny.example(2, "train"), tiny.example(3, "train")
    assert encode.encode(short)["input_ids"].shape[1] < encode.encode(long)["input_ids"].shape[1]
    network = network_of(name).eval()
    network.begin(1)
    with torch.no_grad():
        together = network.concept_outputs(encode.batch([short, long], CPU))[1]
        alone = torch.cat([network.concept_outputs(encode.batch([item], CPU))[1] for item in (short, long)])
    torch.testing.assert_close(together, alone, atol=2e-5, rtol=1e-4)
    assert (alone[0] - alone[1]).abs().max() > 1e-3  # outputs follow the input


def test_every_adapter_layer_has_a_gradient() -> None:
    encode, network = encoder("tiny-qwen3-vl"), network_of()
    examples = [tiny.example(3, "train")]
    batch = encode.batch(examples, CPU)
    with torch.random.fork_rng():
        torch.manual_seed(1)
        for name, parameter in network.named_parameters():
            if ".lora_B." in name:
                nn.init.normal_(parameter, std=0.05)  # zero at first, which leaves lora_A without a gradient
    network.begin(1)
    network.train()
    concept_loss(network(batch, ()), torch.tensor([examples[0].concepts]), network).sum().backward()
    assert without_gradient(network.trunk, QUALITY) == []
    assert all(p.grad is None for _, p in adapter_parameters(network.trunk, DECISION))

    network.zero_grad()
    network.begin(2)
    network.eval()
    constants = network.constants(batch)
    network.train()
    network(batch, (constants, torch.tensor([network.given_inputs(examples[0])]))).sum().backward()
    assert without_gradient(network.trunk, DECISION) == []
    assert all(p.grad is None for _, p in adapter_parameters(network.trunk, QUALITY))  # frozen
    assert all(p.grad is None for n, p in network.trunk.named_parameters() if ".lora_" not in n)


def test_without_adapters_the_features_are_those_of_the_original_model() -> None:
    encode, original = encoder("tiny-qwen3-vl"), backbone("tiny-qwen3-vl")
    batch = encode.batch([tiny.example(1, "train")], CPU)
    trunk = attach(backbone("tiny-qwen3-vl"), Lora(rank=2))
    for parameter in (p for _, p in adapter_parameters(trunk, QUALITY)):
        nn.init.normal_(parameter, std=0.1)
    with torch.no_grad():
        expected = hidden(original, batch)
        assert not torch.equal(hidden(trunk, batch), expected)
        activate(trunk, (), ())
        assert torch.equal(hidden(trunk, batch), expected)
        activate(trunk, (QUALITY,), ())
        assert not torch.equal(hidden(trunk, batch), expected)
    assert full_model(trunk).config.model_type == "qwen3_vl"


def test_checkpointing_changes_no_gradient() -> None:
    batch = encoder("tiny-qwen3-vl").batch([tiny.example(3, "train")], CPU)
    gradients = []
    for checkpointed in (False, True):
        network = network_of()
        if checkpointed:
            checkpoint_gradients(network.trunk)
        network.begin(1)
        network.train()
        with torch.random.fork_rng():
            torch.manual_seed(0)
            network(batch, ()).sum().backward()
        gradients.append({n: p.grad for n, p in adapter_parameters(network.trunk, QUALITY)})
    assert all(torch.equal(value, gradients[1][name]) for name, value in gradients[0].items())  # dropout included
