"""Where a pipeline's parts lie, which attention kernel runs, what is compiled: chosen once, pinned, and signed for.

Nothing here changes bytes between two runs with the same `Machine`; offloading (copies only) changes none at all.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from local_bench.core.errors import ConfigError
from local_bench.core.paths import cache_dir
from local_bench.generators.base import Machine
from local_bench.generators.lossy import make_lossy

_KERNELS = {
    "_native_flash": SDPBackend.FLASH_ATTENTION,
    "_native_cudnn": SDPBackend.CUDNN_ATTENTION,
    "_native_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "_native_math": SDPBackend.MATH,
}


def place_encoder(pipe: Any, encoders: Sequence[str], machine: Machine) -> None:
    """Brings a pipeline's encoders to the device, or lets them stream in where they do not fit."""
    if "encode" in machine.offload:
        for name in encoders:
            module = getattr(pipe, name, None)
            if isinstance(module, torch.nn.Module):
                _stream(module, machine)
    _rest_to_device(pipe, machine)


def place_denoiser(pipe: Any, name: str, machine: Machine) -> None:
    """Brings transformer and VAE to the device, pins the attention kernel, makes it lossy and compiles it if asked."""
    module = getattr(pipe, name)
    make_lossy(module, machine.lossy)
    if "denoise" in machine.offload:
        _stream(module, machine)
    _rest_to_device(pipe, machine)
    if _takes_a_backend(module):
        module.set_attention_backend(machine.attention)
    elif machine.attention not in ("native", *_KERNELS):
        raise ConfigError(
            f"engine.attention_backend: {type(module).__name__} runs torch's own kernels only, not "
            f"{machine.attention!r}: use auto or one of {', '.join(_KERNELS)}"
        )
    if machine.compile:
        compile_regions(module)


@contextmanager
def attend(module: Any, machine: Machine) -> Iterator[None]:
    """Pins torch's kernel for the classes that do not listen to `set_attention_backend` (SD3, PixArt, OmniGen, UNets).

    A shape that the kernel cannot take (a VAE's heads of 512) falls to the next of a fixed list, never to torch's mood.
    """
    kernel = _KERNELS.get(machine.attention)
    if kernel is None or machine.device.type != "cuda" or _takes_a_backend(module):
        yield
        return
    order = list(dict.fromkeys([kernel, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]))
    with sdpa_kernel(order, set_priority=True):
        yield


def compile_regions(module: Any) -> None:
    """Compiles the blocks that repeat, each whole: static shapes, no autotuning, so that two processes pick the same
    kernels.

    Every bucket's shape is compiled anew; past the usual limit torch would go on uncompiled without a word.
    """
    torch._dynamo.config.recompile_limit = 4096
    torch._dynamo.config.accumulated_recompile_limit = 1_000_000
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    if getattr(module, "_repeated_blocks", None):
        module.compile_repeated_blocks(fullgraph=True, dynamic=False)
        return
    for child in module.children():  # SD3, PixArt and OmniGen name no repeated blocks: theirs are the module lists
        if isinstance(child, torch.nn.ModuleList):
            for block in child:
                block.compile(fullgraph=True, dynamic=False)


def keep_compiled(signature: str) -> None:
    """Keeps what the compiler makes below our cache, by numerics signature; call before anything is compiled."""
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_dir() / "inductor" / signature)
    os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "1"


def _takes_a_backend(module: Any) -> bool:
    processors = (getattr(part, "processor", None) for part in module.modules())
    return any(hasattr(processor, "_attention_backend") for processor in processors)


def _stream(module: torch.nn.Module, machine: Machine) -> None:
    from diffusers.hooks import apply_group_offloading

    on_gpu = machine.device.type == "cuda"
    apply_group_offloading(
        module,
        onload_device=machine.device,
        offload_device=torch.device("cpu"),
        offload_type="leaf_level",
        non_blocking=on_gpu,
        use_stream=on_gpu,
        record_stream=on_gpu,
    )


def _rest_to_device(pipe: Any, machine: Machine) -> None:
    for part in pipe.components.values():
        if isinstance(part, torch.nn.Module) and not _streams(part):
            part.to(machine.device)


def _streams(module: torch.nn.Module) -> bool:
    return any(hasattr(part, "_diffusers_hook") for part in module.modules())
