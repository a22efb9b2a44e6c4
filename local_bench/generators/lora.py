"""LoRA adapters of a card, fused into the denoiser's weights before it is placed on its device.

A fused adapter takes no additional time or memory per step, and the batch-invariance check and compilation work on
ordinary weights. Diffusers' loader reads the file (diffusers, kohya, XLabs and other layouts), through PEFT.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from local_bench.core.errors import ConfigError, WeightsError


def fuse_adapters(pipe: Any, denoiser: str, scales: Mapping[str, float], parts: Mapping[str, Path], name: str) -> None:
    """Add `scale * B @ A` of each adapter to the weights of `pipe`'s denoiser, in the order of `scales`.

    `parts` has each adapter's folder, which contains one `.safetensors` file; `name` is the card's. Raises ConfigError
    if the pipeline does not support adapters or an adapter also changes a text encoder, and WeightsError if a file is
    not a LoRA adapter of this model.
    """
    if not scales:
        return
    if not hasattr(pipe, "load_lora_weights"):
        raise ConfigError(f"{name}: {type(pipe).__name__} does not support LoRA adapters: remove `lora` from its card")
    shapes = _shapes(pipe, denoiser)
    for adapter, scale in scales.items():
        file = _file(parts[adapter], name)
        local: dict[str, Any] = {"weight_name": file.name, "local_files_only": True, "use_safetensors": True}
        try:
            read = pipe.lora_state_dict(str(file.parent), **local)
            state = read[0] if isinstance(read, tuple) else read
            others = sorted({key.partition(".")[0] for key in state} - {denoiser})
            if others:
                raise ConfigError(
                    f"{name}: the adapter {adapter} ({file}) changes {', '.join(others)}; only adapters of the "
                    f"{denoiser} are supported"
                )
            pipe.load_lora_weights(str(file.parent), adapter_name=adapter, **local)
            pipe.fuse_lora(components=[denoiser], lora_scale=scale, safe_fusing=True, adapter_names=[adapter])
            pipe.unload_lora_weights()
        except (ValueError, RuntimeError, KeyError) as e:  # what diffusers and PEFT raise for files that do not fit
            raise WeightsError(f"{name}: {file} is not a LoRA adapter of this model ({_first_line(e)})") from e
        if _shapes(pipe, denoiser) != shapes:  # the library widens layers for adapters of control models
            raise WeightsError(f"{name}: {file} is an adapter for a different number of input channels: remove it")


def _shapes(pipe: Any, denoiser: str) -> dict[str, Any]:
    return {key: weight.shape for key, weight in getattr(pipe, denoiser).state_dict().items()}


def _file(folder: Path, name: str) -> Path:
    files = sorted(folder.glob("*.safetensors"))
    if len(files) != 1:
        raise WeightsError(
            f"{name}: {folder} has {len(files)} .safetensors files at its top level; a LoRA adapter must be one file"
        )
    return files[0]


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
