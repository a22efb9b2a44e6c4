"""Helpers for building small models. Does not import torch."""

import math
from typing import Any


def byte_characters() -> list[str]:
    """The 256 printable characters that represent bytes in byte-level BPE, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def amplify(module: Any, factors: dict[str, float]) -> None:
    """Multiply each weight matrix of a torch module by all `factors` whose key is part of its name ("" matches all).

    With the default initialisation, the output of a small untrained model hardly depends on its input.
    """
    for name, weight in module.named_parameters():
        if weight.ndim >= 2:
            weight.data.mul_(math.prod(factor for part, factor in factors.items() if part in name))
