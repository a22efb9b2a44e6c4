"""A cache of feature arrays across runs on one machine: one SQLite file per network.

A file belongs to one identity: the network (model, weights, preprocessing, dtype), device, software and batch size, so
a cached array equals the one that would be computed. A row with a wrong checksum is computed again, and a file that
cannot be used is ignored. The files are below `LOCAL_BENCH_CACHE`.
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
_LOCK_TIMEOUT_S = 30


class FeatureCache:
    """The arrays of one identity; safe for several threads and processes. Errors disable the cache and set `fault`."""

    def __init__(self, identity: Mapping[str, Any]) -> None:
        """Open or create the file of `identity`; on an error the cache is disabled and `fault` is the message."""
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
            self._disable(e)

    def close(self) -> None:
        with self._lock:
            if self._db is not None:
                self._db.close()
                self._db = None

    @property
    def alone(self) -> bool | None:
        """Result of the batch-invariance check; None if it has not run yet."""
        row = self._select("SELECT value FROM about WHERE key = 'alone'")
        return None if row is None else row[0] == "yes"

    @alone.setter
    def alone(self, holds: bool) -> None:
        self._insert("INSERT OR REPLACE INTO about VALUES ('alone', ?)", [("yes" if holds else "no",)])

    def get(self, key: str) -> Array | None:
        """The cached array for the feature input with key `key`; None if it is missing or damaged."""
        row = self._select("SELECT shape, data, sha256 FROM arrays WHERE look = ?", key)
        if row is None:
            return None
        shape, data, sha256 = row
        if _checksum(key, shape, data) != sha256:
            return None
        return np.frombuffer(data, np.float32).reshape(json.loads(shape))

    def put(self, arrays: Mapping[str, Array]) -> None:
        """Store arrays by the keys of their feature inputs."""
        rows = []
        for key, array in arrays.items():
            shape, data = json.dumps(array.shape), np.ascontiguousarray(array, np.float32).tobytes()
            rows.append((key, shape, data, _checksum(key, shape, data)))
        self._insert("INSERT OR REPLACE INTO arrays VALUES (?, ?, ?, ?)", rows)

    def _select(self, query: str, *values: Any) -> tuple[Any, ...] | None:
        with self._lock:
            if self._db is None:
                return None
            try:
                row: tuple[Any, ...] | None = self._db.execute(query, values).fetchone()
            except sqlite3.Error as e:
                self._disable(e)
                return None
            return row

    def _insert(self, statement: str, rows: list[tuple[Any, ...]]) -> None:
        with self._lock:
            if self._db is None:
                return
            try:
                with self._db:
                    self._db.executemany(statement, rows)
            except sqlite3.Error as e:
                self._disable(e)

    def _disable(self, error: Exception) -> None:
        self.fault = f"{self.path} cannot be used ({error}), so features are not cached: remove it"
        if self._db is not None:
            with suppress(sqlite3.Error):
                self._db.close()
            self._db = None


def _open(path: Path) -> sqlite3.Connection:
    path.parent.mkdir(parents=True, exist_ok=True)
    db = sqlite3.connect(path, timeout=_LOCK_TIMEOUT_S, check_same_thread=False)
    db.execute("PRAGMA synchronous = NORMAL")
    db.executescript(_SCHEMA)
    return db


def _checksum(key: str, shape: str, data: bytes) -> str:
    return hashlib.sha256(f"{key}{shape}".encode() + data).hexdigest()
