"""The SQLite file of a run, with one writer: its tables, what a file must satisfy, opening, migration from earlier
versions, transactions, errors and backups."""

import os
import re
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from statistics import mean
from typing import Any, TypeVar

from local_bench.core.environment import paused
from local_bench.core.errors import LedgerDamaged, LedgerError, StorageError, UserError
from local_bench.core.files import refused, require_regular, transaction
from local_bench.core.types import MAX_SCORE

T = TypeVar("T")
VERSION = "4"
SCHEMA = """
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE tasks (
  task_id TEXT PRIMARY KEY, position INTEGER NOT NULL, category TEXT NOT NULL, price_micro_usd INTEGER NOT NULL,
  content TEXT NOT NULL, unscored TEXT) STRICT;
CREATE TABLE candidates (
  work_id TEXT PRIMARY KEY, position INTEGER NOT NULL, task_id TEXT NOT NULL REFERENCES tasks,
  deliverable INTEGER NOT NULL, model TEXT NOT NULL,
  attempt INTEGER NOT NULL, prompt TEXT NOT NULL, work TEXT NOT NULL, seed INTEGER NOT NULL,
  height INTEGER, width INTEGER,
  state TEXT NOT NULL DEFAULT 'planned' CHECK (state IN ('planned', 'done', 'unscored')),
  identity TEXT, pixels_sha256 TEXT, unscored TEXT,
  batch_size INTEGER, truncated TEXT, cost_micro_usd INTEGER,
  UNIQUE (task_id, deliverable, model, attempt)) STRICT;
CREATE TABLE verdicts (
  work_id TEXT NOT NULL REFERENCES candidates, rubric TEXT NOT NULL, point INTEGER NOT NULL, repeat INTEGER NOT NULL,
  question_id TEXT NOT NULL, rubric_sha256 TEXT NOT NULL, judge TEXT NOT NULL,
  answer TEXT, labels TEXT, unscored TEXT, raw TEXT NOT NULL,
  PRIMARY KEY (work_id, judge, rubric, point, repeat), CHECK ((answer IS NULL) <> (unscored IS NULL))) STRICT;
CREATE TABLE retests (
  work_id TEXT NOT NULL REFERENCES candidates, rubric TEXT NOT NULL, point INTEGER NOT NULL, repeat INTEGER NOT NULL,
  judge TEXT NOT NULL, round INTEGER NOT NULL, question_id TEXT NOT NULL,
  answer TEXT, labels TEXT, unscored TEXT, raw TEXT NOT NULL,
  PRIMARY KEY (work_id, judge, rubric, point, repeat, round),
  CHECK ((answer IS NULL) <> (unscored IS NULL))) STRICT;
CREATE TABLE scores (
  work_id TEXT NOT NULL REFERENCES candidates, name TEXT NOT NULL,
  kind TEXT NOT NULL CHECK (kind IN ('metric', 'judge')),
  value REAL, unscored TEXT, applies INTEGER NOT NULL DEFAULT 1, spread REAL, PRIMARY KEY (work_id, name),
  CHECK ((value IS NOT NULL) + (unscored IS NOT NULL) + (applies = 0) = 1)) STRICT, WITHOUT ROWID;
CREATE TABLE decisions (
  work_id TEXT PRIMARY KEY REFERENCES candidates, accepted INTEGER, unscored TEXT, price_micro_usd INTEGER NOT NULL,
  CHECK ((accepted IS NULL) <> (unscored IS NULL))) STRICT, WITHOUT ROWID;
CREATE TABLE sessions (
  session INTEGER PRIMARY KEY, started_utc TEXT NOT NULL, device TEXT NOT NULL, held_ns INTEGER NOT NULL DEFAULT 0,
  ended TEXT) STRICT;
CREATE TABLE meter (
  session INTEGER NOT NULL REFERENCES sessions, t0_ns INTEGER NOT NULL, t1_ns INTEGER NOT NULL, phase TEXT NOT NULL,
  model TEXT, n_items INTEGER NOT NULL, energy_mj INTEGER, PRIMARY KEY (session, t0_ns), CHECK (t1_ns >= t0_ns)) STRICT;
CREATE TABLE contents (
  kind TEXT NOT NULL, key TEXT NOT NULL, sha256 TEXT NOT NULL, PRIMARY KEY (kind, key)) STRICT, WITHOUT ROWID;
"""
"""Many short rows that are read in the order of their key are stored in that order (`WITHOUT ROWID`); tables of earlier
releases that are not are read all the same."""
INDEXES = """
CREATE INDEX IF NOT EXISTS candidates_results ON candidates
  (work_id, task_id, model, deliverable, attempt, state, pixels_sha256, unscored);
"""
"""Speeds up reading results in identity order; a run without it is read all the same."""


def statements(script: str) -> list[str]:
    """The single statements of `script`."""
    return [statement for part in script.split(";\n") if (statement := part.strip())]


_CREATE = {statement.split()[2]: statement for statement in statements(SCHEMA)}
"""Table -> the statement that makes it."""
MIGRATIONS: dict[str, tuple[str, str]] = {
    # Version 2 had one judge and one answer per question.
    "2": (
        "3",
        f"""
ALTER TABLE verdicts RENAME TO old_verdicts;
{_CREATE["verdicts"]};
INSERT INTO verdicts SELECT work_id, rubric, point, 0, question_id, rubric_sha256, judge, answer, NULL, unscored, raw
  FROM old_verdicts;
DROP TABLE old_verdicts;
{_CREATE["retests"]};
ALTER TABLE scores ADD COLUMN spread REAL;
""",
    ),
    # Version 3 had no digests of rows.
    "3": (
        "4",
        """
CREATE TABLE contents (
  kind TEXT NOT NULL, key TEXT NOT NULL, sha256 TEXT NOT NULL, PRIMARY KEY (kind, key)) STRICT;
""",
    ),
}
"""Version -> (next version, SQL statements)."""


@cache
def of_schema() -> "dict[str, _Definition]":
    """The definitions of a new ledger's tables."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        return _definitions(db)


def tables(definitions: "dict[str, _Definition]") -> dict[str, set[str]]:
    """The columns of every table."""
    return {table: {name for name, *_ in columns} for table, (_, columns, _) in definitions.items()}


# ---- what a file must satisfy before a row of it is used: it may come from someone else

MAX_VALUE_BYTES = 64_000_000
_MAX_MICRO_USD = 10**15
_MAX_NS = 10**18


def _no_nul(*columns: str) -> str:
    """Keys without U+0000, at which JSON values of a query end."""
    return " AND ".join(f"instr({column}, char(0)) = 0" for column in columns)


def _name(column: str, more: str = "") -> str:
    """A safe id (core.paths.is_safe_id), with the characters `more`."""
    return (
        f"length({column}) BETWEEN 1 AND 160 AND {column} GLOB '[A-Za-z0-9]*' "
        f"AND {column} NOT GLOB '*[^A-Za-z0-9._{more}-]*' AND instr({column}, '..') = 0 AND {_no_nul(column)}"
    )


_ANSWERED = (
    f"(answer IS NULL) <> (unscored IS NULL) AND point >= 0 AND repeat >= 0 AND {_no_nul('work_id', 'rubric', 'judge')}"
)
CONDITIONS: dict[str, str] = {
    "tasks": f"position >= 0 AND price_micro_usd BETWEEN 0 AND {_MAX_MICRO_USD} AND {_name('task_id')}",
    "candidates": "position >= 0 AND deliverable BETWEEN 1 AND 1000000 AND attempt BETWEEN 1 AND 1000000 "
    f"AND {_name('model', '+:')} AND {_no_nul('work_id')} AND state IN ('planned', 'done', 'unscored') "
    "AND (state <> 'done' OR pixels_sha256 IS NOT NULL) "
    "AND (height IS NULL OR height BETWEEN 1 AND 100000) AND (width IS NULL OR width BETWEEN 1 AND 100000) "
    "AND (batch_size IS NULL OR batch_size BETWEEN 1 AND 100000) "
    f"AND (cost_micro_usd IS NULL OR cost_micro_usd BETWEEN 0 AND {_MAX_MICRO_USD})",
    "verdicts": _ANSWERED,
    "retests": f"{_ANSWERED} AND round >= 0",
    "scores": f"{_no_nul('work_id', 'name')} AND kind IN ('metric', 'judge') AND applies IN (0, 1) "
    "AND (value IS NOT NULL) + (unscored IS NOT NULL) + (applies = 0) = 1 "
    f"AND (value IS NULL OR value BETWEEN -{MAX_SCORE} AND {MAX_SCORE}) "
    f"AND (spread IS NULL OR spread BETWEEN 0 AND {MAX_SCORE})",
    "decisions": "(accepted IS NULL) <> (unscored IS NULL) AND (accepted IS NULL OR accepted IN (0, 1)) "
    f"AND price_micro_usd BETWEEN 0 AND {_MAX_MICRO_USD}",
    "sessions": f"session >= 0 AND held_ns BETWEEN 0 AND {_MAX_NS}",
    "meter": f"t0_ns BETWEEN 0 AND {_MAX_NS} AND t1_ns BETWEEN t0_ns AND {_MAX_NS} AND n_items >= 0 "
    "AND (energy_mj IS NULL OR energy_mj >= 0)",
}
"""Table -> what every row of it satisfies: the schema's own checks, which a forged table lacks, and the range of every
number that money, time and paths are computed from."""


def fault_of_schema(db: sqlite3.Connection) -> str | None:
    """Why a database is no ledger at all: it has something else than tables and their indexes, such as a view that
    never ends. None if nothing is; checked before the first query."""
    row = db.execute(
        """SELECT iif(type = 'table', 'virtual table', type), name FROM sqlite_master
           WHERE type NOT IN ('table', 'index') OR (type = 'table' AND sql LIKE 'CREATE VIRTUAL%') LIMIT 1"""
    ).fetchone()
    return None if row is None else f"it has the {row[0]} {str(row[1])[:60]!r}, which no release writes"


def fault_of_definitions(db: sqlite3.Connection) -> str | None:
    """The first table whose columns, types or keys differ from the schema's, or which has a collation, so that equal
    and ordered texts would be others in SQL than in Python; None if there is none. SQLite keeps a database's own
    definitions, so that a forged file can lack every type and key of the schema."""
    stored = _definitions(db)
    differs = next((table for table, entry in of_schema().items() if stored.get(table) != entry), None)
    if differs is not None:
        return f"the table {differs!r} has other columns, types or keys"
    row = db.execute("SELECT name FROM sqlite_master WHERE sql LIKE '%COLLATE%' LIMIT 1").fetchone()
    return None if row is None else f"the table {str(row[0])[:60]!r} compares texts in another way"


_DIGEST = "pixels_sha256 IS NULL OR (length(pixels_sha256) = 64 AND pixels_sha256 NOT GLOB '*[^0-9a-f]*')"


def faults_of_rows(db: sqlite3.Connection, *, whole: bool = True) -> Iterator[str]:
    """Tables with values out of range, and rows that refer to one that does not exist. Without `whole`, digests of
    pixels are not checked, which `core.images.image_path` does where they are used, and of the references only those to
    tasks are."""
    for table, condition in CONDITIONS.items():
        checked = f"({condition}) AND ({_DIGEST})" if table == "candidates" and whole else condition
        if db.execute(f"SELECT 1 FROM {table} WHERE ({checked}) IS NOT TRUE LIMIT 1").fetchone():
            yield f"the table {table!r} has values that no release writes"
    for row in db.execute("PRAGMA foreign_key_check" if whole else "PRAGMA foreign_key_check(candidates)"):
        yield f"row {row[1]} of {row[0]} belongs to a row of {row[2]} that does not exist"


_Definition = tuple[bool, frozenset[tuple[str, str, int, int, int]], frozenset[tuple[str, ...]]]
"""Whether the table is strict, its columns, and the columns of each unique key."""


def _definitions(db: sqlite3.Connection) -> dict[str, _Definition]:
    strict = {row[1]: bool(row[5]) for row in db.execute("PRAGMA table_list") if row[0] == "main"}
    return {
        table: (
            is_strict,
            frozenset((c[1], c[2].upper(), c[3], c[5], c[6]) for c in db.execute(f"PRAGMA table_xinfo({table})")),
            frozenset(
                tuple(c[2] for c in db.execute("SELECT * FROM pragma_index_info(?)", (index[1],)))
                for index in db.execute(f"PRAGMA index_list({table})").fetchall()
                if index[2] and not index[4]
            ),
        )
        for table, is_strict in strict.items()
        if table.isidentifier() and not table.startswith("sqlite_")
    }


# ---- the file

_WRITTEN = re.compile(
    r"\s*(?:(?:INSERT(?:\s+OR\s+\w+)?|REPLACE)\s+INTO|UPDATE(?:\s+OR\s+\w+)?|DELETE\s+FROM)\s+(?!temp\.)(\w+)",
    re.IGNORECASE,
)
"""Matches a statement that writes a table of the file."""
LEDGER, BACKUP = "ledger.sqlite", "ledger.backup.sqlite"
_CHECKED_BYTES = 256_000_000
"""The structure of larger files and some conditions of their rows are not checked when they are opened, which takes
20 s for 2 GB; `verify` does it."""
_CHUNK = 500
"""Rows that are fetched at a time."""


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
        if not create and not os.path.isfile(path):
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
                    for statement in statements(SCHEMA):
                        self._db.execute(statement)
                    self.write("INSERT INTO meta VALUES ('version', ?)", VERSION)
            self._migrate(in_place=write or create)
            present = tables(_definitions(self._db))
            lacking = [t for t, columns in tables(of_schema()).items() if not columns <= present.get(t, set())]
            self._check(f"it lacks the table {lacking[0]!r}" if lacking else None, "is damaged")
            self._check(fault_of_definitions(self._db))
            large = path.stat().st_size > _CHECKED_BYTES
            faults = faults_of_rows(self._db, whole=False) if large else self.integrity_faults(quick=True)
            self._check(next(faults, None))
            if view:  # every query uses a temporary copy of the decisions in place of the stored ones
                self._db.execute(
                    """CREATE TEMP TABLE decisions (work_id TEXT PRIMARY KEY, accepted INTEGER, unscored TEXT,
                         price_micro_usd INTEGER NOT NULL) WITHOUT ROWID"""
                )
                self._db.execute(
                    "INSERT INTO temp.decisions SELECT work_id, accepted, unscored, price_micro_usd FROM main.decisions"
                )
                self._view = True
            if write or create:
                self._db.execute(INDEXES)
            self._opened = self.value("PRAGMA data_version")

    @staticmethod
    def _connected(path: str) -> sqlite3.Connection:
        db = sqlite3.connect(path, isolation_level=None, timeout=30, check_same_thread=False)
        db.row_factory = sqlite3.Row
        db.execute("PRAGMA foreign_keys = ON")
        db.execute("PRAGMA synchronous = FULL")
        db.create_aggregate("exact_avg", 1, _Mean)
        db.execute("PRAGMA trusted_schema = OFF")  # it may come from someone else
        db.execute("PRAGMA cell_size_check = ON")
        db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)
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
        has_version = tables(_definitions(self._db)).get("meta", set()) >= {"key", "value"}
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
            self.written |= tables(_definitions(self._db)).keys()
            while version != VERSION:
                version, script = MIGRATIONS[version]
                for statement in statements(script):
                    self._db.execute(statement)
            self.write("UPDATE meta SET value = ? WHERE key = 'version'", VERSION)
        self._db.execute("PRAGMA foreign_keys = ON")

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Commit all writes of the block, or none."""
        with self.faults(), transaction(self._db, "BEGIN" if self._view else "BEGIN IMMEDIATE"):
            yield

    def written_by_others(self) -> bool:
        """Whether another process has committed since this was opened."""
        return bool(self.value("PRAGMA data_version") != self._opened)

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
            self._db.executemany(statement, rows)

    def _note_written(self, statement: str) -> None:
        match = _WRITTEN.match(statement)
        if match:
            assert not self._view or match[1].lower() == "decisions", statement
            self.written.add(match[1].lower())

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
                raise StorageError(f"cannot write {self.path}: {refused(text)}; committed results are kept") from e
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
