"""The SQLite file of a run, with one writer: opening, transactions, errors, key-value data (`meta`) and backups."""

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import chain, islice
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from local_bench.core import strictjson
from local_bench.core.errors import LedgerDamaged, LedgerError, StorageError, UserError
from local_bench.core.files import is_file, require_regular
from local_bench.core.storage import put_in_place, storage_errors
from local_bench.core.transactions import transaction
from local_bench.runs.store.checked import commits_of_others, file_state, remember, unchanged_tables
from local_bench.runs.store.computed import Computed
from local_bench.runs.store.constraints import (
    CONDITIONS,
    checks_of_rows,
    fault_of_definitions,
    fault_of_references,
    fault_of_schema,
    limit,
)
from local_bench.runs.store.notes import fault_of_note
from local_bench.runs.store.readers import Query, at_once
from local_bench.runs.store.schema import INDEXES, MIGRATIONS, SCHEMA, VERSION, statements, tables, tables_of_schema

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
"""The structure of larger files is not checked when they are opened, which takes 20 s for 2 GB; `verify` does it. Their
rows are read by several connections at once (`store.readers`)."""
_CACHE_KIB = 8_192
"""Of a connection. A larger one slows reading down: what it holds is not read again, and does not fit the processor's
cache."""
_CHUNK = 500
"""Rows that are fetched at a time; more of them do not fit the processor's cache, which takes a third longer."""


T = TypeVar("T")


class Committed(NamedTuple):
    """Numbers of finished items in a store."""

    candidates: int
    """Generated or unscored."""
    verdicts: int
    retests: int
    scores: int
    """With a value."""


class Database:
    """The run's SQLite file. Errors of the file or the disk are raised as LedgerError or StorageError."""

    def __init__(self, path: Path, *, create: bool = False, write: bool = False, view: bool = False) -> None:
        """Open `path`. LedgerDamaged if it is missing, empty, damaged or lacks a table, LedgerError if its version is
        unknown to this release.

        With `create` a missing or empty file is created; use it only for a run that has not begun. A file of an earlier
        version is migrated: in place with `write`, else in memory, so that reading does not change it. With `view` only
        decisions may be written, and the file is not changed: a small file is copied, of a large one the decisions.
        """
        self.path = path
        self.written: set[str] = set()
        """Tables written since this was opened, or since the last record of contents."""
        self._writable: frozenset[str] | None = None
        """The tables that may be written; None for all."""
        self._computed = Computed()
        self._not_checked: frozenset[str] = frozenset()
        """Tables whose rows have been checked by an earlier command only."""
        self._checked: int | None = None
        """`commits_of_others` when all rows had been checked; None for a small file or one in memory."""
        if not create and not is_file(path):
            raise self._damaged("is missing although its run has begun")
        for side in (path, *(path.with_name(path.name + end) for end in ("-journal", "-wal", "-shm"))):
            if os.path.lexists(side):
                require_regular(side, UserError, "a ledger is a regular file: restore it")
        with self._faults():
            opened = self._db = self._connected(str(path))
            strange = fault_of_schema(self._db)
            if strange:
                raise self._damaged(f"is not a ledger ({strange})")
            if not self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                if not create:
                    raise self._damaged("is empty although its run has begun")
                with self.transaction():
                    self._execute_all(SCHEMA)
                    self.set_meta("version", VERSION)
            self._large = path.stat().st_size > _CHECKED_BYTES
            if view and not self._large:
                self._copy_to_memory()
            self._migrate(write or create or self._db is not opened)
            found = tables(self._db)
            missing = next(
                (name for name, columns in tables_of_schema().items() if not columns <= found.get(name, set())), None
            )
            if missing:
                raise self._damaged(f"is damaged (it lacks the table {missing!r})")
            self._in_file = self._db is opened
            self._check_rows()
            if view:
                self._set_decisions_aside()
            if write or create:
                self._db.execute(INDEXES)

    def _check_rows(self) -> None:
        """Check all rows; of a large file those that this process has not checked yet."""
        if not self._large:
            damage = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if damage != "ok":
                raise sqlite3.DatabaseError(damage)
        others = commits_of_others(self._db)
        state = file_state(self.path) if self._large else None
        unchanged = unchanged_tables(self.path, CONDITIONS) if self._large and self._in_file else frozenset()
        strange = fault_of_definitions(self._db) or next(filter(None, self._at_once(checks_of_rows(unchanged))), None)
        if not strange and not self._large:
            strange = fault_of_references(self._db)
        if strange:
            raise self._damaged(f"is damaged or forged ({strange})")
        self._not_checked = unchanged
        if state is not None and self._in_file and state == file_state(self.path):
            remember(self.path, state, ())
            self._checked = others
            self._computed.take(self._db, self.path, state)

    def _at_once(self, queries: Sequence[Query[T]]) -> Iterator[T]:
        """The results of functions that read committed rows; of a large file some run at the same time."""
        if self._large and self._in_file:
            yield from at_once(lambda: self._connected(str(self.path)), queries)
        else:
            yield from (query(self._db) for query in queries)

    @staticmethod
    def _connected(path: str) -> sqlite3.Connection:
        db = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA synchronous = FULL")
        db.execute(f"PRAGMA cache_size = -{_CACHE_KIB}")
        limit(db)
        return db

    def _version(self) -> str:
        version = self.meta("version") if tables(self._db).get("meta", set()) >= {"key", "value"} else None
        if version is None:
            raise self._damaged("is damaged (it lacks its version)")
        return version

    def _migrate(self, in_place: bool) -> None:
        version = self._version()
        if version == VERSION:
            return
        if version not in MIGRATIONS:
            raise LedgerError(
                f"{self.path} is of version {version}, and this release knows versions up to {VERSION}: open it with "
                "the release that created it"
            )
        if not in_place:
            self._copy_to_memory()
        self._db.execute("PRAGMA foreign_keys = OFF")  # tables are replaced; only outside a transaction
        with self.transaction():
            while version != VERSION:
                version, script = MIGRATIONS[version]
                self._execute_all(script)
            self.set_meta("version", VERSION)
        self._db.execute("PRAGMA foreign_keys = ON")

    def _copy_to_memory(self) -> None:
        stored, self._db = self._db, self._connected(":memory:")
        stored.backup(self._db)
        stored.close()

    def _set_decisions_aside(self) -> None:
        """Let every query use a temporary copy of the decisions in place of the stored ones."""
        self._in_file = False  # other connections do not have the copy
        self._writable = frozenset({"decisions"})
        self._db.execute(
            """CREATE TEMP TABLE decisions (work_id TEXT PRIMARY KEY, accepted INTEGER, unscored TEXT,
                 price_micro_usd INTEGER NOT NULL) WITHOUT ROWID"""
        )
        columns = "work_id, accepted, unscored, price_micro_usd"
        self._db.execute(f"INSERT INTO temp.decisions SELECT {columns} FROM main.decisions ORDER BY work_id")

    def _execute_all(self, script: str) -> None:
        self.written |= tables(self._db).keys()
        for statement in statements(script):
            self._db.execute(statement)

    def close(self) -> None:
        if self._checked is not None:
            with suppress(OSError, sqlite3.Error):
                state = file_state(self.path)
                others = commits_of_others(self._db)  # after the state: a commit between them is seen
                state = state if others == self._checked else None
                remember(self.path, state, self._computed.n_writes.keys() & CONDITIONS.keys())
                if state is not None and self._in_file:
                    self._computed.keep(self._db, self.path, state)
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all writes of the block, or none."""
        begin = "BEGIN IMMEDIATE" if self._writable is None else "BEGIN"
        with self._faults(), transaction(self._db, begin):
            yield

    @contextmanager
    def transaction_beside_readers(self) -> Iterator[None]:
        """A transaction during which `_at_once` reads the rows as they were before it. Pages that do not fit the cache
        are not written before the end, for which the readers would have to stop, and keys that refer to other tables
        are not looked up: the caller has read them there."""
        with self._faults(), ExitStack() as restored:
            for pragma in ("cache_spill", "foreign_keys"):
                self._db.execute(f"PRAGMA {pragma} = OFF")
                restored.callback(self._db.execute, f"PRAGMA {pragma} = ON")
            with self.transaction():
                yield

    def once(self, key: object, compute: Callable[[], T], tables: tuple[str, ...] | None = None) -> T:
        """The result of `compute`, which depends on `key` and on the rows of `tables` (None: of all): computed again
        only after a write to them, or one of another process. The result is shared, so that it must not be changed."""
        return self._computed.once(self._db, key, compute, tables)

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._faults():
            return self._db.execute(query, values).fetchall()

    def _stream(self, query: str) -> Iterator[sqlite3.Row]:
        return self._stream_with(query)

    def _stream_with(self, query: str, *values: Any) -> Iterator[sqlite3.Row]:
        with self._faults():
            yield from self._db.execute(query, values)

    def _chunks(self, query: str, *values: Any) -> Iterator[list[tuple[Any, ...]]]:
        """Rows as plain tuples, some hundreds at a time, read as needed."""
        with self._faults():
            cursor = self._db.cursor()
            cursor.row_factory = None
            cursor.execute(query, values)
            while rows := cursor.fetchmany(_CHUNK):
                yield rows

    def write(self, statement: str, *values: Any) -> None:
        self._note_written(statement)
        with self._faults():
            self._db.execute(statement, values)

    def write_many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        self._note_written(statement)
        with self._faults():
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
            table = match[1].lower()
            assert self._writable is None or table in self._writable, statement
            self.written.add(table)
            self._computed.n_writes[table] += 1

    def meta(self, key: str) -> str | None:
        found = self.rows("SELECT value FROM meta WHERE key = ?", key)
        return str(found[0]["value"]) if found else None

    def set_meta(self, key: str, value: str) -> None:
        self.write("INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)

    def json_meta(self, key: str) -> Any:
        """The JSON object stored under `key`, or None. LedgerDamaged if it has another form (`store.notes`)."""
        text = self.meta(key)
        if text is None:
            return None
        value = strictjson.stored(text)
        fault = fault_of_note(key, value)
        if fault:
            raise self._damaged(f"is damaged (its entry {key[:60]!r} {fault})")
        return value

    def _of_judges(self, judge: str | None, counted: bool = True) -> tuple[str, tuple[str, ...]]:
        """A condition on the column `judge` and its values: one judge, or None for all that count in the run; or for
        all others too unless `counted`. Before the judge phase is complete all judges count."""
        names = (judge,) if judge is not None else self.json_meta("judges") if counted else None
        if not isinstance(names, dict | tuple):
            return "TRUE", ()
        return f"judge IN ({', '.join('?' * len(names))})", tuple(names)

    def committed(self) -> Committed:
        """Numbers of finished items now."""
        row = self.rows(
            """SELECT (SELECT count(*) FROM candidates WHERE state <> 'planned'), (SELECT count(*) FROM verdicts),
               (SELECT count(*) FROM retests), (SELECT count(*) FROM scores WHERE value IS NOT NULL)"""
        )[0]
        return Committed(*row)

    def backup(self) -> None:
        """Copy the committed state to `ledger.backup.sqlite`, atomically. An earlier backup with more items of any
        kind (for example because a judge was removed since) is kept as `ledger.backup.N.sqlite`."""
        target = self.path.with_name(BACKUP)
        scratch = target.with_name(f".{BACKUP}")
        with storage_errors(target):
            scratch.unlink(missing_ok=True)
        self.write("VACUUM INTO CAST(? AS TEXT)", os.fsencode(scratch))  # a path may be no UTF-8
        if _has_more(target, self.committed()):
            with storage_errors(target):
                target.rename(free_name(self.path.parent, "ledger.backup.{}.sqlite"))
        put_in_place(scratch, target)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise  # a bug of local-bench
        except sqlite3.OperationalError as e:
            text = str(e)
            if "full" in text or "disk I/O" in text or "readonly" in text or "unable to open" in text:
                raise StorageError(
                    f"cannot write {self.path}: {text}; free disk space or fix its permissions and run the same "
                    "command again; "
                    "committed results are kept"
                ) from e
            if "locked" in text or "locking" in text:
                raise LedgerError(f"{self.path} is locked by another process: wait for it to end") from e
            raise self._damaged(f"is damaged ({text})") from e
        except sqlite3.DatabaseError as e:
            raise self._damaged(f"is damaged ({e})") from e

    def _typed(self, build: Callable[..., T], *parts: Any) -> T:
        try:
            return build(*parts)
        except (AssertionError, TypeError, ValueError):
            raise LedgerError(
                f"{self.path} contains a row that no release of local-bench writes: it was changed by hand; repeat the "
                "run"
            ) from None

    def _damaged(self, what: str) -> LedgerDamaged:
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


def _has_more(backup: Path, now: Committed) -> bool:
    """Whether a usable backup has more items of any kind than `now`; a backup by another release always counts as
    more."""
    if not backup.exists():
        return False
    try:
        earlier = Database(backup)
    except LedgerDamaged:
        return False
    except LedgerError:
        return True
    try:
        return any(before > after for before, after in zip(earlier.committed(), now, strict=True))
    finally:
        earlier.close()
