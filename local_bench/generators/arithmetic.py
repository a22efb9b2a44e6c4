"""How many operations an image takes and what is in memory meanwhile: shipped, remembered on this machine, or counted.

`configs/operations.json` has what the shipped cards take at their own size (`scripts/count_flops.py --write`), so that
planning needs no torch; another size or architecture is counted over the real modules (`generators.counting`).
"""

import json
from dataclasses import asdict, replace
from functools import cache
from importlib.metadata import version
from typing import Any

from local_bench.core.identity import digest
from local_bench.core.paths import cache_dir, configs_dir
from local_bench.core.storage import write_atomic
from local_bench.generators.operations import Operations
from local_bench.generators.pieces import architecture_digest
from local_bench.generators.sampler import Sampler
from local_bench.generators.shapes import Sizes, sizes
from local_bench.models.cards import ModelCard

_VERSION = 1
"""Of this arithmetic: a higher number counts anew what is shipped and remembered."""
SAME_AREA = 0.05
"""A size that takes a picture's aspect is counted as the card's own where its area is that near to it."""
SHIPPED_PICTURES = 4
"""Up to so many input pictures the shipped counts go."""


def count(card: ModelCard, sampler: Sampler, pictures: int = 0, text_tokens: int | None = None) -> Operations:
    """What one image takes. `text_tokens` are a prompt's own, where nothing pads it (64 if left out).

    No time where it is shipped; else some seconds at first, then remembered below the user's cache. For a card without
    an architecture (a family of another package) these are the card's own figures.
    """
    if not card.architecture:
        return _declared(card, sampler)
    s = sizes(card, sampler, pictures, text_tokens)
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
    """What the card says: memory by phase in `vram_by_phase_gb`, else `vram_gb` in each; operations where it has
    `pflop_per_image` (at its own size and steps). Layers are not known, so nothing streams in."""
    gb = {name: card.vram_by_phase_gb.get(name, card.vram_gb) for name in ("encode", "denoise", "decode")}
    encoder_bytes, transformer_bytes = int(gb["encode"] * 1e9), int(gb["denoise"] * 1e9)
    return Operations(
        encode_flop=0,
        picture_flop=0,
        forward_flop=int((card.pflop_per_image or 0) * 1e15 / card.sampler.num_inference_steps),
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
        transformer_layer_bytes=transformer_bytes,
        encode_live_bytes=0,
        picture_live_bytes=0,
        forward_live_bytes=0,
        decode_live_bytes=max(int(gb["decode"] * 1e9) - transformer_bytes, 0),
    )


@cache
def shipped_counts() -> dict[str, dict[str, Any]]:
    """`configs/operations.json`: `Operations` of one step by `counts_key`; none where a user's configs have no such
    file."""
    try:
        found: dict[str, dict[str, Any]] = json.loads((configs_dir() / "operations.json").read_text("utf-8"))
    except FileNotFoundError:
        return {}
    return found


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


def counts_key(card: ModelCard, s: Sizes) -> str:
    """Names a count by all that decides it."""
    return digest(
        {
            "version": _VERSION,
            "libraries": [version(name).partition("+")[0] for name in ("torch", "diffusers", "transformers")],
            "architecture": architecture_digest(card),
            "dtype": card.dtype,
            "sizes": asdict(s),
        }
    )


def shipped_kinds(card: ModelCard) -> list[int]:
    """The numbers of input pictures that a card's shipped counts are for; none at all is planned for an editor that has
    no order."""
    return list(range(min(card.takes.pictures, SHIPPED_PICTURES) + 1))
