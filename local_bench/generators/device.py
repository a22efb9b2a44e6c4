"""Device placement, attention kernel and compilation of a pipeline; all of it is part of the numerics signature.

Two runs with the same `Machine` give the same bytes. Offloading only copies weights; a compiled block and an eager one
round differently.
"""

import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from diffusers import FirstBlockCacheConfig
from diffusers.models.attention_dispatch import attention_backend
from torch.nn.attention import SDPBackend, sdpa_kernel

from local_bench.core.errors import ConfigError
from local_bench.core.files import cache_dir
from local_bench.generators.base import Machine
from local_bench.generators.numerics import cudnn_attention_allowed

_TOKEN_AXES = {
    "hidden_states": (-2,),  # (B, tokens, width)
    "encoder_hidden_states": (-2,),
    "encoder_attention_mask": (-1,),  # (B, 1, tokens)
    "image_rotary_emb": (-2,),  # (tokens, head) each
    "modulate_index": (-1,),  # (B, tokens)
    "x": (-2,),  # Z-Image: (B, tokens, width)
    "attn_mask": (-1,),  # (B, tokens)
    "freqs_cis": (-2,),  # (B, tokens, head / 2)
}
"""The axes of a block's arguments, by name, whose lengths differ between image sizes and prompts. Of four-dimensional
tensors (a UNet's features, a mask of tokens by tokens) these are the last two."""
_KERNELS = {
    "_native_flash": SDPBackend.FLASH_ATTENTION,
    "_native_cudnn": SDPBackend.CUDNN_ATTENTION,
    "_native_efficient": SDPBackend.EFFICIENT_ATTENTION,
    "_native_math": SDPBackend.MATH,
}


def place_encoder(pipe: Any, encoders: Sequence[str], machine: Machine) -> None:
    """Move a pipeline's encoders to the device, or enable group offloading for them if the plan says so."""
    streamed = encoders if "encode" in machine.offload else ()
    for name in streamed:
        module = getattr(pipe, name, None)
        if isinstance(module, torch.nn.Module):
            _stream(module, machine)
    _rest_to_device(pipe, streamed, machine)


def place_denoiser(pipe: Any, name: str, machine: Machine) -> None:
    """Move transformer and VAE to the device, set the attention kernel, compile the blocks, apply lossy settings."""
    module = getattr(pipe, name)
    if machine.compile:  # before the hooks of lossy settings, so that they wrap a full graph
        compile_regions(module)
    make_lossy(module, machine.lossy)
    streamed = (name,) if "denoise" in machine.offload else ()
    if streamed:
        _stream(module, machine)
    _rest_to_device(pipe, streamed, machine)
    if _supports_backends(module):
        with attention_backend(machine.attention):  # restores the process's own, which `set_attention_backend` changes
            module.set_attention_backend(machine.attention)
    elif machine.attention not in ("native", *_KERNELS):
        raise ConfigError(
            f"engine.attention_backend: {type(module).__name__} supports only torch's own kernels, not "
            f"{machine.attention!r}: use auto or one of {', '.join(_KERNELS)}"
        )


def make_lossy(module: Any, lossy: dict[str, Any]) -> None:
    """Apply the config's lossy settings to a denoiser."""
    storage = lossy.get("weights")
    if storage is not None:
        module.enable_layerwise_casting(storage_dtype=getattr(torch, storage), compute_dtype=module.dtype)
    threshold = lossy.get("first_block_cache")
    if threshold is not None:
        module.enable_cache(FirstBlockCacheConfig(threshold=threshold))


class Parking:
    """The last blocks of a module, of at least `gb` GB, whose weights can leave the device for a while."""

    def __init__(self, module: Any, gb: float, device: torch.device) -> None:
        self._device = device
        self._weights: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
        left = gb * 1e9
        for block in reversed(list(_blocks(module))) if left > 0 else ():
            for weight in block.parameters():
                host = torch.empty(weight.shape, dtype=weight.dtype, pin_memory=device.type == "cuda")
                self._weights.append((weight, host.copy_(weight.data)))
                left -= host.nbytes
            if left <= 0:
                break

    @contextmanager
    def away(self) -> Iterator[None]:
        """Free the blocks' device memory within this context. Copies are queued behind the work of the stream."""
        for weight, host in self._weights:
            weight.data = host
        try:
            yield
        finally:
            for weight, host in self._weights:
                weight.data = host.to(self._device, non_blocking=True)


@contextmanager
def attend(module: Any, machine: Machine) -> Iterator[None]:
    """Use the configured attention kernel within this context.

    Under deterministic algorithms torch must explicitly allow cuDNN's kernel. For classes that ignore
    `set_attention_backend` (SD3, PixArt, OmniGen, UNets) the kernel is set through torch; shapes that it does not
    support (a VAE's heads of 512) use the next kernel of a fixed list, never torch's own choice.
    """
    kernel = _KERNELS.get(machine.attention)
    with ExitStack() as stack:
        if _supports_backends(module):
            stack.enter_context(attention_backend(machine.attention))
        if kernel is not None and machine.device.type == "cuda":
            if kernel is SDPBackend.CUDNN_ATTENTION:
                stack.enter_context(cudnn_attention_allowed())
            if not _supports_backends(module):
                order = list(dict.fromkeys([kernel, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.MATH]))
                stack.enter_context(sdpa_kernel(order, set_priority=True))
        yield


def compile_regions(module: Any) -> None:
    """Compile each repeated block as one full graph for all image sizes and prompt lengths.

    Batch and width are static, the axes of `_TOKEN_AXES` dynamic. Kernels are not selected by timing
    (`torch._inductor.config.deterministic`), so that two processes select the same ones. What would be compiled again
    is another batch size or another set of arguments; the recompilation limit is raised because torch would otherwise
    silently run uncompiled beyond it.
    """
    torch._inductor.config.deterministic = True
    torch._dynamo.config.recompile_limit = 4096
    torch._dynamo.config.accumulated_recompile_limit = 1_000_000
    torch._dynamo.config.fail_on_recompile_limit_hit = True
    warnings.filterwarnings("ignore", "Torchinductor does not support code generation for complex")  # Z-Image has them
    warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # float32 models are float32
    torch.fx.experimental._config.use_duck_shape = False  # axes of equal length are not assumed to be always equal
    for block in _blocks(module):
        block.forward = _of_any_length(block.forward, torch.compile(block.forward, fullgraph=True, dynamic=False))


def _blocks(module: Any) -> Iterator[torch.nn.Module]:
    repeated = getattr(module, "_repeated_blocks", None)
    if repeated:
        yield from (part for part in module.modules() if type(part).__name__ in repeated)
        return
    for child in module.children():  # SD3, PixArt and OmniGen declare no repeated blocks: use their module lists
        if isinstance(child, torch.nn.ModuleList):
            yield from child


def _of_any_length(eager: Callable[..., Any], compiled: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap `compiled` so that the axes of `_TOKEN_AXES` are marked dynamic."""
    names = list(inspect.signature(eager).parameters)

    def forward(*args: Any, **kwargs: Any) -> Any:
        arguments = dict(zip(names, args, strict=False)) | kwargs
        return compiled(**{name: _dynamic(name, value) for name, value in arguments.items()})

    return forward


def _dynamic(name: str, value: Any) -> Any:
    """`value` with its token axes marked, and with the strides of its shape: the halves of a sequence that was split
    (FLUX.1's single blocks) have strides of the whole sequence, which would be compiled as constants."""
    if isinstance(value, tuple):
        return tuple(_dynamic(name, part) for part in value)
    if not isinstance(value, torch.Tensor):
        return value
    axes = (-2, -1) if value.dim() == 4 else _TOKEN_AXES.get(name, ())
    if axes:
        usual = torch.empty(value.shape, device="meta").stride()
        if value.stride() != usual:
            value = value.contiguous().as_strided(value.shape, usual)
    for axis in axes:
        if value.shape[axis] > 1:
            torch._dynamo.mark_dynamic(value, value.dim() + axis)
    return value


def keep_compiled(signature: str) -> None:
    """Store compiled code in the cache folder, and use only what was compiled under `signature`: numerics, family, and
    the size at which it is compiled. Equal graphs, of this process or in the folder, may have been compiled for other
    lengths. Call before anything is compiled."""
    torch.compiler.reset()
    torch.compiler.config.cache_key_tag = signature
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache_dir() / "inductor")
    os.environ["TORCHINDUCTOR_FX_GRAPH_CACHE"] = "1"


def _supports_backends(module: Any) -> bool:
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


def _rest_to_device(pipe: Any, streamed: Sequence[str], machine: Machine) -> None:
    """Move every module that is not offloaded; other hooks (float8, caches) move with their module."""
    for name, part in pipe.components.items():
        if isinstance(part, torch.nn.Module) and name not in streamed:
            part.to(machine.device)
