"""The small models: trained ones that are included in the repository, and helpers for building untrained ones. Does not
import torch.

`weights/index.json` lists the files of each model, `{model: {path: {"file", "sha256"}}}`; files shared by several
models are stored once.
"""

import hashlib
import math
from pathlib import Path
from typing import Any

from local_bench.core import strictjson
from local_bench.core.errors import WeightsError
from local_bench.core.files import safe_join, weights_dir
from local_bench.models.cards import ModelCard

INDEX = "index.json"


def copy(folder: Path, card: ModelCard) -> None:
    """Copy the card's model to `folder`. WeightsError if a file is missing or its digest differs."""
    for path, entry in files_of(card).items():
        source = safe_join(weights_dir(), entry["file"])
        data = source.read_bytes() if source.is_file() else b""
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            problem = "has changed" if data else "is missing"
            raise WeightsError(f"{source} of {card.name} {problem}: check out the repository again, or reinstall")
        target = safe_join(folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def files_of(card: ModelCard) -> dict[str, dict[str, str]]:
    """The index entry of the card's model. WeightsError if there is none."""
    path, name = weights_dir() / INDEX, card.source.model or card.name
    index: dict[str, dict[str, dict[str, str]]] = strictjson.loads(path.read_text("utf-8")) if path.is_file() else {}
    if name not in index:
        raise WeightsError(f"{path} has no model {name}: check out the repository again, or reinstall")
    return index[name]


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
