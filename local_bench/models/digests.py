"""sha256 of files too large to be read at every start: a reading is remembered until the file's stamp changes."""

import hashlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from local_bench.core.paths import cache_dir
from local_bench.core.storage import write_atomic

_SETTLED_NS = 50_000_000
"""A file changed less than this before it was read is not remembered: the next change could carry the same time."""


def file_digests(folder: Path, names: Iterable[str]) -> dict[str, str]:
    """The sha256 of each file of `folder`, by name; files that are not there are left out.

    A stamp is size, both times and inode: the time of the last change of an inode cannot be set back by hand.
    """
    memory_file = cache_dir() / "weights" / f"{hashlib.sha256(str(folder.resolve()).encode()).hexdigest()}.json"
    memory = _memory(memory_file)
    fresh = {name: known for name, known in memory.items() if (folder / name).is_file()}
    digests = {}
    for name in names:
        path = folder / name
        if not path.is_file():
            continue
        known = fresh.get(name)
        if known and known[0] == _stamp(path.stat()):
            digests[name] = known[1]
            continue
        fresh.pop(name, None)
        before = path.stat()
        digests[name] = file_sha256(path)
        after = path.stat()
        settled = time.time_ns() - max(after.st_mtime_ns, after.st_ctime_ns) > _SETTLED_NS
        if settled and _stamp(before) == _stamp(after):
            fresh[name] = [_stamp(after), digests[name]]
    if fresh != memory:
        write_atomic(memory_file, json.dumps(fresh).encode())
    return digests


def file_sha256(path: Path) -> str:
    """sha256 (64 hex digits) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def git_blob_sha1(path: Path) -> str:
    """The name that git, and so the Hub, gives a small file: sha1 over a header with its size, then its bytes."""
    data = path.read_bytes()
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def _memory(path: Path) -> dict[str, list[str]]:
    try:
        memory: Any = json.loads(path.read_text())
    except (FileNotFoundError, ValueError):
        return {}
    return memory if isinstance(memory, dict) else {}


def _stamp(stat: os.stat_result) -> str:
    return f"{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{stat.st_ino}"
