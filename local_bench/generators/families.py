"""The classes that run families of generators, and small models of them."""

import importlib
from pathlib import Path

import torch

from local_bench.generators.architecture import components
from local_bench.generators.registry import FAMILIES, traits
from local_bench.generators.staged import Staged
from local_bench.models.cards import ModelCard


def family(name: str) -> type[Staged]:
    """The class that runs a family. ConfigError for a card's family that does not exist."""
    module, _, attribute = traits(name).implementation.partition(":")
    where = f"local_bench.generators.{module}" if name in FAMILIES else module
    found: type[Staged] = getattr(importlib.import_module(where), attribute)
    return found


def save_small(folder: Path, card: ModelCard) -> None:
    """Builds the card's model in float32 on the CPU and saves it into `folder` in the Hub's layout."""
    family(card.family).save(folder, components(card, "cpu", torch.float32))
