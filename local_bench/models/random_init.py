"""Two helpers for the small models that we build ourselves. Takes modules as they come and imports no torch."""

import math
from typing import Any


def byte_characters() -> list[str]:
    """The 256 printable characters that stand for bytes in byte-level BPE, in byte order."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


def amplify(module: Any, factors: dict[str, float]) -> None:
    """Multiplies each weight matrix of a torch module by all of `factors` whose key is part of its name ("" is of all).

    With the usual initialisation a small untrained model's output would hardly depend on what it is given.
    """
    for name, weight in module.named_parameters():
        if weight.ndim >= 2:
            weight.data.mul_(math.prod(factor for part, factor in factors.items() if part in name))
