"""How many operations a picture takes and what lives in memory meanwhile, counted over the real modules.

Every module runs once, whole, on meta tensors (nothing is computed or allocated) at the real sizes of one image.
`FlopCounterMode` counts matrix products, convolutions and attention, a multiplication with its addition as two, and
attention in full where it is causal. `_Live` adds up the tensors that are alive at once. Fused attention is taken for
granted: no matrix of all scores exists.
"""

import json
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib.metadata import version
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from local_bench.core.cards import ModelCard
from local_bench.core.errors import ConfigError
from local_bench.core.identity import digest
from local_bench.core.paths import cache_dir
from local_bench.core.storage import write_atomic
from local_bench.generators.base import Sampler
from local_bench.generators.shapes import Sizes, forward_inputs, sizes

_VERSION = 1
"""Of this arithmetic: a higher number counts anew what is remembered."""
_NO_MODULES = ("scheduler", "tokenizer", "tokenizer_2", "tokenizer_3", "processor", "feature_extractor")
SAME_AREA = 0.05
"""A size that takes a picture's aspect is counted as the card's own where its area is that near to it."""


@dataclass(frozen=True)
class Operations:
    """One image's operations (flop), and what its modules weigh."""

    encode_flop: int
    """All text encoders, a negative prompt's reading included."""
    picture_flop: int
    """All that looks at input pictures: VAE, image encoder, the language model's eyes."""
    forward_flop: int
    """One pass of one image through the transformer or UNet."""
    passes: int
    """A step's passes: guidance takes two or three."""
    together: bool
    """Whether an image's passes run as one batch."""
    steps: int
    decode_flop: int
    encoder_parameters: int
    transformer_parameters: int
    vae_parameters: int
    encoder_bytes: int
    """Weights and buffers in the card's own precision; so the next two."""
    transformer_bytes: int
    vae_bytes: int
    encoder_layer_bytes: int
    """The largest single layer, which must be whole on the device even where the rest streams in."""
    transformer_layer_bytes: int
    encode_live_bytes: int
    """The most that lives beside the weights while one prompt is encoded."""
    picture_live_bytes: int
    """… while the VAE reads one picture."""
    forward_live_bytes: int
    """… in one pass of one image."""
    decode_live_bytes: int
    """… while one image is decoded."""

    @property
    def denoise_flop(self) -> int:
        return self.steps * self.passes * self.forward_flop

    @property
    def total_flop(self) -> int:
        return self.encode_flop + self.picture_flop + self.denoise_flop + self.decode_flop

    @property
    def pflop(self) -> float:
        """`total_flop` in 10^15."""
        return self.total_flop / 1e15


def count(card: ModelCard, sampler: Sampler, pictures: int = 0, text_tokens: int | None = None) -> Operations:
    """What one image takes. `text_tokens` are a prompt's own, where nothing pads it (64 if left out).

    Seconds at first, then remembered below the user's cache. ConfigError for a card without an architecture.
    """
    if not card.architecture:
        raise ConfigError(f"the card {card.name} names no architecture: what it takes cannot be counted")
    s = sizes(card, sampler, pictures, text_tokens)
    file = cache_dir() / "arithmetic" / f"{_key(card, s)}.json"
    try:
        return replace(Operations(**json.loads(file.read_text())), steps=sampler.num_inference_steps)
    except (FileNotFoundError, ValueError, TypeError):
        counted = replace(_count(card, s), steps=sampler.num_inference_steps)
    write_atomic(file, json.dumps(asdict(counted)).encode())
    return counted


def usual_size(card: ModelCard, sampler: Sampler) -> Sampler:
    """The card's own height and width where `sampler` has about that area: what a size takes depends on its area, so
    pictures of many aspects need not be counted one by one."""
    own = card.sampler.height * card.sampler.width
    if abs(sampler.height * sampler.width / own - 1) > SAME_AREA:
        return sampler
    return replace(sampler, height=card.sampler.height, width=card.sampler.width)


def usual_pictures(card: ModelCard) -> int:
    """How many pictures a card's own figures are counted with: one for an editor, else none."""
    edits = card.takes.pictures == 1 and card.takes.size_from_picture
    return 1 if edits or not card.takes.text_alone else 0


def _key(card: ModelCard, s: Sizes) -> str:
    from local_bench.generators.architecture import architecture_digest

    return digest(
        {
            "version": _VERSION,
            "libraries": [version(name) for name in ("torch", "diffusers", "transformers")],
            "architecture": architecture_digest(card),
            "dtype": card.dtype,
            "sizes": asdict(s),
        }
    )


def _count(card: ModelCard, s: Sizes) -> Operations:
    from local_bench.generators.architecture import components

    dtype: torch.dtype = getattr(torch, card.dtype)
    parts = {n: p for n, p in components(card, "meta", dtype, _NO_MODULES).items() if isinstance(p, torch.nn.Module)}
    denoiser = _ready(parts["unet" if "unet" in parts else "transformer"], s, dtype)
    vae = parts["vae"]
    encoders = {name: part for name, part in parts.items() if name.endswith("_encoder") or "_encoder_" in name}

    text = [_measure(parts[name], _reading(parts[name], tokens, dtype)) for name, tokens in s.encoded.items()]
    eyes = [_measure(*_eyes(encoders, s, dtype))] if s.grids or s.clip_pictures else []
    forward = _measure(denoiser, lambda: denoiser(**forward_inputs(denoiser, s, dtype)))
    read = [_measure(vae, _vae_call(vae, "encode", size, dtype)) for size in s.pictures]
    decode = _measure(vae, _vae_call(vae, "decode", s.result, dtype))
    looked = s.encodings if s.grids else 1  # the language model looks anew for the negative prompt
    return Operations(
        encode_flop=s.encodings * sum(cost.flop for cost in text),
        picture_flop=sum(cost.flop for cost in read) + looked * sum(cost.flop for cost in eyes),
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
        encode_live_bytes=max((cost.live_bytes for cost in (*text, *eyes)), default=0),
        picture_live_bytes=max((cost.live_bytes for cost in read), default=0),
        forward_live_bytes=forward.live_bytes,
        decode_live_bytes=decode.live_bytes,
    )


# ---- what a module is and does


def parameters(module: torch.nn.Module) -> int:
    """How many parameters a module has; shared ones once."""
    return sum(p.numel() for p in module.parameters())


def _bytes(module: torch.nn.Module) -> int:
    return sum(t.numel() * t.element_size() for t in (*module.parameters(), *module.buffers()))


def _layer_bytes(module: torch.nn.Module) -> int:
    return max(sum(p.numel() * p.element_size() for p in m.parameters(recurse=False)) for m in module.modules())


def _empty(*shape: int, dtype: torch.dtype = torch.long) -> torch.Tensor:
    return torch.empty(shape, device="meta", dtype=dtype)


def _reading(encoder: Any, tokens: int, dtype: torch.dtype) -> Callable[[], Any]:
    kind = type(encoder).__name__
    if kind.startswith("CLIPText"):
        tokens = min(tokens, encoder.config.max_position_embeddings)
    ids = _empty(1, tokens)
    if kind.startswith(("CLIPText", "T5")):
        return lambda: encoder(ids)
    places = _empty(3, 1, tokens) if kind.startswith("Qwen2_5_VL") else _empty(1, tokens)
    mask = _empty(1, 1, tokens, tokens, dtype=dtype)  # whole, or the library would look into its values
    return lambda: encoder(
        input_ids=ids, position_ids=places, attention_mask=mask, use_cache=False, output_hidden_states=True
    )


def _eyes(encoders: dict[str, Any], s: Sizes, dtype: torch.dtype) -> tuple[Any, Callable[[], Any]]:
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
        denoiser.rope = _Turns(denoiser.config.hidden_size // denoiser.config.num_attention_heads)
    if s.family == "flux_ip_adapter":
        _lay_adapter(denoiser, dtype)
    return denoiser


class _Turns(torch.nn.Module):
    """In the place of OmniGen's rotary embedding, which looks into its input's values; it takes next to nothing."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self._width = width

    def forward(self, hidden_states: torch.Tensor, position_ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        both = [_empty(position_ids.shape[-1], self._width, dtype=torch.float32) for _ in range(2)]
        return both[0], both[1]  # (tokens, width) each


def _lay_adapter(transformer: Any, dtype: torch.dtype) -> None:
    """An IP-Adapter: a picture's tokens beside the text of every double block."""
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
    """Attention as one kernel, as it runs on a GPU; on meta tensors torch would take it apart."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is not torch.nn.functional.scaled_dot_product_attention:
            return func(*args, **kwargs)
        given = dict(zip(("query", "key", "value"), args, strict=False)) | kwargs
        query, key, value = given["query"], given["key"], given["value"]
        shared = query.shape[1] // key.shape[1]  # grouped-query attention: heads that share keys and values
        if shared > 1:
            key, value = key.repeat_interleave(shared, 1), value.repeat_interleave(shared, 1)
        return torch.ops.aten._scaled_dot_product_efficient_attention(query, key, value, None, False)[0]


class _Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """The most bytes of tensors that were alive at once, a module's own weights left out."""

    def __init__(self, module: torch.nn.Module) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.peak = 0
        self._now = 0
        self._sizes = {t.untyped_storage()._cdata: 0 for t in (*module.parameters(), *module.buffers())}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(made):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                if storage._cdata not in self._sizes:
                    self._sizes[storage._cdata] = storage.nbytes()
                    self._now += storage.nbytes()
                    self.peak = max(self.peak, self._now)
                    weakref.finalize(storage, self._gone, storage._cdata)
        return made

    def _gone(self, storage: int) -> None:
        self._now -= self._sizes.pop(storage)


@contextmanager
def _quiet_warnings() -> Iterator[None]:
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
