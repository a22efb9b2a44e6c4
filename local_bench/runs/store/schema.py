"""The tables of `ledger.sqlite`, and the migrations from earlier versions."""

import sqlite3
from functools import cache

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
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(SCHEMA)
        return tables(db)
    finally:
        db.close()


def tables(db: sqlite3.Connection) -> dict[str, set[str]]:
    """The columns of every table of a database."""
    rows = db.execute(
        "SELECT m.name, c.name FROM sqlite_master m JOIN pragma_table_info(m.name) c WHERE m.type = 'table'"
    )
    found: dict[str, set[str]] = {}
    for table, column in rows:
        found.setdefault(table, set()).add(column)
    return found
