"""Pipeline components as data, from `configs/architectures.yaml`, and built from it with seeded random weights.

The same file is used for small test models that are saved and loaded like real ones, for full-size models with random
weights (`load: random`), and for FLOP counting on meta tensors. torch is imported when a component is built.
"""

import copy
from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from pydantic import Field

from local_bench.core.errors import ConfigError, hint
from local_bench.core.files import configs_dir
from local_bench.core.types import digest, seed_of
from local_bench.core.yamlfile import Strict, load_yaml
from local_bench.models.cards import ModelCard
from local_bench.models.shipped import amplify

if TYPE_CHECKING:
    import torch


class Piece(Strict):
    """One pipeline component: a diffusers or transformers class with its config, or a tokenizer function."""

    model: str | None = None
    """The class's name."""
    tokenizer: str | None = None
    """A function of `generators.tokenizers`."""
    config: dict[str, Any] = Field(default={})
    amplify: dict[str, float] = Field(default={})
    """For small models: factors of the weight matrices, see `models.shipped.amplify`."""


class Pieces(Strict):
    pieces: dict[str, Piece] = Field(min_length=1)


_derived: dict[str, Piece] = {}
"""Pieces created by `with_config`, by a name that includes the changes."""


@cache
def pieces() -> dict[str, Piece]:
    """All pieces by name."""
    return load_yaml(configs_dir() / "architectures.yaml", Pieces).pieces


def piece(name: str) -> Piece:
    """The piece of that name, from the data file or created by `with_config`. Raises ConfigError if there is none."""
    described = _derived.get(name) or pieces().get(name)
    if described is None:
        raise ConfigError(f"architecture: there is no component {name!r}: {hint(name, pieces(), 'correct the card')}")
    return described


def with_config(card: ModelCard, changes: Mapping[str, Mapping[str, Any]]) -> ModelCard:
    """Return the card with changed config values of some components.

    `changes` is by component name and dotted key: {"text_encoder": {"text_config.num_hidden_layers": 8}}. For checks
    and timing runs: the result is not a published model.
    """
    architecture = dict(card.architecture)
    for component, values in changes.items():
        base = architecture[component]
        assert isinstance(base, str)
        base_piece = piece(base)
        config = copy.deepcopy(base_piece.config)
        for key, value in values.items():
            *outer, last = key.split(".")
            inner = config
            for part in outer:
                inner = inner[part]
            assert last in inner, key
            inner[last] = value
        name = f"{base}[{', '.join(f'{key}={value}' for key, value in values.items())}]"
        _derived[name] = base_piece.model_copy(update={"config": config})
        architecture[component] = name
    return card.model_copy(update={"architecture": architecture})


def architecture_digest(card: ModelCard) -> str:
    """Digest that identifies the random weights that `components` creates for this card."""
    return digest({n: piece(p).model_dump() if isinstance(p, str) else p for n, p in card.architecture.items()})


def components(
    card: ModelCard, device: "str | torch.device", dtype: "torch.dtype", without: tuple[str, ...] = ()
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


def build(name: str, device: "str | torch.device", dtype: "torch.dtype") -> Any:
    """Build one component; its random weights are seeded by its name."""
    import diffusers
    import torch
    import transformers

    from local_bench.generators import tokenizers

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
