"""What generators are made of: the pieces of `configs/architectures.yaml`, built with seeded random weights.

One data file serves three ends: the small models that we save and load like real ones, real ones with random weights
(`load: random`), and counting on meta tensors.
"""

from typing import Any

import diffusers
import torch
import transformers

from local_bench.core.errors import ConfigError
from local_bench.core.identity import seed_of
from local_bench.generators import tokenizers
from local_bench.generators.pieces import piece
from local_bench.models.cards import ModelCard
from local_bench.models.random_init import amplify


def components(
    card: ModelCard, device: str | torch.device, dtype: torch.dtype, without: tuple[str, ...] = ()
) -> dict[str, Any]:
    """The pipeline's components by its own names, None for those in `without`; same card and device, same weights.

    On "meta" nothing is allocated. ConfigError where the card has no architecture.
    """
    if not card.architecture:
        raise ConfigError(f"the card {card.name} names no architecture: it cannot be built with random weights")
    parts = {name: part for name, part in card.architecture.items() if isinstance(part, str)}
    flags = {name: flag for name, flag in card.architecture.items() if not isinstance(flag, str)}
    built = {name: None if name in without else build(part, device, dtype) for name, part in parts.items()}
    return built | flags


def build(name: str, device: str | torch.device, dtype: torch.dtype) -> Any:
    """One piece, seeded by its name."""
    made_of = piece(name)
    if made_of.tokenizer:
        return getattr(tokenizers, made_of.tokenizer)(**made_of.config)
    assert made_of.model
    of_diffusers = hasattr(diffusers, made_of.model)
    kind = getattr(diffusers if of_diffusers else transformers, made_of.model)
    device = torch.device(device if issubclass(kind, torch.nn.Module) else "cpu")  # schedulers reckon on the host
    cuda = [device.index or 0] if device.type == "cuda" else []
    usual = torch.get_default_dtype()
    with torch.random.fork_rng(cuda), torch.device(device):
        torch.manual_seed(seed_of(name))
        torch.set_default_dtype(dtype)
        try:
            made = kind(**made_of.config) if of_diffusers else kind(kind.config_class(**made_of.config))
        finally:
            torch.set_default_dtype(usual)
    if isinstance(made, torch.nn.Module):
        amplify(made, made_of.amplify)
        made = made.eval().requires_grad_(False)
    return made
