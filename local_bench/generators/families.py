"""Imports the classes of generator families, and saves small models of them."""

from pathlib import Path

import torch

from local_bench.core.environment import load_object
from local_bench.generators.architecture import components
from local_bench.generators.registry import BUILT_IN, traits
from local_bench.generators.staged import Staged
from local_bench.models.cards import ModelCard


def family(name: str) -> type[Staged]:
    """Import a family's class. Raises ConfigError if the family does not exist."""
    package = "local_bench.generators." if name in BUILT_IN else ""
    cls: type[Staged] = load_object(package + traits(name).implementation, f"the family {name!r}")
    return cls


def save_small(folder: Path, card: ModelCard) -> None:
    """Build the card's model in float32 on the CPU and save it to `folder` in the Hub's layout."""
    family(card.family).save(folder, components(card, "cpu", torch.float32))
