"""The small trained models that lie in the repository, as folders like any other model's.

`weights/index.json` says of each model which files it is made of, `{model: {path: {"file", "sha256"}}}`; a file that
several models share lies there once.
"""

import hashlib
from pathlib import Path
from typing import Any

from local_bench.core import strictjson
from local_bench.core.errors import WeightsError
from local_bench.core.identity import digest
from local_bench.core.paths import safe_join, weights_dir
from local_bench.models.cards import ModelCard

INDEX = "index.json"


def copy(folder: Path, card: ModelCard) -> None:
    """Fills `folder` with the card's model. WeightsError where a file is missing or not the one that was shipped."""
    for path, entry in _files(card.name).items():
        kept = safe_join(weights_dir(), entry["file"])
        data = kept.read_bytes() if kept.is_file() else b""
        if hashlib.sha256(data).hexdigest() != entry["sha256"]:
            what = "is not the file that was shipped" if data else "is missing"
            raise WeightsError(f"{kept} of {card.name} {what}: check the repository out again, or install anew")
        target = safe_join(folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)


def files_digest(card: ModelCard) -> str:
    """Names the files that make up the card's model. WeightsError where none is shipped."""
    return digest(_files(card.name))


def _files(name: str) -> dict[str, dict[str, str]]:
    path = weights_dir() / INDEX
    index: dict[str, Any] = strictjson.loads(path.read_text("utf-8")) if path.is_file() else {}
    if name not in index:
        raise WeightsError(f"{path} knows no model {name}: check the repository out again, or install anew")
    found: dict[str, dict[str, str]] = index[name]
    return found
