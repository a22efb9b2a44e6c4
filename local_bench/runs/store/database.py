"""The SQLite file of a run, with one writer: opening, migration, transactions, errors and backups."""

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

from local_bench.core.environment import paused
from local_bench.core.errors import LedgerDamaged, LedgerError, StorageError, UserError
from local_bench.core.files import is_file, put_in_place, require_regular, storage_errors, transaction
from local_bench.runs.store.schema import (
    INDEXES,
    MIGRATIONS,
    SCHEMA,
    VERSION,
    fault_of_definitions,
    fault_of_schema,
    faults_of_rows,
    limit,
    statements,
    tables,
    tables_of_schema,
)

_WRITTEN = re.compile(
    r"\s*(?:(?:INSERT(?:\s+OR\s+\w+)?|REPLACE)\s+INTO|UPDATE(?:\s+OR\s+\w+)?|DELETE\s+FROM)\s+(?!temp\.)(\w+)",
    re.IGNORECASE,
)
"""Matches a statement that writes a table of the file."""
_ROW = re.compile(r"(?<=VALUES )\(\?(?:, \?)*\)")
"""Matches the row of an INSERT statement."""
_VALUES_AT_ONCE = 900
"""Values in one INSERT statement of several rows, which takes half the time of as many statements of one row."""
LEDGER, BACKUP = "ledger.sqlite", "ledger.backup.sqlite"
_CHECKED_BYTES = 256_000_000
"""The structure of larger files and some conditions of their rows are not checked when they are opened, which takes
20 s for 2 GB; `verify` does it."""
_CHUNK = 500
"""Rows that are fetched at a time."""
T = TypeVar("T")


class _Mean(list[float]):
    """SQL's avg(), rounded once, so that it does not depend on the order of the rows."""

    step = list.append

    def finalize(self) -> Any:
        return mean(known) if (known := [value for value in self if value is not None]) else None


class Database:
    """The run's SQLite file. Errors of the file or the disk are raised as LedgerError or StorageError."""

    def __init__(self, path: Path, *, create: bool = False, write: bool = False, view: bool = False) -> None:
        """As `Store`."""
        self.path = path
        self.written: set[str] = set()
        """Tables written since this was opened, or since the last record of contents."""
        self._view = False
        """Whether only decisions may be written."""
        self._results: dict[object, tuple[tuple[int, ...], Any]] = {}
        if not create and not is_file(path):
            raise self.damaged("is missing although its run has begun")
        for side in (path, *(path.with_name(path.name + end) for end in ("-journal", "-wal", "-shm"))):
            if os.path.lexists(side):
                require_regular(side, UserError, "a ledger is a regular file: restore it")
        with self.faults():
            self._db = self._connected(str(path))
            self._check(fault_of_schema(self._db), "is not a ledger")
            if not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                if not create:
                    raise self.damaged("is empty although its run has begun")
                with self.transaction():
                    self._execute_all(SCHEMA)
                    self.write("INSERT INTO meta VALUES ('version', ?)", VERSION)
            self._migrate(in_place=write or create)
            present = tables(self._db)
            missing = next((t for t, columns in tables_of_schema().items() if not columns <= present.get(t, set())), 0)
            if missing:
                raise self.damaged(f"is damaged (it lacks the table {missing!r})")
            self._check(fault_of_definitions(self._db))
            large = path.stat().st_size > _CHECKED_BYTES
            faults = faults_of_rows(self._db, whole=False) if large else self.integrity_faults(quick=True)
            self._check(next(faults, None))
            if view:
                self._set_decisions_aside()
                self._view = True
            if write or create:
                self._db.execute(INDEXES)

    @staticmethod
    def _connected(path: str) -> sqlite3.Connection:
        db = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA synchronous = FULL")
        db.create_aggregate("exact_avg", 1, _Mean)
        limit(db)
        return db

    def _check(self, fault: str | None, what: str = "is damaged or forged") -> None:
        if fault:
            raise self.damaged(f"{what} ({fault})")

    def integrity_faults(self, *, quick: bool = False) -> Iterator[str]:
        """Faults of the file's structure, of the values of its rows and of their references. `quick`: without
        comparing the indexes with the rows."""
        with self.faults():
            check = "quick_check(1)" if quick else "integrity_check(20)"
            for (text,) in self._db.execute(f"PRAGMA {check}"):
                if text != "ok":
                    yield text
            yield from faults_of_rows(self._db)

    def _migrate(self, in_place: bool) -> None:
        has_version = tables(self._db).get("meta", set()) >= {"key", "value"}
        version = self.value("SELECT value FROM meta WHERE key = 'version'") if has_version else None
        if version is None:
            raise self.damaged("is damaged (it lacks its version)")
        if version == VERSION:
            return
        if version not in MIGRATIONS:
            raise LedgerError(
                f"{self.path} is of version {version}, and this release knows versions up to {VERSION}: open it with "
                "the release that created it"
            )
        if not in_place:
            stored, self._db = self._db, self._connected(":memory:")
            stored.backup(self._db)
            stored.close()
        self._db.execute("PRAGMA foreign_keys = OFF")  # tables are replaced; only outside a transaction
        with self.transaction():
            while version != VERSION:
                version, script = MIGRATIONS[version]
                self._execute_all(script)
            self.write("UPDATE meta SET value = ? WHERE key = 'version'", VERSION)
        self._db.execute("PRAGMA foreign_keys = ON")

    def _set_decisions_aside(self) -> None:
        """Let every query use a temporary copy of the decisions in place of the stored ones."""
        self._db.execute(
            """CREATE TEMP TABLE decisions (work_id TEXT PRIMARY KEY, accepted INTEGER, unscored TEXT,
                 price_micro_usd INTEGER NOT NULL) WITHOUT ROWID"""
        )
        self._db.execute(
            "INSERT INTO temp.decisions SELECT work_id, accepted, unscored, price_micro_usd FROM main.decisions"
        )

    def _execute_all(self, script: str) -> None:
        self.written |= tables(self._db).keys()
        for statement in statements(script):
            self._db.execute(statement)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all writes of the block, or none."""
        with self.faults(), transaction(self._db, "BEGIN" if self._view else "BEGIN IMMEDIATE"):
            yield

    def once(self, key: object, compute: Callable[[], T]) -> T:
        """The result of `compute`, which depends on `key` and on the rows: computed again only after a write. The
        result is shared, so that it must not be changed."""
        writes = self._db.total_changes, int(self.value("PRAGMA data_version"))
        stamp, result = self._results.get(key, ((), None))
        if stamp != writes:
            result = compute()
            self._results[key] = writes, result
        computed: T = result
        return computed

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self.faults():
            return self._db.execute(query, values).fetchall()

    def value(self, query: str, *values: Any) -> Any:
        """The first column of the first row; None without rows."""
        rows = self.rows(query, *values)
        return rows[0][0] if rows else None

    def chunks(self, query: str, *values: Any) -> Iterator[list[tuple[Any, ...]]]:
        """Rows as plain tuples, some hundreds at a time, read as needed."""
        with self.faults():
            cursor = self._cursor(query, values)
            while rows := cursor.fetchmany(_CHUNK):
                yield rows

    def columns(self, query: str, *values: Any) -> dict[str, tuple[Any, ...]]:
        """All rows as columns by name."""
        with self.faults(), paused():  # millions of tuples without a cycle: the collector doubles the time
            cursor = self._cursor(query, values)
            rows = cursor.fetchall()
            names = [column[0] for column in cursor.description]
            return dict(zip(names, zip(*rows, strict=True) if rows else [()] * len(names), strict=True))

    def _cursor(self, query: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
        cursor = self._db.cursor()
        cursor.row_factory = None
        return cursor.execute(query, values)

    def write(self, statement: str, *values: Any) -> None:
        self._note_written(statement)
        with self.faults():
            self._db.execute(statement, values)

    def write_many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self._note_written(statement)
        with self.faults():
            row = _ROW.search(statement)
            if row:
                n, left = max(1, _VALUES_AT_ONCE // row[0].count("?")), iter(rows)
                of_several = f"{statement[: row.start()]}{', '.join([row[0]] * n)}{statement[row.end() :]}"
                while len(rows := list(islice(left, n))) == n:
                    self._db.execute(of_several, list(chain.from_iterable(rows)))
            self._db.executemany(statement, rows)

    def _note_written(self, statement: str) -> None:
        match = _WRITTEN.match(statement)
        if match:
            assert not self._view or match[1].lower() == "decisions", statement
            self.written.add(match[1].lower())

    def backup(self, keep_former: Callable[[Path], bool]) -> None:
        """Copy the committed state to `ledger.backup.sqlite`, atomically. An earlier backup is replaced, or kept as
        `ledger.backup.N.sqlite` where `keep_former` of its path is true."""
        target = self.path.with_name(BACKUP)
        scratch = target.with_name(f".{BACKUP}")
        with storage_errors(target):
            scratch.unlink(missing_ok=True)
        self.write("VACUUM INTO CAST(? AS TEXT)", os.fsencode(scratch))  # a path may be no UTF-8
        if target.exists() and keep_former(target):
            with storage_errors(target):
                target.rename(free_name(self.path.parent, "ledger.backup.{}.sqlite"))
        put_in_place(scratch, target)

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Raise SQLite's errors as LedgerError or StorageError."""
        try:
            yield
        except sqlite3.IntegrityError:
            raise  # a bug of local-bench
        except sqlite3.OperationalError as e:
            text = str(e)
            if "full" in text or "disk I/O" in text or "readonly" in text or "unable to open" in text:
                raise StorageError(
                    f"cannot write {self.path}: {text}; free disk space or fix its permissions and run the same "
                    "command again; committed results are kept"
                ) from e
            if "locked" in text or "locking" in text:
                raise LedgerError(f"{self.path} is locked by another process: wait for it to end") from e
            raise self.damaged(f"is damaged ({text})") from e
        except sqlite3.DatabaseError as e:
            raise self.damaged(f"is damaged ({e})") from e

    def damaged(self, what: str) -> LedgerDamaged:
        """The error of a file that cannot be used, with the remedy."""
        folder = self.path.parent
        available = backups(folder)
        remedy = (
            f"`local-bench recover {folder}` restores the state after the last finished phase from {available[0].name}"
            if available
            else "there is no backup of it: move the folder away and run the same command again to start over"
        )
        return LedgerDamaged(f"{self.path} {what}: {remedy}")


def backups(folder: Path) -> list[Path]:
    """The backups in a run directory, the latest first."""
    older = {int(n): p for p in folder.glob("ledger.backup.*.sqlite") if (n := p.name.split(".")[2]).isdecimal()}
    latest = [path for path in (folder / BACKUP,) if path.exists()]
    return latest + [older[n] for n in sorted(older, reverse=True)]


def free_name(folder: Path, pattern: str) -> Path:
    """`pattern` with the number after the highest in use; side files (`-journal`) count too."""
    before, after = pattern.split("{}")
    used = [p.name.removeprefix(before).split(after)[0] for p in folder.glob(f"{before}*{after}*")]
    return folder / pattern.format(1 + max((int(n) for n in used if n.isdecimal()), default=0))
