"""Law 4: the ledger is the truth. One SQLite file a run, one writer; an item is done when its row is committed."""

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from local_bench.core.errors import LedgerDamaged, LedgerError, StorageError
from local_bench.core.storage import put_in_place, storage_errors

VERSION = "3"
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
  CHECK ((value IS NOT NULL) + (unscored IS NOT NULL) + (applies = 0) = 1)) STRICT;
CREATE TABLE decisions (
  work_id TEXT PRIMARY KEY REFERENCES candidates, accepted INTEGER, unscored TEXT, price_micro_usd INTEGER NOT NULL,
  CHECK ((accepted IS NULL) <> (unscored IS NULL))) STRICT;
CREATE TABLE sessions (
  session INTEGER PRIMARY KEY, started_utc TEXT NOT NULL, device TEXT NOT NULL, held_ns INTEGER NOT NULL DEFAULT 0,
  ended TEXT) STRICT;
CREATE TABLE meter (
  session INTEGER NOT NULL REFERENCES sessions, t0_ns INTEGER NOT NULL, t1_ns INTEGER NOT NULL, phase TEXT NOT NULL,
  model TEXT, n_items INTEGER NOT NULL, energy_mj INTEGER, PRIMARY KEY (session, t0_ns), CHECK (t1_ns >= t0_ns)) STRICT;
"""


LEDGER, BACKUP = "ledger.sqlite", "ledger.backup.sqlite"


class Committed(NamedTuple):
    """How much finished work a ledger holds."""

    candidates: int
    """Made or unscored."""
    verdicts: int
    retests: int
    scores: int
    """With a value."""


class Ledger:
    """The run's SQLite file. Every fault of the file or the disk becomes a LedgerError or StorageError."""

    def __init__(self, path: Path, *, create: bool = False) -> None:
        """Opens `path`. LedgerDamaged where it is missing, empty, damaged or lacks a table, LedgerError where it is of
        another version. With `create` a missing or empty one is made: only for a run that has not begun."""
        self.path = path
        if not create and not path.exists():
            raise self._damaged("is missing although its run has begun")
        with self._faults():
            self._db = sqlite3.connect(path, isolation_level=None, timeout=30)
            self._db.row_factory = sqlite3.Row
            self._db.execute("PRAGMA foreign_keys = ON")
            self._db.execute("PRAGMA synchronous = FULL")
            made = self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if not made:
                if not create:
                    raise self._damaged("is empty although its run has begun")
                with self.transaction():
                    for statement in SCHEMA.split(";\n"):
                        self._db.execute(statement)
                    self.set_meta("version", VERSION)
            there = _columns(self._db)
            version = self.meta("version") if there.get("meta", set()) >= {"key", "value"} else None
            if version not in (None, VERSION):
                raise LedgerError(
                    f"{path} is of version {version}, not {VERSION}: open it with the release that made it"
                )
            lacking = next((name for name, columns in _schema().items() if not columns <= there.get(name, set())), None)
            if lacking or version is None:
                raise self._damaged(f"is damaged (it lacks {f'the table {lacking!r}' if lacking else 'its version'})")
            damage = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
            if damage != "ok":
                raise sqlite3.DatabaseError(damage)

    def close(self) -> None:
        self._db.close()

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """All of the block's writes, or none."""
        with self._faults():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield
            except BaseException:
                if self._db.in_transaction:
                    self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def rows(self, query: str, *values: Any) -> list[sqlite3.Row]:
        with self._faults():
            return self._db.execute(query, values).fetchall()

    def write(self, statement: str, *values: Any) -> None:
        with self._faults():
            self._db.execute(statement, values)

    def write_many(self, statement: str, rows: Iterable[tuple[Any, ...]]) -> None:
        with self._faults():
            self._db.executemany(statement, rows)

    def meta(self, key: str) -> str | None:
        found = self.rows("SELECT value FROM meta WHERE key = ?", key)
        return str(found[0]["value"]) if found else None

    def set_meta(self, key: str, value: str) -> None:
        self.write("INSERT INTO meta VALUES (?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value", key, value)

    def json_meta(self, key: str) -> Any:
        """The JSON kept under `key`, or None."""
        text = self.meta(key)
        return None if text is None else json.loads(text)

    def committed(self) -> Committed:
        """How much finished work there is now."""
        row = self.rows(
            """SELECT (SELECT count(*) FROM candidates WHERE state <> 'planned'), (SELECT count(*) FROM verdicts),
               (SELECT count(*) FROM retests), (SELECT count(*) FROM scores WHERE value IS NOT NULL)"""
        )[0]
        return Committed(*row)

    def backup(self) -> None:
        """Copies the committed state to `ledger.backup.sqlite`, whole or not at all. An earlier backup that holds more
        of anything (its judge was taken out since, say) is kept as `ledger.backup.N.sqlite`."""
        target = self.path.with_name(BACKUP)
        scratch = target.with_name(f".{BACKUP}")
        with storage_errors(target):
            scratch.unlink(missing_ok=True)
        self.write("VACUUM INTO ?", str(scratch))
        if _holds_more(target, self.committed()):
            with storage_errors(target):
                target.rename(free_name(self.path.parent, "ledger.backup.{}.sqlite"))
        put_in_place(scratch, target)

    @contextmanager
    def _faults(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.IntegrityError:
            raise  # a fault of ours
        except sqlite3.OperationalError as e:
            text = str(e)
            if "full" in text or "disk I/O" in text or "readonly" in text or "unable to open" in text:
                raise StorageError(
                    f"cannot write {self.path}: {text}; make room or rights there and run the same command again, "
                    "what was committed is kept"
                ) from e
            if "locked" in text:
                raise LedgerError(f"{self.path} is held by another process: wait for it to end") from e
            if "malformed" in text or "decode to UTF-8" in text:
                raise self._damaged(f"is damaged ({text})") from e
            raise
        except sqlite3.DatabaseError as e:
            raise self._damaged(f"is damaged ({e})") from e

    def _damaged(self, what: str) -> LedgerDamaged:
        folder = self.path.parent
        held = backups(folder)
        way_out = (
            f"`local-bench recover {folder}` restores the state after the last finished phase from {held[0].name}"
            if held
            else "there is no backup of it: move the folder away and run the same command again to begin anew"
        )
        return LedgerDamaged(f"{self.path} {what}: {way_out}")


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


def _holds_more(backup: Path, now: Committed) -> bool:
    """Whether a usable backup holds more than `now` of anything; one of another release is never given up."""
    if not backup.exists():
        return False
    try:
        earlier = Ledger(backup)
    except LedgerDamaged:
        return False
    except LedgerError:
        return True
    try:
        return any(before > after for before, after in zip(earlier.committed(), now, strict=True))
    finally:
        earlier.close()


@cache
def _schema() -> dict[str, set[str]]:
    """The columns of every table that a ledger must have."""
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(SCHEMA)
        return _columns(db)
    finally:
        db.close()


def _columns(db: sqlite3.Connection) -> dict[str, set[str]]:
    rows = db.execute(
        "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'"
    )
    found: dict[str, set[str]] = {}
    for table, column in rows:
        found.setdefault(table, set()).add(column)
    return found
