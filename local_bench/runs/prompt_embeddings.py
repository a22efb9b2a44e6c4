"""Encoded prompts and input images of a run, stored on disk while it runs and reused when it resumes."""

import hashlib
import json
from pathlib import Path
from typing import Any

from safetensors.torch import save

from local_bench.core import strictjson
from local_bench.core.storage import write_atomic
from local_bench.core.tensors import open_tensors
from local_bench.generators.base import EncodedPrompt

_SHARED = "negative_"
"""Prefix of the tensors of the negative prompt, which many prompts share; they are stored once."""


class PromptEmbeddings:
    """A folder of encodings by key, for one model under one numerics signature."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __contains__(self, key: str) -> bool:
        return self._path(key).exists()

    def put(self, key: str, encoded: EncodedPrompt) -> int:
        """Store one encoding atomically; return the bytes written. Raises StorageError."""
        own = {name: t.contiguous() for name, t in encoded.tensors.items() if not name.startswith(_SHARED)}
        shared, written = {}, 0
        for name, tensor in encoded.tensors.items():
            if name.startswith(_SHARED):
                data = save({name: tensor.contiguous()})
                shared[name] = hashlib.sha256(data).hexdigest()
                if shared[name] not in self:
                    write_atomic(self._path(shared[name]), data)
                    written += len(data)
        about = {"truncated": json.dumps(encoded.truncated_tokens), "shared": json.dumps(shared)}
        data = save(own, metadata=about)
        write_atomic(self._path(key), data)
        return written + len(data)

    def remove(self, key: str) -> None:
        """Remove one encoding, but not its shared tensors."""
        self._path(key).unlink(missing_ok=True)

    def get(self, key: str) -> EncodedPrompt:
        with open_tensors(self._path(key)) as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  # not a mapping
            truncated, shared = _about(file)
        for name, other in shared.items():
            with open_tensors(self._path(other)) as file:
                tensors[name] = file.get_tensor(name)
        return EncodedPrompt(tensors, truncated)

    def shape(self, key: str) -> tuple[Any, dict[str, int]]:
        """An encoding's `shape` and truncated tokens, read from the headers of its files."""
        with open_tensors(self._path(key)) as file:
            found = {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118
            truncated, shared = _about(file)
        for name, other in shared.items():
            with open_tensors(self._path(other)) as file:
                found[name] = file.get_slice(name).get_shape()
        return tuple((name, *size) for name, size in sorted(found.items())), truncated

    def _path(self, key: str) -> Path:
        return self._folder / key[:2] / f"{key}.safetensors"


def _about(file: Any) -> tuple[dict[str, int], dict[str, str]]:
    """Truncated tokens; digests of the shared tensors by name."""
    about = file.metadata() or {}
    return strictjson.stored(about.get("truncated", "{}")), strictjson.stored(about.get("shared", "{}"))
