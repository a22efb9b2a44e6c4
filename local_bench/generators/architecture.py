"""Builds the pipeline components described in `configs/architectures.yaml`, with seeded random weights.

The same file is used for small test models that are saved and loaded like real ones, for full-size models with random
weights (`load: random`), and for FLOP counting on meta tensors.
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
    """Return the pipeline's components by name, None for those in `without`.

    The same card and device always give the same weights. On "meta" nothing is allocated. Raises ConfigError if the
    card has no architecture.
    """
    if not card.architecture:
        raise ConfigError(f"the card {card.name} has no architecture, so it cannot be built with random weights")
    parts = {name: part for name, part in card.architecture.items() if isinstance(part, str)}
    flags = {name: flag for name, flag in card.architecture.items() if not isinstance(flag, str)}
    built = {name: None if name in without else build(part, device, dtype) for name, part in parts.items()}
    return built | flags


def build(name: str, device: str | torch.device, dtype: torch.dtype) -> Any:
    """Build one component; its random weights are seeded by its name."""
    spec = piece(name)
    if spec.tokenizer:
        return getattr(tokenizers, spec.tokenizer)(**spec.config)
    assert spec.model
    in_diffusers = hasattr(diffusers, spec.model)
    cls = getattr(diffusers if in_diffusers else transformers, spec.model)
    device = torch.device(device if issubclass(cls, torch.nn.Module) else "cpu")  # schedulers compute on the CPU
    cuda = [device.index or 0] if device.type == "cuda" else []
    default_dtype = torch.get_default_dtype()
    with torch.random.fork_rng(cuda), torch.device(device):
        torch.manual_seed(seed_of(name))
        torch.set_default_dtype(dtype)
        try:
            component = cls(**spec.config) if in_diffusers else cls(cls.config_class(**spec.config))
        finally:
            torch.set_default_dtype(default_dtype)
    if isinstance(component, torch.nn.Module):
        amplify(component, spec.amplify)
        for tensor in component.state_dict(keep_vars=True).values():  # buffers too, as when they are loaded from files
            if tensor.is_floating_point():
                tensor.data = tensor.data.to(dtype)
        component = component.eval().requires_grad_(False)
    return component
