"""Families by name; their modules (and torch) are imported when one is asked for."""

import importlib

from local_bench.core.errors import ConfigError
from local_bench.generators.base import Generator

FAMILIES = {
    "flux": "local_bench.generators.flux:Flux",
}


def family(name: str) -> type[Generator]:
    """The class that runs a family. ConfigError where a card names one that is not there."""
    if name not in FAMILIES:
        raise ConfigError(f"there is no family of generators {name!r}: there are {', '.join(FAMILIES)}")
    module, _, attribute = FAMILIES[name].partition(":")
    found: type[Generator] = getattr(importlib.import_module(module), attribute)
    return found
