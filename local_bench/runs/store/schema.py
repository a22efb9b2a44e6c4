"""The tables of `ledger.sqlite`, the migrations from earlier versions, and what a file must satisfy."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from functools import cache

from local_bench.core.types import MAX_SCORE

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

MIGRATIONS: dict[str, tuple[str, str]] = {
    # Version 2 had one judge and one answer per question.
    "2": (
        "3",
        """
ALTER TABLE verdicts RENAME TO old_verdicts;
CREATE TABLE verdicts (
  work_id TEXT NOT NULL REFERENCES candidates, rubric TEXT NOT NULL, point INTEGER NOT NULL, repeat INTEGER NOT NULL,
  question_id TEXT NOT NULL, rubric_sha256 TEXT NOT NULL, judge TEXT NOT NULL,
  answer TEXT, labels TEXT, unscored TEXT, raw TEXT NOT NULL,
  PRIMARY KEY (work_id, judge, rubric, point, repeat), CHECK ((answer IS NULL) <> (unscored IS NULL))) STRICT;
INSERT INTO verdicts SELECT work_id, rubric, point, 0, question_id, rubric_sha256, judge, answer, NULL, unscored, raw
  FROM old_verdicts;
DROP TABLE old_verdicts;
CREATE TABLE retests (
  work_id TEXT NOT NULL REFERENCES candidates, rubric TEXT NOT NULL, point INTEGER NOT NULL, repeat INTEGER NOT NULL,
  judge TEXT NOT NULL, round INTEGER NOT NULL, question_id TEXT NOT NULL,
  answer TEXT, labels TEXT, unscored TEXT, raw TEXT NOT NULL,
  PRIMARY KEY (work_id, judge, rubric, point, repeat, round),
  CHECK ((answer IS NULL) <> (unscored IS NULL))) STRICT;
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


def statements(script: str) -> list[str]:
    """The single statements of `script`."""
    return [statement for part in script.split(";\n") if (statement := part.strip())]


@cache
def tables_of_schema() -> dict[str, set[str]]:
    """The columns of every table of the schema."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        return tables(db)


def tables(db: sqlite3.Connection) -> dict[str, set[str]]:
    """The columns of every table of a database."""
    rows = db.execute(
        "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'"
    )
    columns: dict[str, set[str]] = {}
    for table, column in rows:
        columns.setdefault(table, set()).add(column)
    return columns


# ---- what a file must satisfy before a row of it is used: it may come from someone else

MAX_VALUE_BYTES = 64_000_000
_MAX_MICRO_USD = 10**15
_MAX_NS = 10**18


def _name(column: str, more: str = "") -> str:
    """A safe id (core.paths.is_safe_id), with the characters `more`."""
    return (
        f"length({column}) BETWEEN 1 AND 160 AND {column} GLOB '[A-Za-z0-9]*' "
        f"AND {column} NOT GLOB '*[^A-Za-z0-9._{more}-]*' AND instr({column}, '..') = 0"
    )


_ANSWERED = "(answer IS NULL) <> (unscored IS NULL) AND point >= 0 AND repeat >= 0"
CONDITIONS: dict[str, str] = {
    "tasks": f"position >= 0 AND price_micro_usd BETWEEN 0 AND {_MAX_MICRO_USD} AND {_name('task_id')}",
    "candidates": "position >= 0 AND deliverable BETWEEN 1 AND 1000000 AND attempt BETWEEN 1 AND 1000000 "
    f"AND {_name('model', '+:')} AND state IN ('planned', 'done', 'unscored') "
    "AND (state <> 'done' OR pixels_sha256 IS NOT NULL) "
    "AND (height IS NULL OR height BETWEEN 1 AND 100000) AND (width IS NULL OR width BETWEEN 1 AND 100000) "
    "AND (batch_size IS NULL OR batch_size BETWEEN 1 AND 100000) "
    f"AND (cost_micro_usd IS NULL OR cost_micro_usd BETWEEN 0 AND {_MAX_MICRO_USD})",
    "verdicts": _ANSWERED,
    "retests": f"{_ANSWERED} AND round >= 0",
    "scores": "kind IN ('metric', 'judge') AND applies IN (0, 1) "
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


def limit(db: sqlite3.Connection) -> None:
    """Settings for a database that may come from someone else."""
    db.execute("PRAGMA trusted_schema = OFF")
    db.execute("PRAGMA cell_size_check = ON")
    db.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, MAX_VALUE_BYTES)


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
    differs = next((table for table, entry in _definitions_of_schema().items() if stored.get(table) != entry), None)
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


def _definitions_of_schema() -> dict[str, _Definition]:
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        return _definitions(db)
