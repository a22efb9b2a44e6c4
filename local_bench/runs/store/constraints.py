"""What a ledger must satisfy before a row of it is used: it may come from someone else.

SQLite keeps a database's own definitions, so that a forged file can lack every type, key and check of the schema, or
have a view that never ends instead of a table. `fault_of_schema` is checked before the first query, the rest after
migration."""

import sqlite3

from local_bench.runs.store.schema import SCHEMA

MAX_VALUE_BYTES = 64_000_000
_MAX_MICRO_USD = 10**15
_MAX_NS = 10**18
_FINITE = "1.7976931348623157e308"


def _name(column: str, more: str = "") -> str:
    """A safe id (core.paths.is_safe_id), with the characters `more`."""
    return (
        f"length({column}) BETWEEN 1 AND 160 AND {column} GLOB '[A-Za-z0-9]*' "
        f"AND {column} NOT GLOB '*[^A-Za-z0-9._{more}-]*' AND instr({column}, '..') = 0"
    )


def _digest(column: str) -> str:
    return f"(length({column}) = 64 AND {column} NOT GLOB '*[^0-9a-f]*')"


_ANSWERED = "(answer IS NULL) <> (unscored IS NULL) AND point >= 0 AND repeat >= 0"
CONDITIONS: dict[str, str] = {
    "tasks": f"position >= 0 AND price_micro_usd BETWEEN 0 AND {_MAX_MICRO_USD} AND {_name('task_id')}",
    "candidates": f"position >= 0 AND deliverable BETWEEN 1 AND 1000000 AND attempt BETWEEN 1 AND 1000000 "
    f"AND state IN ('planned', 'done', 'unscored') AND {_name('model', '+:')} "
    f"AND (pixels_sha256 IS NULL OR {_digest('pixels_sha256')}) AND (state <> 'done' OR pixels_sha256 IS NOT NULL) "
    "AND (height IS NULL OR height BETWEEN 1 AND 100000) AND (width IS NULL OR width BETWEEN 1 AND 100000) "
    f"AND (batch_size IS NULL OR batch_size BETWEEN 1 AND 100000) "
    f"AND (cost_micro_usd IS NULL OR cost_micro_usd BETWEEN 0 AND {_MAX_MICRO_USD})",
    "verdicts": _ANSWERED,
    "retests": f"{_ANSWERED} AND round >= 0",
    "scores": "kind IN ('metric', 'judge') AND applies IN (0, 1) "
    "AND (value IS NOT NULL) + (unscored IS NOT NULL) + (applies = 0) = 1 "
    f"AND (value IS NULL OR value BETWEEN -{_FINITE} AND {_FINITE}) "
    f"AND (spread IS NULL OR spread BETWEEN 0 AND {_FINITE})",
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


def fault_of_tables(db: sqlite3.Connection, *, references: bool = True) -> str | None:
    """The first table whose columns, types or keys differ from the schema's, or that has a row that `CONDITIONS` or
    (with `references`, which takes several lookups per row) the schema's references do not allow. None if there is
    none."""
    expected = _definitions_of_schema()
    found = _definitions(db)
    for table, definition in expected.items():
        if found.get(table) != definition:
            return f"the table {table!r} has other columns, types or keys"
    for table, condition in CONDITIONS.items():
        if db.execute(f"SELECT 1 FROM {table} WHERE ({condition}) IS NOT TRUE LIMIT 1").fetchone():
            return f"the table {table!r} has values that no release writes"
    gap = (
        "SELECT 1 FROM candidates WHERE attempt = 1 GROUP BY task_id, model HAVING max(deliverable) <> count(*) LIMIT 1"
    )
    if db.execute(gap).fetchone():
        return "the deliverables of a task are not numbered from 1"
    broken = db.execute("PRAGMA foreign_key_check").fetchone() if references else None
    return None if broken is None else f"a row of the table {broken[0]!r} refers to a row that does not exist"


def _definitions(db: sqlite3.Connection) -> dict[str, tuple[bool, frozenset[tuple[str, str, int, int, int]]]]:
    strict = {row[1]: bool(row[5]) for row in db.execute("PRAGMA table_list") if row[0] == "main"}
    return {
        table: (
            is_strict,
            frozenset((c[1], c[2].upper(), c[3], c[5], c[6]) for c in db.execute(f"PRAGMA table_xinfo({table})")),
        )
        for table, is_strict in strict.items()
        if table.isidentifier()
    }


def _definitions_of_schema() -> dict[str, tuple[bool, frozenset[tuple[str, str, int, int, int]]]]:
    db = sqlite3.connect(":memory:")
    try:
        db.executescript(SCHEMA)
        return {table: entry for table, entry in _definitions(db).items() if not table.startswith("sqlite_")}
    finally:
        db.close()
