"""Operations and memory of one image: the shipped counts at its size, or the figures declared on its card.

`configs/operations.json` has counts of the real modules on meta tensors at each card's size and at half its sides
(`scripts/count_flops.py --write`). Those at other sizes follow from them, within a few percent.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from local_bench.core.files import configs_dir
from local_bench.core.types import digest
from local_bench.generators.architecture import architecture_digest
from local_bench.generators.registry import Sampler, traits
from local_bench.models.cards import ModelCard

SAME_AREA = 0.05
"""A size whose area differs from the card's by at most this fraction is counted as the card's size."""
PIXELS = 256
"""Pixels of an image by one token of a transformer."""
SHIPPED_IMAGES = 4
"""The largest number of input images in the shipped counts."""
BY_AREA = (
    *("picture_flop", "forward_flop", "decode_flop", "input_tokens"),
    *("picture_live_bytes", "forward_live_bytes", "decode_live_bytes"),
)
"""Fields of `Operations` that depend on the image's size."""


@dataclass(frozen=True)
class Operations:
    """One image's operations (flop), and the sizes of the model's modules."""

    encode_flop: int
    """All text encoders, including a negative prompt."""
    picture_flop: int
    """Encoding of input images: VAE, CLIP image encoder, the language model's vision encoder."""
    forward_flop: int
    """One forward pass of one image through the transformer or UNet."""
    passes: int
    """Forward passes per step: two or three with guidance."""
    together: bool
    """Whether an image's passes run as one batch."""
    steps: int
    decode_flop: int
    encoder_parameters: int
    transformer_parameters: int
    vae_parameters: int
    encoder_bytes: int
    """Weights and buffers in the card's dtype, as are the next two."""
    transformer_bytes: int
    vae_bytes: int
    encoder_layer_bytes: int
    """The largest single layer, which must fit on the device even with offloading."""
    transformer_layer_bytes: int
    encode_live_bytes: int
    """Peak of live tensors, without weights, while one prompt is encoded."""
    picture_live_bytes: int
    """The same while the VAE encodes one input image."""
    forward_live_bytes: int
    """The same in one forward pass of one image."""
    decode_live_bytes: int
    """The same while one image is decoded."""
    text_tokens: int = 0
    """Text tokens in the transformer's sequence; 64 are assumed of an unpadded prompt."""
    least_text_tokens: int = 0
    """The same for a prompt of one token."""
    input_tokens: int = 0
    """Tokens of the input images in the transformer's sequence."""
    exact: bool = True
    """Whether this size was counted; else the counts follow from those of other sizes, within a few percent."""

    @property
    def denoise_flop(self) -> int:
        return self.steps * self.passes * self.forward_flop

    @property
    def total_flop(self) -> int:
        return self.encode_flop + self.picture_flop + self.denoise_flop + self.decode_flop

    @property
    def pflop(self) -> float:
        """`total_flop` in units of 10^15."""
        return self.total_flop / 1e15


def count(card: ModelCard, sampler: Sampler, input_images: int = 0) -> Operations:
    """The operations and memory of one image. Raises ConfigError if the card's family does not exist.

    A card whose architecture is not among the shipped counts has the figures declared on it.
    """
    by_images = shipped_counts().get(counts_key(card)) if card.architecture else None
    if by_images is None:
        return _declared(card, sampler)
    area = sampler.height * sampler.width
    n = min(input_images, len(by_images) - 1)
    fields = by_images[n]["fixed"] | _at_area(by_images[n], area)
    if n < input_images and n > 0:  # each further image adds what the last counted one adds
        fewer = _at_area(by_images[n - 1], area)
        fields |= {name: fields[name] + (input_images - n) * (fields[name] - fewer[name]) for name in fewer}
    passes, together = traits(card.family).passes(card, sampler, input_images)
    fields |= {"passes": passes, "together": together, "steps": sampler.num_inference_steps}
    counted = Operations(**fields, exact=area in by_images[n]["areas"])
    if (passes > 1) != (by_images[n]["fixed"]["passes"] > 1):  # with or without the encoding of a negative prompt
        prompts = 2.0 if passes > 1 else 0.5
        counted = replace(counted, encode_flop=int(counted.encode_flop * prompts))
    longest = by_images[n]["max_sequence_length"]
    return _with_text(counted, area, (sampler.max_sequence_length or longest) - longest if longest else 0)


def _at_area(counts: dict[str, Any], area: int) -> dict[str, int]:
    """The values of `BY_AREA` for an image of `area` pixels, from those at two sizes."""
    areas, by_area, text = counts["areas"], counts["by_area"], counts["fixed"]["text_tokens"]
    if area in areas:
        return {name: values[areas.index(area)] for name, values in by_area.items()}
    values = {name: max(0, round(_affine(areas, by_area[name], area))) for name in BY_AREA}
    values |= {name: round(_attention(areas, by_area[name], area)) for name in BY_AREA if name.endswith("bytes")}
    tokens = [text + inputs + a // PIXELS for a, inputs in zip(areas, by_area["input_tokens"], strict=True)]
    here = text + values["input_tokens"] + area // PIXELS
    return values | {
        "forward_flop": round(_attention(tokens, by_area["forward_flop"], here)),
        "decode_flop": round(_attention(areas, by_area["decode_flop"], area)),
    }


def _affine(xs: Sequence[int], ys: Sequence[float], x: int) -> float:
    return ys[0] + (ys[1] - ys[0]) * (x - xs[0]) / (xs[1] - xs[0])


def _attention(xs: Sequence[int], ys: Sequence[int], x: int) -> float:
    """a x + b x² through two points: attention is quadratic in the number of tokens, everything else linear. a + b x
    where most does not depend on the size."""
    each = ys[0] / xs[0], ys[1] / xs[1]
    return x * _affine(xs, each, x) if each[0] < each[1] else _affine(xs, ys, x)


def _with_text(counted: Operations, area: int, more_tokens: int) -> Operations:
    """The counts for a padded prompt that is `more_tokens` longer than the card's: a lower bound if it is shorter."""
    if not more_tokens or not counted.text_tokens or counted.text_tokens != counted.least_text_tokens:
        return counted
    text = counted.text_tokens + more_tokens
    others = counted.input_tokens + area // PIXELS
    share = (text + others) / (counted.text_tokens + others)
    return replace(
        counted,
        encode_flop=round(counted.encode_flop * text / counted.text_tokens),
        forward_flop=round(counted.forward_flop * (share if share > 1 else share**2)),
        text_tokens=text,
        least_text_tokens=text,
    )


def _declared(card: ModelCard, sampler: Sampler) -> Operations:
    """The figures declared on the card: memory by phase from `vram_by_phase_gb`, else `vram_gb` for each phase;
    operations from `pflop_per_image` (at the card's size and steps), if present. Operations and the memory of decoding
    are in proportion to the area. Layer sizes are unknown, so weights are not offloaded, except those of the family
    `diffusers` where `vram_by_phase_gb` has the largest `component`."""
    area = sampler.height * sampler.width / (card.sampler.height * card.sampler.width)
    gb = {name: card.vram_by_phase_gb.get(name, card.vram_gb) for name in ("encode", "denoise", "decode")}
    encoder_bytes, transformer_bytes = int(gb["encode"] * 1e9), int(gb["denoise"] * 1e9)
    unknown = (
        *("encode_flop", "picture_flop", "decode_flop", "encoder_parameters", "vae_parameters", "vae_bytes"),
        *("encode_live_bytes", "picture_live_bytes", "forward_live_bytes"),
    )
    none: dict[str, Any] = dict.fromkeys(unknown, 0)
    return Operations(
        **none,
        forward_flop=int((card.pflop_per_image or 0) * 1e15 * area / card.sampler.num_inference_steps),
        passes=1,
        together=False,
        steps=sampler.num_inference_steps,
        transformer_parameters=int(card.parameters_b * 1e9),
        encoder_bytes=encoder_bytes,
        transformer_bytes=transformer_bytes,
        encoder_layer_bytes=encoder_bytes,
        transformer_layer_bytes=int(card.vram_by_phase_gb.get("component", 2 * gb["denoise"]) * 0.5e9),
        decode_live_bytes=int(max(gb["decode"] * 1e9 - transformer_bytes, 0.0) * area),
    )


@cache
def shipped_counts() -> dict[str, list[dict[str, Any]]]:
    """`configs/operations.json`: by `counts_key` and number of input images, the fields of `Operations` that are equal
    at all sizes, and those of `BY_AREA` at each of the `areas`. Empty if the config folder has no such file."""
    try:
        counts: dict[str, list[dict[str, Any]]] = json.loads((configs_dir() / "operations.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return counts


def counts_key(card: ModelCard) -> str:
    """Key of a card's counts: what they are of, but for the libraries, and the settings which `count` accounts for."""
    return digest(
        {
            "family": card.family,
            "architecture": architecture_digest(card),
            "dtype": card.dtype,
            "mask": card.takes.mask,
            "images": min(card.takes.pictures, SHIPPED_IMAGES),
        }
    )


def usual_size(card: ModelCard, sampler: Sampler) -> Sampler:
    """`sampler` with the card's height and width if its area is about the same: images of different aspect ratios are
    planned together."""
    area = card.sampler.height * card.sampler.width
    if abs(sampler.height * sampler.width / area - 1) > SAME_AREA:
        return sampler
    return replace(sampler, height=card.sampler.height, width=card.sampler.width)


def usual_input_images(card: ModelCard) -> int:
    """Number of input images assumed for a card's figures: one for editing models, else none."""
    edits = card.takes.pictures == 1 and card.takes.size_from_picture
    return 1 if edits or not card.takes.text_alone else 0
