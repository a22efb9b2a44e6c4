"""What networks read off pictures and words, kept on this machine from run to run: one SQLite file a network.

A file belongs to one identity: the network (model, weights, preprocessing, dtype), device, software and batch size, so
an array that is found is the one that would be computed. It is a cache and nothing more: a row that does not fit its
checksum is computed anew, and a file that cannot be used is done without. `LOCAL_BENCH_CACHE` says where it lies.
"""

import hashlib
import json
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from local_bench.core.identity import canonical_json, digest
from local_bench.core.paths import cache_dir
from local_bench.judges.metrics.base import Array

_SCHEMA = """
CREATE TABLE IF NOT EXISTS about (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS arrays (
  look TEXT PRIMARY KEY, shape TEXT NOT NULL, data BLOB NOT NULL, sha256 TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""
_PATIENCE_S = 30


class FeatureCache:
    """The arrays of one identity; used from several threads and processes. None of its faults reach a caller."""

    def __init__(self, identity: Mapping[str, Any]) -> None:
        """Opens or begins the file of `identity`; where that is refused, nothing is kept and `fault` says why."""
        self.path = cache_dir() / "arrays" / f"{digest(identity)}.sqlite"
        self.fault: str | None = None
        self._lock = threading.Lock()
        self._db: sqlite3.Connection | None = None
        try:
            self._db = _open(self.path)
            with self._db:
                about = "INSERT OR IGNORE INTO about VALUES ('identity', ?)"
                self._db.execute(about, (canonical_json(dict(identity)),))
        except (sqlite3.Error, OSError) as e:
            self._give_up(e)

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    @property
    def alone(self) -> bool | None:
        """Whether an array was found not to depend on its neighbours in a batch; None where nobody has looked."""
        found = self._ask("SELECT value FROM about WHERE key = 'alone'")
        return None if found is None else found[0] == "yes"

    @alone.setter
    def alone(self, holds: bool) -> None:
        self._tell("INSERT OR REPLACE INTO about VALUES ('alone', ?)", [("yes" if holds else "no",)])

    def get(self, look: str) -> Array | None:
        """The array kept for the look of that key; None where there is none or it is damaged."""
        found = self._ask("SELECT shape, data, sha256 FROM arrays WHERE look = ?", look)
        if found is None:
            return None
        shape, data, sha256 = found
        if _checksum(look, shape, data) != sha256:
            return None
        return np.frombuffer(data, np.float32).reshape(json.loads(shape))

    def put(self, arrays: Mapping[str, Array]) -> None:
        """Keeps arrays by the keys of their looks."""
        rows = []
        for look, array in arrays.items():
            shape, data = json.dumps(array.shape), np.ascontiguousarray(array, np.float32).tobytes()
            rows.append((look, shape, data, _checksum(look, shape, data)))
        self._tell("INSERT OR REPLACE INTO arrays VALUES (?, ?, ?, ?)", rows)

    def _ask(self, query: str, *values: Any) -> tuple[Any, ...] | None:
        with self._lock:
            if self._db is None:
                return None
            try:
                found: tuple[Any, ...] | None = self._db.execute(query, values).fetchone()
            except sqlite3.Error as e:
                self._give_up(e)
                return None
            return found

    def _tell(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        with self._lock:
            if self._db is None:
                return
            try:
                with self._db:
                    self._db.executemany(statement, rows)
            except sqlite3.Error as e:
                self._give_up(e)

    def _give_up(self, error: Exception) -> None:
        self.fault = f"{self.path} cannot be used ({error}), so nothing read off pictures is kept: remove it"
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=_PATIENCE_S, check_same_thread=False)
    db.execute("PRAGMA synchronous = NORMAL")
    db.executescript(_SCHEMA)
    return db


def _checksum(look: str, shape: str, data: bytes) -> str:
    return hashlib.sha256(f"{look}{shape}".encode() + data).hexdigest()
