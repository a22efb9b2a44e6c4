"""The backbone of a payment model: its loading, and LoRA on the vision encoder, the projector and the language model of
Qwen2-VL and Qwen3-VL, chosen by module name.

The adapters are attached to the full `ForConditionalGeneration` model; `hidden` then calls its inner model, so that no
logits are computed.
"""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from local_bench.core.environment import quiet_libraries
from local_bench.core.errors import ConfigError
from local_bench.core.tensors import loading
from local_bench.judges.payment.config import Lora, PaymentConfig
from local_bench.judges.payment.inputs import Batch

FAMILIES = ("qwen2_vl", "qwen3_vl")
QUALITY = "quality"
"""The adapter of stage 1."""
DECISION = "decision"
"""The adapter of stage 2, active together with the frozen `quality`."""
TARGETS = {
    "vision": r"model\.visual\.blocks\.\d+\.(attn\.(qkv|proj)|mlp\.(linear_fc1|linear_fc2|fc1|fc2))",
    "projector": r"model\.visual\.(merger|deepstack_merger_list\.\d+)\.(linear_fc1|linear_fc2|mlp\.0|mlp\.2)",
    "language": r"model\.language_model\.layers\.\d+\.(self_attn\.(q|k|v|o)_proj|mlp\.(gate|up|down)_proj)",
}
"""Module names by group, as regular expressions for full names."""
_OFFLINE = {"local_files_only": True, "trust_remote_code": False}


def device_of(name: str = "auto") -> torch.device:
    """`auto`: the first CUDA GPU, or the CPU."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def precision_of(config: PaymentConfig, device: torch.device) -> str:
    if config.precision != "auto":
        return config.precision
    has_bfloat16 = device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if has_bfloat16 else "float32"


def load_processor(folder: Path) -> Any:
    """Raises WeightsError."""
    from transformers import AutoProcessor

    quiet_libraries()
    with loading(folder):
        return AutoProcessor.from_pretrained(folder, **_OFFLINE)


def load_backbone(folder: Path, device: torch.device, precision: str) -> nn.Module:
    """The frozen model. Raises WeightsError."""
    from transformers import AutoModelForImageTextToText

    quiet_libraries()
    placed: dict[str, Any] = {"dtype": precision, "device_map": {"": device}, "attn_implementation": "sdpa"}
    with loading(folder):
        model: nn.Module = AutoModelForImageTextToText.from_pretrained(
            folder, use_safetensors=True, **placed, **_OFFLINE
        )
    return model.requires_grad_(False).eval()


def attach(base: Any, lora: Lora) -> Any:
    """Freeze `base` and add the adapters `quality` and `decision` to the groups of `lora`; without groups `base` is
    returned. ConfigError for another model family."""
    from peft import LoraConfig, get_peft_model

    if base.config.model_type not in FAMILIES:
        raise ConfigError(
            f"a payment model cannot be trained on {base.config.model_type}: choose a judge card of "
            + ", ".join(FAMILIES)
        )
    base.requires_grad_(False)
    if not lora.groups:
        return base
    targets = "|".join(f"({TARGETS[group]})" for group in lora.groups)

    def config(rank: int) -> Any:
        return LoraConfig(r=rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=targets, bias="none")

    model = get_peft_model(base, config(lora.rank), adapter_name=QUALITY)
    model.add_adapter(DECISION, config(lora.decision_rank))
    activate(model, (QUALITY,), ())
    return model


def activate(trunk: nn.Module, active: Sequence[str], trained: Sequence[str]) -> None:
    """Make the adapters `active` take part in forward passes and those in `trained`, which are among them, trainable.
    Does nothing to a model without adapters."""
    if not has_adapters(trunk):
        return
    tuner: Any = trunk.base_model
    if not active:
        tuner.disable_adapter_layers()
        return
    tuner.enable_adapter_layers()
    tuner.set_adapter(list(active), inference_mode=True)
    tuner.set_requires_grad(list(trained))


def has_adapters(trunk: nn.Module) -> bool:
    return hasattr(trunk, "peft_config")


def full_model(trunk: nn.Module) -> Any:
    """The `ForConditionalGeneration` model inside."""
    model: Any = trunk
    return model.get_base_model() if has_adapters(trunk) else model


def hidden(trunk: nn.Module, batch: Batch) -> torch.Tensor:
    """Last hidden states (examples, tokens, hidden size), with the active adapters."""
    model = full_model(trunk)
    padded = bool((batch.mask == 0).any())
    states: torch.Tensor = model.model(
        input_ids=batch.input_ids,
        attention_mask=batch.mask if padded else None,
        mm_token_type_ids=batch.image_tokens,
        pixel_values=batch.pixel_values.to(model.dtype),
        image_grid_thw=batch.grid_thw,
        use_cache=False,
    ).last_hidden_state
    return states


def checkpoint_gradients(trunk: nn.Module) -> None:
    """Recompute the activations of each block in the backward pass. Its dropout is repeated exactly."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        full_model(trunk).gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
