"""Cached sha256 digests of large files; a cached digest is valid until the file's stat changes."""

import hashlib
import json
import os
import time
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import Any

from local_bench.core import strictjson
from local_bench.core.errors import StorageError, WeightsError
from local_bench.core.files import cache_dir, open_regular, write_atomic

_SETTLED_NS = 50_000_000
"""Digests of files modified less than this before hashing are not cached: a later change could have the same
timestamp."""


def file_digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The sha256 of each file in `folder`, by name; missing files are omitted.

    Cache entries are keyed by size, mtime, ctime and inode; ctime cannot be set by the user.
    """
    cache_file = cache_dir() / "weights" / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()}.json"
    cached = _read_cache(cache_file)
    current = {name: entry for name, entry in cached.items() if (folder / name).is_file()}
    digests = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            continue
        entry = current.get(name)
        if entry and entry[0] == _stamp(path.stat()):
            digests[name] = entry[1]
            continue
        current.pop(name, None)
        before = path.stat()
        digests[name] = file_sha256(path)
        after = path.stat()
        settled = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > _SETTLED_NS
        if settled and _stamp(before) == _stamp(after):
            current[name] = [_stamp(after), digests[name]]
    if current != cached:
        with suppress(StorageError):  # a cache that others share, or a full disk: only the next call takes longer
            write_atomic(cache_file, json.dumps(current).encode())
    return digests


def file_sha256(path: Path) -> str:
    """The sha256 of a file (64 hex digits)."""
    with open_regular(path, WeightsError, missing="fetch the model again") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_blob_sha1(path: Path) -> str:
    """The git blob id of a file, which the Hub declares for small files: sha1 of a size header and the bytes."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _read_cache(path: Path) -> dict[str, list[str]]:
    try:
        cached: Any = strictjson.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return cached if isinstance(cached, dict) else {}


def _stamp(stat: os.stat_result) -> str:
    return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{stat.st_ino}"
