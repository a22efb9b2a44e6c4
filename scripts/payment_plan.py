"""Memory and duration of a training on given GPUs, from the shapes of the model. Computed, not measured.

Memory: weights in bfloat16; 16 bytes per trained parameter (value, gradient, AdamW's two moments, float32); with
gradient checkpointing the inputs of all blocks and the activations of one, without it the activations of all; no
logits. Operations: 2 per weight and token, attention by its sizes. The backbone is frozen, so a backward pass costs as
much as a forward pass, and checkpointing adds another one.
"""

import re
from collections import Counter
from dataclasses import dataclass
from typing import Any

from torch import nn

from local_bench.judges.payment.data import PaymentConfig
from local_bench.judges.payment.network import DECISION, QUALITY, TARGETS, PaymentNetwork
from local_bench.models.gpus import Gpu

MFU = 0.35
"""Assumed fraction of the GPU's dense bfloat16 peak."""
_RUNTIME_BYTES = 1_000_000_000
"""CUDA context, workspaces and fragmentation."""
_BF16, _F32 = 2, 4
_PER_TRAINED = 16


@dataclass(frozen=True)
class Workload:
    """A mean example, and how many of them."""

    tokens: int
    """Of the prompt, those of images included."""
    image_tokens: int
    images: int
    train: int
    """Training examples."""
    validation: int = 0

    def __post_init__(self) -> None:
        assert 0 < self.images <= self.image_tokens <= self.tokens


@dataclass(frozen=True)
class TrainingPlan:
    """What a training takes. Decimal GB per GPU; hours on all GPUs together."""

    trainable: dict[str, int]
    """Parameters of stage 1's adapters by group."""
    memory_gb: dict[str, float]
    """By part, and the `total`."""
    fits: bool
    flop_per_example: float
    """Of one forward pass."""
    hours: dict[str, float]
    """Of `stage 1`, `stage 2`, and the `total`."""


def training_plan(
    base: Any, config: PaymentConfig, workload: Workload, gpu: Gpu, n_gpus: int, mfu: float = MFU
) -> TrainingPlan:
    """The plan for the backbone `base`, which may be on the meta device; adapters are added to it."""
    n_base = sum(parameter.numel() for parameter in base.parameters())
    forward = forward_flop(base, workload)
    shapes = base.config
    network = PaymentNetwork(base, config)
    quality, decision = (trainable_by_group(network.trunk, adapter) for adapter in (QUALITY, DECISION))
    heads = sum(parameter.numel() for parameter in network.heads.parameters())
    trained = quality.total() + heads
    blocks, one = _activations(shapes, workload)
    memory = {
        "weights": _BF16 * n_base,
        "adapters and optimiser": _PER_TRAINED * trained + _F32 * decision.total(),
        "activations": max(config.stage1.batch_size, config.stage2.batch_size)
        * ((blocks + one) if config.gradient_checkpointing else _all_activations(shapes, workload)),
        "runtime": _RUNTIME_BYTES,
    }
    memory_gb = {name: value / 1e9 for name, value in memory.items()}
    memory_gb["total"] = sum(memory_gb.values())
    speed = n_gpus * gpu.peak_tflops * 1e12 * mfu
    passes = (3 if config.gradient_checkpointing else 2) if quality else 1
    stage_1 = (workload.train * passes * config.stage1.epochs + workload.validation) * forward
    fixed = (workload.train + workload.validation) * (2 if config.concepts != "none" else 1) * forward
    stage_2 = fixed + (workload.train * passes * config.stage2.epochs * forward if quality else 0)
    hours = {"stage 1": stage_1 / speed / 3600 if config.concepts != "none" else 0.0, "stage 2": stage_2 / speed / 3600}
    hours["total"] = sum(hours.values())
    return TrainingPlan(dict(quality), memory_gb, memory_gb["total"] <= gpu.memory_gb, forward, hours)


def trainable_by_group(trunk: nn.Module, adapter: str) -> Counter[str]:
    """Group -> parameters of the adapter; empty for a model without adapters."""
    found: Counter[str] = Counter()
    for name, parameter in trunk.named_parameters():
        if f".{adapter}." in name:
            found[next(group for group, pattern in TARGETS.items() if re.search(pattern, name))] += parameter.numel()
    return found


def forward_flop(base: Any, workload: Workload) -> float:
    """Floating-point operations of one forward pass of the model without adapters and logits."""
    text, vision = base.config.get_text_config(), base.config.vision_config
    per_token = _weights(base, "model.language_model.layers.")
    per_patch = _weights(base, "model.visual.blocks.")
    per_image_token = _weights(base, "model.visual.") - per_patch
    patches = workload.image_tokens * vision.spatial_merge_size**2
    heads = text.num_attention_heads * _head_size(text)
    attention = 2 * workload.tokens**2 * heads * text.num_hidden_layers  # causal: half of 4 T² d
    seeing = 4 * patches**2 / workload.images * _vision_width(vision) * vision.depth
    linear = per_token * workload.tokens + per_patch * patches + per_image_token * workload.image_tokens
    return float(2 * linear + attention + seeing)


def _weights(base: Any, prefix: str) -> int:
    return sum(
        module.weight.numel()
        for name, module in base.named_modules()
        if name.startswith(prefix) and isinstance(module, nn.Linear)
    )


def _activations(shapes: Any, workload: Workload) -> tuple[float, float]:
    """(bytes of the blocks' inputs, bytes of one block in its backward pass, with float32 copies for the adapters)."""
    text, vision = shapes.get_text_config(), shapes.vision_config
    patches = workload.image_tokens * vision.spatial_merge_size**2
    inputs = text.num_hidden_layers * workload.tokens * text.hidden_size + vision.depth * patches * _vision_width(
        vision
    )
    per_block = max(workload.tokens * _text_values(text), patches * _vision_values(vision))
    return float(_BF16 * inputs), float((_BF16 + _BF16) * per_block)


def _all_activations(shapes: Any, workload: Workload) -> float:
    text, vision = shapes.get_text_config(), shapes.vision_config
    patches = workload.image_tokens * vision.spatial_merge_size**2
    values = text.num_hidden_layers * workload.tokens * _text_values(text)
    return float(_BF16 * (values + vision.depth * patches * _vision_values(vision)))


def _text_values(text: Any) -> int:
    """Values kept per token and block: residuals and norms, queries, keys, values and their rotations, the MLP."""
    head = _head_size(text)
    attention = 2 * text.num_attention_heads * head + 4 * text.num_key_value_heads * head
    return int(10 * text.hidden_size + attention + 5 * text.intermediate_size)


def _vision_values(vision: Any) -> int:
    width = _vision_width(vision)
    hidden = getattr(vision, "intermediate_size", None) or int(width * vision.mlp_ratio)
    return int(10 * width + 5 * width + 3 * hidden)


def _vision_width(vision: Any) -> int:
    """Qwen2-VL names it `embed_dim` and has another `hidden_size`."""
    return int(getattr(vision, "embed_dim", None) or vision.hidden_size)


def _head_size(text: Any) -> int:
    return int(getattr(text, "head_dim", None) or text.hidden_size // text.num_attention_heads)
