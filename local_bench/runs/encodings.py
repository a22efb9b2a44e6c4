"""Encoded prompts and pictures of a run, on disk while it goes on: each is made once, also over a resume."""

import json
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save

from local_bench.core.storage import write_atomic
from local_bench.generators.base import Encoded


class Encodings:
    """A folder of encodings by key, for one model under one numerics signature."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __contains__(self, key: str) -> bool:
        return self._path(key).exists()

    def put(self, key: str, encoded: Encoded) -> None:
        """Keeps one encoding, whole or not at all. StorageError if refused."""
        tensors = {name: tensor.contiguous() for name, tensor in encoded.tensors.items()}
        about = {"truncated": json.dumps(encoded.truncated_tokens)}
        write_atomic(self._path(key), save(tensors, metadata=about))

    def get(self, key: str) -> Encoded:
        with safe_open(self._path(key), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # no mapping
            return Encoded(tensors, json.loads((file.metadata() or {}).get("truncated", "{}")))

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.safetensors"
