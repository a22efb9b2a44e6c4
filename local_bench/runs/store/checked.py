"""Which ledgers this process has already checked, so that a command that opens a large one several times reads all of
its rows once."""

import os
import sqlite3
from collections.abc import Collection
from pathlib import Path

_HEADER_BYTES = 100
_FileState = tuple[object, ...]
_checked: dict[str, tuple[_FileState, frozenset[str]]] = {}
"""Path -> the state of the checked file, and the tables that this process has written since it was checked."""


def file_state(path: Path) -> _FileState | None:
    """A value that changes with the file: its identity, size, times and SQLite's header with its counter of commits.
    None where a transaction is unfinished."""
    if any(os.path.lexists(f"{path}{end}") for end in ("-journal", "-wal")):
        return None
    with path.open("rb") as file:
        of = os.fstat(file.fileno())
        return of.st_dev, of.st_ino, of.st_size, of.st_mtime_ns, of.st_ctime_ns, file.read(_HEADER_BYTES)


def unchanged_tables(path: Path, tables: Collection[str]) -> frozenset[str]:
    """The tables whose rows have been checked since they were last written."""
    state, written = _checked.get(os.path.realpath(path), (None, frozenset()))
    return frozenset(tables) - written if state is not None and state == file_state(path) else frozenset()


def remember(path: Path, state: _FileState | None, written: Collection[str]) -> None:
    """Store that the file in this state has been checked, and that only `written` tables have been written since."""
    if state is None:
        _checked.pop(os.path.realpath(path), None)
    else:
        _checked[os.path.realpath(path)] = state, frozenset(written)


def commits_of_others(db: sqlite3.Connection) -> int:
    """A number that changes when another connection commits."""
    return int(db.execute("PRAGMA data_version").fetchone()[0])
