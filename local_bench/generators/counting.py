"""Counts operations and memory on the real modules.

Every module runs once on meta tensors (nothing is computed or allocated) at the real sizes of one image.
`FlopCounterMode` counts matrix products, convolutions and attention; a multiply-add counts as two operations, and
causal attention counts in full. `_Live` measures the peak of live tensors. Fused attention is assumed, so no full score
matrix is materialized.
"""

import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from local_bench.generators.architecture import components
from local_bench.generators.forward_inputs import forward_inputs
from local_bench.generators.operations import Operations
from local_bench.generators.shapes import Sizes
from local_bench.models.cards import ModelCard

_NO_MODULES = ("scheduler", "tokenizer", "tokenizer_2", "tokenizer_3", "processor", "feature_extractor")


def count_modules(card: ModelCard, s: Sizes) -> Operations:
    """Count one image's operations and memory, with one step. Takes some seconds for a large model."""
    dtype: torch.dtype = getattr(torch, card.dtype)
    parts = {n: p for n, p in components(card, "meta", dtype, _NO_MODULES).items() if isinstance(p, torch.nn.Module)}
    denoiser = _ready(parts["unet" if "unet" in parts else "transformer"], s, dtype)
    vae = parts["vae"]
    encoders = {name: part for name, part in parts.items() if name.endswith("_encoder") or "_encoder_" in name}

    text = [_measure(parts[name], _text_call(parts[name], tokens, dtype)) for name, tokens in s.encoded.items()]
    vision = [_measure(*_vision_call(encoders, s, dtype))] if s.grids or s.clip_pictures else []
    forward = _measure(denoiser, lambda: denoiser(**forward_inputs(denoiser, s, dtype)))
    vae_reads = [_measure(vae, _vae_call(vae, "encode", size, dtype)) for size in s.pictures]
    decode = _measure(vae, _vae_call(vae, "decode", s.result, dtype))
    vision_passes = s.encodings if s.grids else 1  # the language model reads the images again for the negative prompt
    return Operations(
        encode_flop=s.encodings * sum(cost.flop for cost in text),
        picture_flop=sum(cost.flop for cost in vae_reads) + vision_passes * sum(cost.flop for cost in vision),
        forward_flop=forward.flop,
        passes=s.passes,
        together=s.together,
        steps=1,
        decode_flop=decode.flop,
        encoder_parameters=sum(map(parameters, encoders.values())),
        transformer_parameters=parameters(denoiser),
        vae_parameters=parameters(vae),
        encoder_bytes=sum(map(_bytes, encoders.values())),
        transformer_bytes=_bytes(denoiser),
        vae_bytes=_bytes(vae),
        encoder_layer_bytes=max(map(_layer_bytes, encoders.values()), default=0),
        transformer_layer_bytes=_layer_bytes(denoiser),
        encode_live_bytes=max((cost.live_bytes for cost in (*text, *vision)), default=0),
        picture_live_bytes=max((cost.live_bytes for cost in vae_reads), default=0),
        forward_live_bytes=forward.live_bytes,
        decode_live_bytes=decode.live_bytes,
    )


# ---- modules and their calls


def parameters(module: torch.nn.Module) -> int:
    """Number of parameters of a module; shared ones count once."""
    return sum(p.numel() for p in module.parameters())


def _bytes(module: torch.nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))


def _layer_bytes(module: torch.nn.Module) -> int:
    return max(sum(p.numel() * p.element_size() for p in m.parameters(recurse=False)) for m in module.modules())


def _empty(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
    return torch.empty(shape, device="meta", dtype=dtype)


def _text_call(encoder: Any, tokens: int, dtype: torch.dtype) -> Callable[[], Any]:
    kind = type(encoder).__name__
    if kind.startswith("CLIPText"):
        tokens = min(tokens, encoder.config.max_position_embeddings)
    ids = _empty(1, tokens)
    if kind.startswith(("CLIPText", "T5")):
        return lambda: encoder(ids)
    positions = _empty(3, 1, tokens) if kind.startswith("Qwen2_5_VL") else _empty(1, tokens)
    mask = _empty(1, 1, tokens, tokens, dtype=dtype)  # 4D: for a 2D mask the library reads its values
    return lambda: encoder(
        input_ids=ids, position_ids=positions, attention_mask=mask, use_cache=False, output_hidden_states=True
    )


def _vision_call(encoders: dict[str, Any], s: Sizes, dtype: torch.dtype) -> tuple[Any, Callable[[], Any]]:
    if s.clip_pictures:
        clip = encoders["image_encoder"]
        side = clip.config.image_size
        return clip, lambda: clip(_empty(s.clip_pictures, 3, side, side, dtype=dtype))
    visual = encoders["text_encoder"].model.visual
    config = visual.config
    patches = sum(rows * columns for rows, columns in s.grids)
    pixels = _empty(patches, config.in_channels * config.temporal_patch_size * config.patch_size**2, dtype=dtype)
    grid = torch.tensor([[1, rows, columns] for rows, columns in s.grids])
    return visual, lambda: visual(pixels, grid_thw=grid, position_ids=_empty(patches, 2))


def _vae_call(vae: Any, way: str, size: tuple[int, int], dtype: torch.dtype) -> Callable[[], Any]:
    video = type(vae).__name__ == "AutoencoderKLQwenImage"
    latent = vae.config.z_dim if video else vae.config.latent_channels
    channels, shrunk = (3, 1) if way == "encode" else (latent, 8)
    frames = (1,) if video else ()
    x = _empty(1, channels, *frames, size[0] // shrunk, size[1] // shrunk, dtype=dtype)
    return lambda: getattr(vae, way)(x)


def _ready(denoiser: Any, s: Sizes, dtype: torch.dtype) -> Any:
    if s.family == "omnigen":
        denoiser.rope = _MetaRope(denoiser.config.hidden_size // denoiser.config.num_attention_heads)
    if s.family == "flux_ip_adapter":
        _add_ip_adapter(denoiser, dtype)
    return denoiser


class _MetaRope(torch.nn.Module):
    """Replaces OmniGen's rotary embedding, which reads its input's values; its cost is negligible."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def forward(self, hidden_states: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = [_empty(position_ids.shape[-1], self._width, dtype=torch.float32) for _ in range(2)]
        return both[0], both[1]  # (tokens, width) each


def _add_ip_adapter(transformer: Any, dtype: torch.dtype) -> None:
    """Add an IP-Adapter: cross-attention over an image's tokens in every double block."""
    from diffusers.models.embeddings import ImageProjection, MultiIPAdapterImageProjection
    from diffusers.models.transformers.transformer_flux import FluxIPAdapterAttnProcessor

    from local_bench.generators.flux_ip_adapter import adapter_tokens

    tokens = adapter_tokens(transformer)
    text, width = transformer.config.joint_attention_dim, transformer.inner_dim
    with torch.device("meta"):
        projection = ImageProjection(
            cross_attention_dim=text,
            image_embed_dim=transformer.config.pooled_projection_dim,
            num_image_text_embeds=tokens,
        )
        transformer.encoder_hid_proj = MultiIPAdapterImageProjection([projection.to(dtype)])
        for block in transformer.transformer_blocks:
            block.attn.set_processor(
                FluxIPAdapterAttnProcessor(width, text, num_tokens=(tokens,), device="meta", dtype=dtype)
            )


# ---- counting


@dataclass(frozen=True)
class _Cost:
    flop: int
    live_bytes: int


def _measure(module: torch.nn.Module, run: Callable[[], Any]) -> _Cost:
    counter, live = FlopCounterMode(display=False), _Live(module)
    with torch.no_grad(), _quiet_warnings(), _Fused(), live, counter:
        run()
    return _Cost(int(counter.get_total_flops()), live.peak)


class _Fused(TorchFunctionMode):
    """Attention as one fused kernel, as on a GPU; on meta tensors torch would decompose it."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        inputs = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        query, key, value = inputs["query"], inputs["key"], inputs["value"]
        shared = query.shape[1] // key.shape[1]  # grouped-query attention: heads that share keys and values
        if shared > 1:
            key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        return torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, None, False)[0]


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Peak number of bytes of simultaneously live tensors, excluding a module's weights. A convolution counts its
    operands once more, as workspace: cuDNN copies them into its own layout (within 0.4 GB of what an H100 took in every
    family, `benchmarks/gpu`)."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._now = 0
        self._sizes = {t.untyped_storage()._cdata: 0 for t in (*module.parameters(), *module.buffers())}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._sizes:
                    self._sizes[storage._cdata] = storage.nbytes()
                    self._now += storage.nbytes()
                    self.peak = max(self.peak, self._now)
                    weakref.finalize(storage, self._released, storage._cdata)
        if func is torch.ops.aten.convolution.default:
            self.peak = max(self.peak, self._now + sum(t.numel() * t.element_size() for t in (*args[:2], result)))
        return result

    def _released(self, storage: int) -> None:
        self._now -= self._sizes.pop(storage)


@contextmanager
def _quiet_warnings() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
