"""LoRA adapters of a card, fused into the denoiser's weights before it is placed on its device.

A fused adapter takes no additional time or memory per step, and the batch-invariance check and compilation work on
ordinary weights. Diffusers' loader reads the file (diffusers, kohya, XLabs and other layouts), through PEFT. It skips
what it cannot use, with a warning at most, so the tensors of the file are followed to the layers of the denoiser.
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers.utils import convert_unet_state_dict_to_peft
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakTensorKeyDictionary

from local_bench.core import strictjson
from local_bench.core.errors import ConfigError, WeightsError
from local_bench.models.tensors import load_tensors

_ADAPTER = "local_bench_adapter"  # PEFT's name for it while it is fused; no layer of a model contains this name
_NOT_FITTING = (ValueError, RuntimeError, KeyError, AssertionError)  # what diffusers and PEFT raise for such files


def fuse_adapters(pipe: Any, denoiser: str, scales: Mapping[str, float], parts: Mapping[str, Path], name: str) -> None:
    """Add `scale * B @ A` of each adapter to the weights of `pipe`'s denoiser, in the order of `scales`.

    `parts` has each adapter's folder, which contains one `.safetensors` file; `name` is the card's. Raises ConfigError
    if the pipeline does not support adapters or an adapter also changes a text encoder, and WeightsError if a file is
    not a LoRA adapter of this model, or only a part of it is.
    """
    if not scales:
        return
    if not hasattr(pipe, "load_lora_weights"):
        raise ConfigError(f"{name}: {type(pipe).__name__} does not support LoRA adapters: remove `lora` from its card")
    shapes = _shapes(pipe, denoiser)
    for adapter, scale in scales.items():
        files = sorted(parts[adapter].glob("*.safetensors"))
        if len(files) != 1:
            raise WeightsError(
                f"{name}: {parts[adapter]} has {len(files)} .safetensors files at its top level; a LoRA adapter must "
                "be one file"
            )
        (file,) = files
        _check_config(file.with_name("adapter_config.json"), name)
        local: dict[str, Any] = {"weight_name": file.name, "local_files_only": True, "use_safetensors": True}
        try:
            tensors = load_tensors(file)
            sources = _sources(pipe, tensors)
            encoders = sorted({key.partition(".")[0] for key in sources if key.startswith("text_encoder")})
            if encoders:
                raise ConfigError(
                    f"{name}: the adapter {adapter} ({file}) changes {', '.join(encoders)}; only adapters of the "
                    f"{denoiser} are supported"
                )
            of_denoiser = {
                key.removeprefix(f"{denoiser}."): keys
                for key, keys in sources.items()
                if key.startswith(f"{denoiser}.")
            }
            layers: dict[str, set[str]] = convert_unet_state_dict_to_peft(of_denoiser)
            unused = _unused(tensors, layers, {module for module, _ in getattr(pipe, denoiser).named_modules()})
            if unused or not tensors:
                raise WeightsError(
                    f"{name}: the model's {denoiser} does not use {len(unused)} of the {len(tensors)} tensors in "
                    f"{file} ({_first(unused)}): use an adapter that was trained for this model, or, if it works "
                    "without them, remove them from the file"
                )
            pipe.load_lora_weights(str(file.parent), adapter_name=_ADAPTER, **local)
            missing = _missing(getattr(pipe, denoiser).state_dict(), layers)
            if missing:
                raise WeightsError(f"{name}: {file} is incomplete, it does not contain {_first(missing)}: replace it")
            pipe.fuse_lora(components=[denoiser], lora_scale=scale, safe_fusing=True, adapter_names=[_ADAPTER])
            pipe.unload_lora_weights()
        except _NOT_FITTING as e:
            reason = " ".join(str(e).split())[:200] or type(e).__name__
            raise WeightsError(f"{name}: {file} is not a LoRA adapter of this model ({reason})") from e
        if _shapes(pipe, denoiser) != shapes:  # the library widens layers for adapters of control models
            raise WeightsError(f"{name}: {file} is an adapter for a different number of input channels: remove it")


def _check_config(path: Path, name: str) -> None:
    """WeightsError if PEFT's config, which diffusers does not read, scales the adapter."""
    config = strictjson.read(path, WeightsError, missing="replace it") if path.is_file() else {}
    config = config if isinstance(config, dict) else {}
    alpha, rank = config.get("lora_alpha"), config.get("r")
    if alpha != rank or config.get("use_rslora") or config.get("alpha_pattern") or config.get("rank_pattern"):
        raise WeightsError(
            f"{name}: {path} scales the adapter (lora_alpha {alpha}, r {rank}), which diffusers does not read: use the "
            ".safetensors file in a folder without that config, with its scale in `lora` times lora_alpha / r"
        )


class _Trace(TorchFunctionMode):
    """Records from which of the given tensors every tensor is computed that is made while the mode is on."""

    def __init__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        super().__init__()
        self._sources: Any = WeakTensorKeyDictionary()
        for key, tensor in tensors.items():
            self._sources[tensor] = {key}

    def of(self, values: Any) -> set[str]:
        keys = (self._sources.get(value, ()) for value in tree_leaves(values) if isinstance(value, torch.Tensor))
        return set().union(*keys)

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        result = func(*args, **(kwargs or {}))
        sources = self.of((args, kwargs))
        for value in tree_leaves(result):
            if isinstance(value, torch.Tensor):
                self._sources[value] = self.of(value) | sources
        return result


def _sources(pipe: Any, tensors: Mapping[str, torch.Tensor]) -> dict[str, set[str]]:
    """For each key of diffusers' layout, the keys of the file from which its tensor is computed."""
    unet = {"unet_config": pipe.unet.config} if getattr(pipe, "unet", None) is not None else {}
    with _Trace(tensors) as trace:
        read = pipe.lora_state_dict(dict(tensors), **unet)
    return {key: trace.of(tensor) for key, tensor in (read[0] if isinstance(read, tuple) else read).items()}


def _unused(tensors: Mapping[str, torch.Tensor], layers: Mapping[str, set[str]], modules: Collection[str]) -> list[str]:
    """The keys of the file that change no module of the denoiser; all of them, if none does.

    Tensors of one element are settings (kohya's `alpha`), and zeros change nothing.
    """
    used = set().union(*(keys for layer, keys in layers.items() if re.sub(r"\.lo(ra|kr)_.*", "", layer) in modules))
    unused = [key for key, tensor in tensors.items() if key not in used and tensor.numel() > 1 and bool(tensor.any())]
    return sorted(unused if used else tensors)


def _missing(weights: Mapping[str, torch.Tensor], layers: Collection[str]) -> list[str]:
    """The weights of the loaded adapter that PEFT has initialised, because the file does not contain them."""
    loaded = {key.replace(f".{_ADAPTER}", ""): weight for key, weight in weights.items() if f".{_ADAPTER}" in key}
    expected = {*layers, *(f"{layer}.weight" for layer in layers)}  # files have DoRA's magnitudes without the suffix
    return sorted(
        key for key, weight in loaded.items() if key not in expected and (weight.is_meta or bool(weight.any()))
    )


def _first(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (", …" if names[3:] else "")


def _shapes(pipe: Any, denoiser: str) -> dict[str, Any]:
    return {key: weight.shape for key, weight in getattr(pipe, denoiser).state_dict().items()}
