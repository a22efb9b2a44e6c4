"""Imports the classes of generator families, and saves small models of them."""

import importlib
from pathlib import Path

import torch

from local_bench.generators.architecture import components
from local_bench.generators.registry import BUILT_IN, traits
from local_bench.generators.staged import Staged
from local_bench.models.cards import ModelCard


def family(name: str) -> type[Staged]:
    """Import a family's class. Raises ConfigError if the family does not exist."""
    module, _, attribute = traits(name).implementation.partition(":")
    path = f"local_bench.generators.{module}" if name in BUILT_IN else module
    cls: type[Staged] = getattr(importlib.import_module(path), attribute)
    return cls


def save_small(folder: Path, card: ModelCard) -> None:
    """Build the card's model in float32 on the CPU and save it to `folder` in the Hub's layout."""
    family(card.family).save(folder, components(card, "cpu", torch.float32))
