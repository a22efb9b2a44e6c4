"""The components of generators as data: the pieces of `configs/architectures.yaml`. Imports no torch."""

import copy
from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import Field

from local_bench.core.identity import digest
from local_bench.core.paths import configs_dir
from local_bench.core.yamlfile import Strict, load_yaml
from local_bench.models.cards import ModelCard


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


_derived: dict[str, Piece] = {}
"""Pieces made by `with_config`, by a name that says what differs."""


@cache
def pieces() -> dict[str, Piece]:
    """All pieces by name."""
    return load_yaml(configs_dir() / "architectures.yaml", Pieces).pieces


def piece(name: str) -> Piece:
    """The piece of that name, from the data file or made by `with_config`."""
    return _derived.get(name) or pieces()[name]


def with_config(card: ModelCard, changes: Mapping[str, Mapping[str, Any]]) -> ModelCard:
    """The card with other config values in some of its components: `changes` by component name and dotted key, as
    {"text_encoder": {"text_config.num_hidden_layers": 8}}. For checks and timings: the result is no published model.
    """
    architecture = dict(card.architecture)
    for component, values in changes.items():
        usual = architecture[component]
        assert isinstance(usual, str)
        made = piece(usual)
        config = copy.deepcopy(made.config)
        for key, value in values.items():
            *outer, last = key.split(".")
            inner = config
            for part in outer:
                inner = inner[part]
            assert last in inner, key
            inner[last] = value
        name = f"{usual}[{', '.join(f'{key}={value}' for key, value in values.items())}]"
        _derived[name] = made.model_copy(update={"config": config})
        architecture[component] = name
    return card.model_copy(update={"architecture": architecture})


def architecture_digest(card: ModelCard) -> str:
    """Names the random weights that `components` makes for this card."""
    return digest({n: piece(p).model_dump() if isinstance(p, str) else p for n, p in card.architecture.items()})
