"""Loads the backbone of a payment model and its processor, and the digests that identify them."""

from pathlib import Path
from typing import Any

import torch
from torch import nn

from local_bench.core.errors import WeightsError
from local_bench.core.identity import digest
from local_bench.core.process import quiet_libraries
from local_bench.judges.payment.config import PaymentConfig
from local_bench.models.digests import file_digests
from local_bench.models.weights import weights_digest


def device_of(name: str = "auto") -> torch.device:
    """`auto`: the first CUDA GPU, or the CPU."""
    return torch.device(("cuda" if torch.cuda.is_available() else "cpu") if name == "auto" else name)


def precision_of(config: PaymentConfig, device: torch.device) -> str:
    if config.precision != "auto":
        return config.precision
    return (
        "bfloat16" if device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False) else "float32"
    )


def base_digests(folder: Path) -> dict[str, str]:
    """Digests of the weights with all files that the model is loaded from, and of the processor's files alone."""
    names = sorted(p.name for p in folder.iterdir() if p.suffix in (".json", ".jinja", ".txt") and p.is_file())
    processor = [name for name in names if not name.endswith(".index.json") and name not in ("config.json",)]
    return {"weights": weights_digest(folder), "processor": digest(file_digests(folder, processor))}


def load_processor(folder: Path) -> Any:
    from transformers import AutoProcessor

    quiet_libraries()
    try:
        return AutoProcessor.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as e:
        raise WeightsError(f"the processor in {folder} cannot be loaded ({e}): fetch the model again") from e


def load_backbone(folder: Path, device: torch.device, precision: str) -> nn.Module:
    """The frozen model. Raises WeightsError."""
    from transformers import AutoModelForImageTextToText

    quiet_libraries()
    try:
        model: nn.Module = AutoModelForImageTextToText.from_pretrained(
            folder,
            dtype=precision,
            device_map={"": device},
            attn_implementation="sdpa",
            use_safetensors=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    except (OSError, ValueError, KeyError) as e:
        raise WeightsError(f"the model in {folder} cannot be loaded ({e}): fetch it again") from e
    return model.requires_grad_(False).eval()
