"""What a ledger must satisfy before a row of it is used: it may come from someone else.

SQLite keeps a database's own definitions, so that a forged file can lack every type, key and check of the schema, or
have a view that never ends instead of a table. `fault_of_schema` is checked before the first query, the rest after
migration."""

import sqlite3
from collections.abc import Callable, Collection, Sequence
from functools import partial

from local_bench.core.types import MAX_SCORE
from local_bench.runs.store.schema import SCHEMA

MAX_VALUE_BYTES = 64_000_000
_MAX_MICRO_USD = 10**15
_MAX_NS = 10**18


def _name(column: str, more: str = "") -> str:
    """A safe id (core.paths.is_safe_id), with the characters `more`."""
    return (
        f"length({column}) BETWEEN 1 AND 160 AND {column} GLOB '[A-Za-z0-9]*' "
        f"AND {column} NOT GLOB '*[^A-Za-z0-9._{more}-]*' AND instr({column}, '..') = 0"
    )


_PIXELS = "pixels_sha256"
"""The one digest of every candidate; checked in Python, which is four times faster than a pattern of SQLite."""
_ANSWERED = "(answer IS NULL) <> (unscored IS NULL) AND point >= 0 AND repeat >= 0"
CONDITIONS: dict[str, str] = {
    "tasks": f"position >= 0 AND price_micro_usd BETWEEN 0 AND {_MAX_MICRO_USD} AND {_name('task_id')}",
    "candidates": f"position >= 0 AND deliverable BETWEEN 1 AND 1000000 AND attempt BETWEEN 1 AND 1000000 "
    "AND state IN ('planned', 'done', 'unscored') "
    f"AND (state <> 'done' OR {_PIXELS} IS NOT NULL) "
    "AND (height IS NULL OR height BETWEEN 1 AND 100000) AND (width IS NULL OR width BETWEEN 1 AND 100000) "
    f"AND (batch_size IS NULL OR batch_size BETWEEN 1 AND 100000) "
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
    """Why a database is no ledger at all: it has something else than tables and their indexes. None if nothing is."""
    row = db.execute("SELECT type, name FROM sqlite_master WHERE type NOT IN ('table', 'index') LIMIT 1").fetchone()
    if row is None:
        row = db.execute(
            "SELECT 'virtual table', name FROM sqlite_master WHERE type = 'table' AND sql LIKE 'CREATE VIRTUAL%'"
        ).fetchone()
    return None if row is None else f"it has the {row[0]} {str(row[1])[:60]!r}, which no release writes"


def fault_of_definitions(db: sqlite3.Connection) -> str | None:
    """The first table whose columns, types or keys differ from the schema's, or which has a collation, so that equal
    and ordered texts would be others in SQL than in Python; None if there is none."""
    found = _definitions(db)
    differs = next((table for table, entry in _definitions_of_schema().items() if found.get(table) != entry), None)
    if differs is not None:
        return f"the table {differs!r} has other columns, types or keys"
    row = db.execute("SELECT name FROM sqlite_master WHERE sql LIKE '%COLLATE%' LIMIT 1").fetchone()
    return None if row is None else f"the table {str(row[0])[:60]!r} compares texts in another way"


Check = Callable[[sqlite3.Connection], str | None]
"""Finds a fault of a ledger, or None."""


def checks_of_rows(unchanged: Collection[str] = frozenset()) -> list[Check]:
    """Checks of the rows of all tables that are not in `unchanged`; they only read and do not depend on each other."""
    tables: list[Check] = [partial(_fault_of_rows, table=table) for table in CONDITIONS if table not in unchanged]
    return tables if "candidates" in unchanged else [_fault_of_deliverables, *tables]


def fault_of_references(db: sqlite3.Connection) -> str | None:
    """The first row that refers to one that does not exist, which takes several lookups per row; None if there is
    none."""
    broken = db.execute("PRAGMA foreign_key_check").fetchone()
    return None if broken is None else f"a row of the table {broken[0]!r} refers to a row that does not exist"


def _fault_of_rows(db: sqlite3.Connection, table: str) -> str | None:
    condition = CONDITIONS[table]
    if table == "candidates":
        satisfied = _candidates_satisfy(db, condition)
    else:
        satisfied = db.execute(f"SELECT 1 FROM {table} WHERE ({condition}) IS NOT TRUE LIMIT 1").fetchone() is None
    return None if satisfied else f"the table {table!r} has values that no release writes"


def _fault_of_deliverables(db: sqlite3.Connection) -> str | None:
    found = db.execute(_GAP).fetchone()
    return None if found is None else "the deliverables of a task are not numbered from 1"


_GAP = """SELECT 1 FROM (SELECT task_id, deliverable, model, count(*) AS n FROM candidates WHERE attempt = 1
    GROUP BY task_id, deliverable, model) AS own
  WHERE n > 1 OR (deliverable > 1 AND NOT EXISTS (SELECT 1 FROM candidates AS before WHERE before.attempt = 1
    AND before.task_id = own.task_id AND before.model = own.model AND before.deliverable = own.deliverable - 1))
  LIMIT 1"""
"""Finds a first attempt that is there twice or lacks the deliverable before it; answered from the table's unique key,
in its order."""
_CHUNK = 500


_NO_NAME = f"""WITH models AS MATERIALIZED (SELECT DISTINCT model FROM candidates)
  SELECT 1 FROM models WHERE ({_name("model", "+:")}) IS NOT TRUE LIMIT 1"""
"""Finds a model whose name is no safe one; materialized, since SQLite would check the name of every candidate."""


def _candidates_satisfy(db: sqlite3.Connection, condition: str) -> bool:
    """Whether every candidate satisfies a condition and has a model's name and a digest; the table is read once."""
    if db.execute(_NO_NAME).fetchone():
        return False
    cursor = db.cursor()
    cursor.row_factory = None
    cursor.execute(f"SELECT iif(({condition}) IS TRUE, {_PIXELS}, 0) FROM candidates")
    while rows := cursor.fetchmany(_CHUNK):
        if not all_digests([value for (value,) in rows if value is not None]):
            return False
    return True


def all_digests(values: Sequence[object]) -> bool:
    """Whether every value is the text of a sha256: 64 hex digits in lower case."""
    try:
        text = "".join(values).encode("ascii")  # type: ignore[arg-type]
    except (TypeError, UnicodeEncodeError):
        return False
    return set(map(len, values)) <= {64} and not text.translate(None, delete=_HEX)  # type: ignore[arg-type]


_HEX = b"0123456789abcdef"
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
        if table.isidentifier()
    }


def _definitions_of_schema() -> dict[str, _Definition]:
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(SCHEMA)
        return {table: entry for table, entry in _definitions(db).items() if not table.startswith("sqlite_")}
    finally:
        db.close()
