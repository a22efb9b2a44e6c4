"""Pipeline components as data, from `configs/architectures.yaml`. Imports no torch."""

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import Field

from local_bench.core.errors import ConfigError, hint
from local_bench.core.files import configs_dir
from local_bench.core.identity import digest
from local_bench.core.yamlfile import Strict, load_yaml
from local_bench.models.cards import ModelCard


class Piece(Strict):
    """One pipeline component: a diffusers or transformers class with its config, or a tokenizer function."""

    model: str | None = None
    """The class's name."""
    tokenizer: str | None = None
    """A function of `generators.tokenizers`."""
    config: dict[str, Any] = Field(default={})
    amplify: dict[str, float] = Field(default={})
    """For small models: factors of the weight matrices, see `models.random_init.amplify`."""


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
