"""Number of operations and memory per image: from the shipped file, from this machine's cache, or counted.

`configs/operations.json` has the counts of the shipped cards at their default size (`scripts/count_flops.py --write`),
so that planning needs no torch. Other sizes and architectures are counted on the real modules (`generators.counting`).
"""

import json
from dataclasses import asdict, replace
from functools import cache
from typing import Any

from local_bench.core.identity import digest
from local_bench.core.packages import versions
from local_bench.core.paths import cache_dir, configs_dir
from local_bench.core.storage import write_atomic
from local_bench.generators.operations import Operations
from local_bench.generators.pieces import architecture_digest
from local_bench.generators.sampler import Sampler
from local_bench.generators.shapes import Sizes, sizes
from local_bench.models.cards import ModelCard

_VERSION = 2
"""Version of these computations: a higher number invalidates shipped and cached counts."""
_COUNTED_WITH = {"torch": "2.13.0", "diffusers": "0.42.1", "transformers": "5.19.0"}
"""The releases with which `configs/operations.json` was made."""
SAME_AREA = 0.05
"""A size whose area differs from the card's by at most this fraction is counted as the card's size."""
SHIPPED_IMAGES = 4
"""The largest number of input images in the shipped counts."""


def count(card: ModelCard, sampler: Sampler, input_images: int = 0, text_tokens: int | None = None) -> Operations:
    """Count the operations and memory of one image.

    `text_tokens` is the prompt's length for families that do not pad it (default 64). Shipped counts return at once;
    others take some seconds the first time and are then cached in the user's cache folder. A card without an
    architecture (a family of another package) returns the figures declared on the card.
    """
    if not card.architecture:
        return _declared(card, sampler)
    s = sizes(card, sampler, input_images, text_tokens)
    key = counts_key(card, s)
    known = shipped_counts().get(key)
    if known is not None:
        return replace(Operations(**known), steps=sampler.num_inference_steps)
    file = cache_dir() / "arithmetic" / f"{key}.json"
    try:
        return replace(Operations(**json.loads(file.read_text())), steps=sampler.num_inference_steps)
    except (FileNotFoundError, ValueError, TypeError):
        from local_bench.generators.counting import count_modules

        counted = replace(count_modules(card, s), steps=sampler.num_inference_steps)
    write_atomic(file, json.dumps(asdict(counted)).encode())
    return counted


def _declared(card: ModelCard, sampler: Sampler) -> Operations:
    """The figures declared on the card: memory by phase from `vram_by_phase_gb`, else `vram_gb` for each phase;
    operations from `pflop_per_image` (at the card's size and steps), if present. Operations and the memory of decoding
    are in proportion to the area. Layer sizes are unknown, so weights are not offloaded, except those of the family
    `diffusers` where `vram_by_phase_gb` has the largest `component`."""
    area = sampler.height * sampler.width / (card.sampler.height * card.sampler.width)
    gb = {name: card.vram_by_phase_gb.get(name, card.vram_gb) for name in ("encode", "denoise", "decode")}
    encoder_bytes, transformer_bytes = int(gb["encode"] * 1e9), int(gb["denoise"] * 1e9)
    return Operations(
        encode_flop=0,
        picture_flop=0,
        forward_flop=int((card.pflop_per_image or 0) * 1e15 * area / card.sampler.num_inference_steps),
        passes=1,
        together=False,
        steps=sampler.num_inference_steps,
        decode_flop=0,
        encoder_parameters=0,
        transformer_parameters=int(card.parameters_b * 1e9),
        vae_parameters=0,
        encoder_bytes=encoder_bytes,
        transformer_bytes=transformer_bytes,
        vae_bytes=0,
        encoder_layer_bytes=encoder_bytes,
        transformer_layer_bytes=int(card.vram_by_phase_gb.get("component", 2 * gb["denoise"]) * 0.5e9),
        encode_live_bytes=0,
        picture_live_bytes=0,
        forward_live_bytes=0,
        decode_live_bytes=int(max(gb["decode"] * 1e9 - transformer_bytes, 0.0) * area),
    )


@cache
def shipped_counts() -> dict[str, dict[str, Any]]:
    """`configs/operations.json`: `Operations` of one step by `counts_key`; empty if the config folder has no such
    file."""
    try:
        counts: dict[str, dict[str, Any]] = json.loads((configs_dir() / "operations.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return counts


def usual_size(card: ModelCard, sampler: Sampler) -> Sampler:
    """`sampler` with the card's height and width if its area is about the same.

    The cost depends on the area, so images of different aspect ratios need not be counted separately.
    """
    own = card.sampler.height * card.sampler.width
    if abs(sampler.height * sampler.width / own - 1) > SAME_AREA:
        return sampler
    return replace(sampler, height=card.sampler.height, width=card.sampler.width)


def usual_input_images(card: ModelCard) -> int:
    """Number of input images assumed for a card's figures: one for editing models, else none."""
    edits = card.takes.pictures == 1 and card.takes.size_from_picture
    return 1 if edits or not card.takes.text_alone else 0


def counts_key(card: ModelCard, s: Sizes) -> str:
    """Cache key of a count: a digest of everything that affects it."""
    return digest(
        {
            "version": _VERSION,
            "libraries": _libraries(),
            "architecture": architecture_digest(card),
            "dtype": card.dtype,
            "sizes": asdict(s),
        }
    )


def _libraries() -> list[str]:
    """The releases of torch, diffusers and transformers: the installed ones, or without them (planning does not need
    them) those that the shipped counts were made with."""
    installed = versions()
    return [installed.get(name, shipped).partition("+")[0] for name, shipped in _COUNTED_WITH.items()]


def shipped_kinds(card: ModelCard) -> list[int]:
    """Numbers of input images for which a card's counts are shipped, beginning with 0."""
    return list(range(min(card.takes.pictures, SHIPPED_IMAGES) + 1))
