"""Which ledgers have been checked already, so that all rows of a large one are read once, and not by every command.

What is remembered is valid while the file's stat does not change: ctime cannot be set by the user, and the header has
SQLite's counter of commits. It is stored in the user's cache, never in the run directory, which may be someone else's.
"""

import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from local_bench.core import strictjson
from local_bench.core.errors import LocalBenchError
from local_bench.core.files import own_text
from local_bench.core.paths import cache_dir
from local_bench.core.storage import write_atomic
from local_bench.core.version import __version__
from local_bench.runs.store.constraints import CONDITIONS
from local_bench.runs.store.schema import SCHEMA

_HEADER_BYTES = 100
_SETTLED_NS = 50_000_000
"""A file changed less than this ago is not remembered yet: a later change could have the same timestamp."""
_RULES = hashlib.sha256(json.dumps([__version__, SCHEMA, CONDITIONS]).encode()).hexdigest()
"""Changes with the checks."""
_checked: dict[str, tuple["FileState", frozenset[str]]] = {}
"""Path -> the state of the checked file, and the tables that have been written since it was checked."""


class FileState(NamedTuple):
    """A value that changes with the file."""

    device: int
    inode: int
    size: int
    mtime_ns: int
    ctime_ns: int
    header: str
    """SQLite's, with its counter of commits; hexadecimal."""


def file_state(path: Path) -> FileState | None:
    """The state of a file; None where a transaction is unfinished."""
    if any(os.path.lexists(f"{path}{end}") for end in ("-journal", "-wal")):
        return None
    with path.open("rb") as file:
        of = os.fstat(file.fileno())
        header = file.read(_HEADER_BYTES).hex()
        return FileState(of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns, header)


def unchanged_tables(path: Path, tables: Collection[str]) -> frozenset[str]:
    """The tables whose rows have been checked since they were last written."""
    name = os.path.realpath(path)
    if name not in _checked and (stored := _stored(name)):
        _checked[name] = stored
    state, written = _checked.get(name, (None, frozenset()))
    return frozenset(tables) - written if state is not None and state == file_state(path) else frozenset()


def remember(path: Path, state: FileState | None, written: Collection[str]) -> None:
    """Store that the file in this state has been checked, and that only `written` tables have been written since."""
    name = os.path.realpath(path)
    if state is None:
        _checked.pop(name, None)
        return
    if _checked.get(name) == (state, frozenset(written)):
        return
    _checked[name] = state, frozenset(written)
    age_ns = time.time_ns() - max(state.mtime_ns, state.ctime_ns)
    time.sleep(min(max(0, _SETTLED_NS - age_ns), _SETTLED_NS) / 1e9)
    with suppress(LocalBenchError, OSError):  # a cache that cannot be written
        if file_state(path) == state:
            entry = {"rules": _RULES, "state": state, "written": sorted(written)}
            write_atomic(_cache_file(name), json.dumps(entry).encode(), durable=False)


def _stored(name: str) -> tuple[FileState, frozenset[str]] | None:
    try:
        entry: Any = strictjson.loads(own_text(_cache_file(name)))
        return (FileState(*entry["state"]), frozenset(entry["written"])) if entry["rules"] == _RULES else None
    except (OSError, LookupError, TypeError, ValueError):
        return None


def _cache_file(name: str) -> Path:
    return cache_dir() / "ledgers" / f"{hashlib.sha256(name.encode()).hexdigest()}.json"


def commits_of_others(db: sqlite3.Connection) -> int:
    """A number that changes when another connection commits."""
    return int(db.execute("PRAGMA data_version").fetchone()[0])
