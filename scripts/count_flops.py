"""Counts what the models of configs/models take: operations and memory of one image.

    scripts/count_flops.py             compares the cards' own figures with the counted ones (exit 1 if off)
    scripts/count_flops.py --write     counts everything and writes configs/operations.json (some minutes)

Nothing is loaded or fetched. Every module runs once on meta tensors (nothing is computed or allocated) at the real
sizes of one image. `FlopCounterMode` counts matrix products, convolutions and attention; a multiply-add counts as two
operations, and causal attention counts in full. `_Live` measures the peak of live tensors. Fused attention is assumed,
so no full score matrix is materialized.

Every VAE here downsamples by 8; one token of a transformer is 16 x 16 pixels. An unpadded prompt counts as
`TYPICAL_TOKENS`. An input image is assumed to have the result's size, limited by the pipeline's maximum.
"""

import argparse
import json
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from diffusers.models.embeddings import ImageProjection, MultiIPAdapterImageProjection
from diffusers.models.transformers.transformer_flux import FluxIPAdapterAttnProcessor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from local_bench.core.environment import quiet_libraries
from local_bench.core.files import configs_dir
from local_bench.generators.architecture import components
from local_bench.generators.flux import adapter_tokens
from local_bench.generators.memory import plan_memory
from local_bench.generators.operations import (
    BY_AREA,
    SHIPPED_IMAGES,
    Operations,
    counts_key,
    usual_input_images,
)
from local_bench.generators.registry import FAMILIES, Sampler, traits
from local_bench.models.cards import ModelCard, cards
from local_bench.runs.gpu_check.models import reduced_card

SIDES = (1 / 2, 1)
"""The sizes at which a card is counted, as factors of its sides."""
TOLERANCE = 0.03


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    quiet_libraries()
    known = [card for card in cards().values() if card.role == "generator"]
    if options.write:
        write_shipped([*known, *(reduced_card(name, small=False)[0] for name in FAMILIES)])
        return 0
    wrong = [sentence for card in known for sentence in differences(card)]
    print("\n".join(wrong) or f"{len(known)} cards agree with what is counted")
    return bool(wrong)


def write_shipped(known: Iterable[ModelCard]) -> None:
    """Writes configs/operations.json."""
    entries = {}
    for card in known:
        if card.architecture and counts_key(card) not in entries:
            entries[counts_key(card)] = [counts(card, n) for n in range(min(card.takes.pictures, SHIPPED_IMAGES) + 1)]
            print(f"{card.name}", flush=True)
    lines = [f'  "{key}": {json.dumps(entries[key])}' for key in sorted(entries)]
    (configs_dir() / "operations.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")


def counts(card: ModelCard, input_images: int) -> dict[str, Any]:
    """The entry of `operations.json` for a card with this number of input images."""
    own = Sampler(**card.sampler.model_dump())
    samplers = [
        replace(own, height=int(own.height * f) // 16 * 16, width=int(own.width * f) // 16 * 16) if f != 1 else own
        for f in SIDES
    ]
    counted = [asdict(counted_at(card, sampler, input_images)) for sampler in samplers]
    fixed = {name: value for name, value in counted[SIDES.index(1)].items() if name not in (*BY_AREA, "exact")}
    areas = [sampler.height * sampler.width for sampler in samplers]
    longest = own.max_sequence_length or 0
    return {
        "max_sequence_length": longest,
        "fixed": fixed,
        "areas": areas,
        "by_area": {name: [c[name] for c in counted] for name in BY_AREA},
    }


def differences(card: ModelCard) -> Iterator[str]:
    """What a card says of itself that is not what is counted."""
    sampler = Sampler(**card.sampler.model_dump())
    memory = plan_memory(card, sampler, batch_size=1, input_images=usual_input_images(card))
    counted = memory.operations
    total = counted.encoder_parameters + counted.transformer_parameters + counted.vae_parameters
    figures = {"parameters_b": total / 1e9, "pflop_per_image": counted.pflop, "vram_gb": memory.peak_gb}
    figures |= {f"vram_by_phase_gb.{name}": phase.total_gb for name, phase in memory.phases.items()}
    said = {**card.model_dump(), **{f"vram_by_phase_gb.{n}": gb for n, gb in card.vram_by_phase_gb.items()}}
    for name, figure in figures.items():
        if said.get(name) is None or abs(said[name] - figure) > TOLERANCE * max(figure, 1e-9):
            yield f"{card.name}: {name} is {said.get(name)}, and {figure:.3g} is counted"


# ---- the sizes of one image

TYPICAL_TOKENS = 64
MEGAPIXEL = (1024, 1024)
_CLIP_TOKENS = 77
QWEN_TEMPLATE = {
    **dict.fromkeys(("qwen_image", "qwen_image_inpaint"), 34),
    **dict.fromkeys(("qwen_image_edit", "qwen_image_edit_inpaint", "qwen_image_edit_plus"), 64),
}
"""Number of tokens of the pipeline's template before a prompt: encoded, then removed from the embeddings."""
_SEEN_BY_QWEN = {"qwen_image_edit": 1024, "qwen_image_edit_inpaint": 1024, "qwen_image_edit_plus": 384}
"""Square root of the area to which images are resized for the language model, in pixels."""
_PATCH = 28
_IN_SEQUENCE = ("flux_kontext", "flux2", "flux2_klein", "omnigen", "qwen_image_edit", "qwen_image_edit_plus")
"""Families whose transformer receives the input images as additional tokens."""


@dataclass(frozen=True)
class Sizes:
    """Sizes for one generated image. Image sizes are (height, width) in pixels."""

    family: str
    result: tuple[int, int]
    text: int
    """Number of text tokens of the transformer."""
    encoded: dict[str, int]
    """Number of tokens of each text encoder, by the pipeline's component name."""
    encodings: int
    """Number of encoded prompts: 1, or 2 with a negative prompt."""
    pictures: tuple[tuple[int, int], ...]
    """Sizes of the VAE's inputs; an image with a mask is encoded twice, unchanged and without its masked part."""
    clip_pictures: int
    """Number of images for the CLIP image encoder."""
    grids: tuple[tuple[int, int], ...]
    """Patches (rows, columns) of the language model's input images."""
    passes: int
    """Forward passes per step."""
    together: bool
    """Whether an image's passes run as one batch."""

    @property
    def in_sequence(self) -> tuple[tuple[int, int], ...]:
        """Those of `pictures` whose tokens follow the result's in the transformer's sequence. Other families
        concatenate the image's channels with the noise, or use it outside the transformer."""
        if self.family == "qwen_image_edit_inpaint":
            return self.pictures[: len(self.pictures) // 2]  # the masked copies are inputs of the VAE only
        return self.pictures if self.family in _IN_SEQUENCE else ()


def sizes(card: ModelCard, sampler: Sampler, input_images: int = 0, text_tokens: int | None = None) -> Sizes:
    """Return the sizes for one image. `text_tokens` is the prompt's length for families that do not pad it.

    Raises ConfigError if the family does not exist.
    """
    own = text_tokens or TYPICAL_TOKENS
    passes, together = traits(card.family).passes(card, sampler, input_images)
    grids = _grids(card.family, input_images)
    result = (sampler.height, sampler.width)
    encoded = _encoded(card.family, sampler, own, grids)
    by_clip = card.family == "flux_ip_adapter"
    return Sizes(
        family=card.family,
        result=result,
        text=_text(card.family, sampler, own, encoded),
        encoded=encoded,
        encodings=1 if passes == 1 and card.family != "instruct_pix2pix" else 2,
        pictures=()
        if by_clip
        else (_seen_by_vae(card.family, result),) * (input_images * (2 if card.takes.mask else 1)),
        clip_pictures=input_images if by_clip else 0,
        grids=grids,
        passes=passes,
        together=together,
    )


def _encoded(family: str, sampler: Sampler, own: int, grids: tuple[tuple[int, int], ...]) -> dict[str, int]:
    match family:
        case "sd3" | "sd3_inpaint":
            clips = dict.fromkeys(("text_encoder", "text_encoder_2"), _CLIP_TOKENS)
            return clips | {"text_encoder_3": sampler.max_sequence_length or 256}
        case "pixart_sigma":
            return {"text_encoder": sampler.max_sequence_length or 300}
        case "instruct_pix2pix":
            return {"text_encoder": _CLIP_TOKENS}
        case "flux2" | "flux2_klein" | "z_image":
            return {"text_encoder": sampler.max_sequence_length or 512}
        case "omnigen":
            return {}
        case _ if family in QWEN_TEMPLATE:
            return {"text_encoder": QWEN_TEMPLATE[family] + own + sum(rows * columns // 4 for rows, columns in grids)}
        case _:
            return {"text_encoder": _CLIP_TOKENS, "text_encoder_2": sampler.max_sequence_length or 512}


def _text(family: str, sampler: Sampler, own: int, encoded: dict[str, int]) -> int:
    match family:
        case "sd3" | "sd3_inpaint":
            return _CLIP_TOKENS + encoded["text_encoder_3"]
        case "omnigen" | "z_image":
            return own
        case _ if family in QWEN_TEMPLATE:
            return encoded["text_encoder"] - QWEN_TEMPLATE[family]
        case _:
            return encoded.get("text_encoder_2", encoded["text_encoder"])


def _grids(family: str, input_images: int) -> tuple[tuple[int, int], ...]:
    if family not in _SEEN_BY_QWEN:
        return ()
    side = 2 * round(_SEEN_BY_QWEN[family] / _PATCH)
    return ((side, side),) * input_images


def _seen_by_vae(family: str, result: tuple[int, int]) -> tuple[int, int]:
    if family in ("qwen_image_edit", "qwen_image_edit_plus"):
        return MEGAPIXEL  # always resized to that area
    if family in ("flux2", "flux2_klein", "omnigen") and result[0] * result[1] > MEGAPIXEL[0] * MEGAPIXEL[1]:
        return MEGAPIXEL
    return result


# ---- counts of one image

_CROSS_ATTENTION = ("pixart_sigma", "instruct_pix2pix")
"""Families whose text is not in the transformer's sequence."""
_NO_MODULES = ("scheduler", "tokenizer", "tokenizer_2", "tokenizer_3", "processor", "feature_extractor")


def counted_at(card: ModelCard, sampler: Sampler, input_images: int = 0) -> Operations:
    """The operations and memory of one image, with one step."""
    counted = count_modules(card, sizes(card, sampler, input_images))
    least = sizes(card, sampler, input_images, text_tokens=1).text
    return replace(counted, least_text_tokens=min(least, counted.text_tokens))


def count_modules(card: ModelCard, s: "Sizes") -> Operations:
    """The same for these sizes. Takes some seconds for a large model."""
    dtype: torch.dtype = getattr(torch, card.dtype)
    parts = {n: p for n, p in _built(card, dtype).items() if isinstance(p, torch.nn.Module)}
    denoiser_name = "unet" if "unet" in parts else "transformer"
    denoiser, vae = parts[denoiser_name], parts["vae"]
    encoders = {name: part for name, part in parts.items() if name.endswith("_encoder") or "_encoder_" in name}

    def cost(name: str, what: object, module: torch.nn.Module, run: Callable[[], Any]) -> _Cost:
        key = card.architecture[name], dtype, s.family if name == denoiser_name else None, what
        if key not in _COSTS:
            _COSTS[key] = measure(module, run)
        return _COSTS[key]

    text = [cost(n, tokens, parts[n], _text_call(parts[n], tokens, dtype)) for n, tokens in s.encoded.items()]
    vision = []
    if s.grids or s.clip_pictures:
        name = "image_encoder" if s.clip_pictures else "text_encoder"
        vision = [cost(name, (s.grids, s.clip_pictures), *_vision_call(encoders, s, dtype))]
    forward = cost(
        denoiser_name,
        (s.result, s.text, s.in_sequence, s.clip_pictures),
        denoiser,
        lambda: denoiser(**forward_inputs(denoiser, s, dtype)),
    )
    vae_reads = [cost("vae", ("encode", size), vae, _vae_call(vae, "encode", size, dtype)) for size in s.pictures]
    decode = cost("vae", ("decode", s.result), vae, _vae_call(vae, "decode", s.result, dtype))
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
        text_tokens=0 if s.family in _CROSS_ATTENTION else s.text,
        least_text_tokens=0 if s.family in _CROSS_ATTENTION else s.text,
        input_tokens=sum(map(_tokens, s.in_sequence)),
    )


_COSTS: dict[tuple[Any, ...], "_Cost"] = {}
"""Costs by component, dtype and sizes: cards share components."""
_LAST: dict[str, dict[str, Any]] = {}
"""The components of the last card."""


def _built(card: ModelCard, dtype: torch.dtype) -> dict[str, Any]:
    key = counts_key(card)
    if key not in _LAST:
        parts = components(card, "meta", dtype, _NO_MODULES)
        if card.family == "omnigen":
            transformer = parts["transformer"]
            transformer.rope = _MetaRope(transformer.config.hidden_size // transformer.config.num_attention_heads)
        if card.family == "flux_ip_adapter":
            _add_ip_adapter(parts["transformer"], dtype)
        _LAST.clear()
        _LAST[key] = parts
    return _LAST[key]


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


def measure(module: torch.nn.Module, run: Callable[[], Any]) -> _Cost:
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
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---- inputs of the transformers, as meta tensors

Inputs = dict[str, Any]


def forward_inputs(module: Any, s: Sizes, dtype: torch.dtype) -> Inputs:
    """Arguments of one forward pass of the transformer or UNet for one image, as meta tensors."""
    return _FORWARD[type(module).__name__](
        module.config, s, lambda *shape: torch.empty(shape, device="meta", dtype=dtype)
    )


def _tokens(size: tuple[int, int]) -> int:
    return size[0] // 16 * (size[1] // 16)


Empty = Callable[..., torch.Tensor]


def _flux(config: Any, s: Sizes, empty: Empty) -> Inputs:
    image = sum(map(_tokens, (s.result, *s.in_sequence)))
    inputs: Inputs = {
        "hidden_states": empty(1, image, config.in_channels),
        "encoder_hidden_states": empty(1, s.text, config.joint_attention_dim),
        "pooled_projections": empty(1, config.pooled_projection_dim),
        "timestep": empty(1),
        "img_ids": empty(image, 3),
        "txt_ids": empty(s.text, 3),
        "guidance": empty(1) if config.guidance_embeds else None,
    }
    if s.family == "flux_ip_adapter":
        embeds = empty(1, 1, config.pooled_projection_dim)
        inputs["joint_attention_kwargs"] = {"ip_adapter_image_embeds": [embeds]}
    return inputs


def _sd3(config: Any, s: Sizes, empty: Empty) -> Inputs:
    return {
        "hidden_states": empty(1, config.in_channels, s.result[0] // 8, s.result[1] // 8),
        "encoder_hidden_states": empty(1, s.text, config.joint_attention_dim),
        "pooled_projections": empty(1, config.pooled_projection_dim),
        "timestep": empty(1),
    }


def _qwen(config: Any, s: Sizes, empty: Empty) -> Inputs:
    images = (s.result, *s.in_sequence)
    return {
        "hidden_states": empty(1, sum(map(_tokens, images)), config.in_channels),
        "encoder_hidden_states": empty(1, s.text, config.joint_attention_dim),
        "timestep": empty(1),
        "img_shapes": [[(1, height // 16, width // 16) for height, width in images]],
    }


def _flux2(config: Any, s: Sizes, empty: Empty) -> Inputs:
    image = sum(map(_tokens, (s.result, *s.in_sequence)))
    return {
        "hidden_states": empty(1, image, config.in_channels),
        "encoder_hidden_states": empty(1, s.text, config.joint_attention_dim),
        "timestep": empty(1),
        "img_ids": empty(1, image, 4),
        "txt_ids": empty(1, s.text, 4),
        "guidance": empty(1) if config.guidance_embeds else None,
    }


def _pixart(config: Any, s: Sizes, empty: Empty) -> Inputs:
    return {
        "hidden_states": empty(1, config.in_channels, s.result[0] // 8, s.result[1] // 8),
        "encoder_hidden_states": empty(1, s.text, config.caption_channels),
        "encoder_attention_mask": empty(1, s.text),
        "timestep": empty(1),
        "added_cond_kwargs": {"resolution": None, "aspect_ratio": None},
    }


def _z_image(config: Any, s: Sizes, empty: Empty) -> Inputs:
    return {
        "x": [empty(config.in_channels, 1, s.result[0] // 8, s.result[1] // 8)],
        "t": empty(1),
        "cap_feats": [empty(s.text, config.cap_feat_dim)],
    }


def _unet(config: Any, s: Sizes, empty: Empty) -> Inputs:
    return {
        "sample": empty(1, config.in_channels, s.result[0] // 8, s.result[1] // 8),
        "timestep": empty(1),
        "encoder_hidden_states": empty(1, s.text, config.cross_attention_dim),
    }


def _omnigen(config: Any, s: Sizes, empty: Empty) -> Inputs:
    start, spans, latents = 0, [], []
    for height, width in s.in_sequence:
        spans.append([start, start + _tokens((height, width))])
        latents.append(empty(1, config.in_channels, height // 8, width // 8))
        start = spans[-1][1]
    condition = start + s.text
    length = condition + 1 + _tokens(s.result)  # one token for the timestep
    return {
        "hidden_states": empty(1, config.in_channels, s.result[0] // 8, s.result[1] // 8),
        "timestep": empty(1),
        "input_ids": torch.empty(1, condition, device="meta", dtype=torch.long),
        "input_img_latents": latents,
        "input_image_sizes": {0: spans} if spans else {},
        "attention_mask": empty(1, length, length),
        "position_ids": torch.empty(1, length, device="meta", dtype=torch.long),
    }


_FORWARD: dict[str, Callable[[Any, Sizes, Empty], Inputs]] = {
    "FluxTransformer2DModel": _flux,
    "QwenImageTransformer2DModel": _qwen,
    "Flux2Transformer2DModel": _flux2,
    "SD3Transformer2DModel": _sd3,
    "PixArtTransformer2DModel": _pixart,
    "ZImageTransformer2DModel": _z_image,
    "UNet2DConditionModel": _unet,
    "OmniGenTransformer2DModel": _omnigen,
}

if __name__ == "__main__":
    raise SystemExit(main())
