"""What generators are made of: the pieces of `configs/architectures.yaml`, built with seeded random weights.

One data file serves three ends: the small models that we save and load like real ones, real ones with random weights
(`load: random`), and counting on meta tensors.
"""

from functools import cache
from pathlib import Path
from typing import Any

import diffusers
import torch
import transformers
from pydantic import Field

from local_bench.core.cards import ModelCard
from local_bench.core.errors import ConfigError
from local_bench.core.identity import digest, seed_of
from local_bench.core.paths import configs_dir
from local_bench.core.small import amplify
from local_bench.core.yamlfile import Strict, load_yaml
from local_bench.generators import tokenizers


class Piece(Strict):
    """One component of a pipeline: a class of diffusers or transformers with its config, or a tokenizer of ours."""

    model: str | None = None
    """The class's name."""
    tokenizer: str | None = None
    """A function of `generators.tokenizers`."""
    config: dict[str, Any] = Field(default={})
    amplify: dict[str, float] = Field(default={})
    """Small models only: what weight matrices are multiplied by, see `core.small.amplify`."""


class Pieces(Strict):
    pieces: dict[str, Piece] = Field(min_length=1)


@cache
def pieces() -> dict[str, Piece]:
    """All pieces by name."""
    return load_yaml(configs_dir() / "architectures.yaml", Pieces).pieces


def components(
    card: ModelCard, device: str | torch.device, dtype: torch.dtype, without: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The pipeline's components by its own names, None for those in `without`; same card and device, same weights.

    On "meta" nothing is allocated. ConfigError where the card has no architecture.
    """
    if not card.architecture:
        raise ConfigError(f"the card {card.name} names no architecture: it cannot be built with random weights")
    parts = {name: piece for name, piece in card.architecture.items() if isinstance(piece, str)}
    flags = {name: flag for name, flag in card.architecture.items() if not isinstance(flag, str)}
    built = {name: None if name in without else build(piece, device, dtype) for name, piece in parts.items()}
    return built | flags


def architecture_digest(card: ModelCard) -> str:
    """Names the random weights that `components` makes for this card."""
    known = pieces()
    return digest({n: known[p].model_dump() if isinstance(p, str) else p for n, p in card.architecture.items()})


def build(name: str, device: str | torch.device, dtype: torch.dtype) -> Any:
    """One piece, seeded by its name."""
    piece = pieces()[name]
    if piece.tokenizer:
        return getattr(tokenizers, piece.tokenizer)(**piece.config)
    assert piece.model
    of_diffusers = hasattr(diffusers, piece.model)
    kind = getattr(diffusers if of_diffusers else transformers, piece.model)
    device = torch.device(device if issubclass(kind, torch.nn.Module) else "cpu")  # schedulers reckon on the host
    cuda = [device.index or 0] if device.type == "cuda" else []
    usual = torch.get_default_dtype()
    with torch.random.fork_rng(cuda), torch.device(device):
        torch.manual_seed(seed_of(name))
        torch.set_default_dtype(dtype)
        try:
            made = kind(**piece.config) if of_diffusers else kind(kind.config_class(**piece.config))
        finally:
            torch.set_default_dtype(usual)
    if isinstance(made, torch.nn.Module):
        amplify(made, piece.amplify)
        made = made.eval().requires_grad_(False)
    return made


def save_small(folder: Path, card: ModelCard) -> None:
    """Builds the card's model in float32 on the CPU and saves it into `folder` as the Hub would lay it out."""
    from local_bench.generators.registry import family

    family(card.family).save(folder, components(card, "cpu", torch.float32))
