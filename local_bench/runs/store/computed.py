"""Results computed from stored rows, which are kept until the rows change."""

import sqlite3
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from local_bench.runs.store.checked import FileState, commits_of_others

T = TypeVar("T")


class _Result(NamedTuple):
    value: Any
    tables: tuple[str, ...] | None
    """Those that it depends on; None for all."""
    at: tuple[int, ...]
    """`Computed._writes` before it was computed."""


class _Kept(NamedTuple):
    """The results of a file that has been closed in a state."""

    path: Path
    state: FileState
    results: Mapping[object, _Result]


_kept: list[_Kept] = []
"""At most one, for the large file that this process closed last: a command that settles a run opens it again for the
report."""


class Computed:
    """The results of one open database."""

    def __init__(self) -> None:
        self.n_writes: Counter[str] = Counter()
        """Table -> number of statements that wrote it since the database was opened."""
        self._results: dict[object, _Result] = {}

    def once(self, db: sqlite3.Connection, key: object, compute: Callable[[], T], tables: tuple[str, ...] | None) -> T:
        """The stored result for `key`, computed if there is none or if `tables` have been written since."""
        found = self._results.get(key)
        if found is None or found.at != self._writes(db, tables):
            at = self._writes(db, tables)
            found = self._results[key] = _Result(compute(), tables, at)
        value: T = found.value
        return value

    def keep(self, db: sqlite3.Connection, path: Path, state: FileState) -> None:
        """Keep the valid results of a file in this state."""
        results = {key: of for key, of in self._results.items() if of.at == self._writes(db, of.tables)}
        _kept[:] = [_Kept(path.resolve(), state, results)]

    def take(self, db: sqlite3.Connection, path: Path, state: FileState) -> None:
        """Take over the results that have been kept of the file in this state."""
        for kept in _kept:
            if (kept.path, kept.state) == (path.resolve(), state):
                self._results = {key: of._replace(at=self._writes(db, of.tables)) for key, of in kept.results.items()}

    def _writes(self, db: sqlite3.Connection, tables: tuple[str, ...] | None) -> tuple[int, ...]:
        """Numbers that change when another connection commits or when these tables, or any, are written."""
        own = (db.total_changes,) if tables is None else (self.n_writes[table] for table in tables)
        return (commits_of_others(db), *own)
