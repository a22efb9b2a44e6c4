"""Changes of a run directory, as somebody else could have made them: rows, tables, JSON values and files."""

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import partial
from pathlib import Path

from local_bench.runs.store import Store
from local_bench.runs.store.database import SCHEMA, of_schema, tables

Change = Callable[..., object]
VALUES: list[object] = [
    *(None, 0, -1, 2, 10**9, 2**62, -(2**63), 9_200_000_000_000_000, 1e308, float("inf"), -float("inf"), 1e-320, 0.5),
    *("", " ", "x", "../../escape", "/etc/passwd", "..", "a/b", "a\\b", "a\0b", "NaN", "{}", "[]", "3", "null", "{"),
    *('{"a": NaN}', '{"a": ' * 5000, "[" * 100_000, "9" * 5000, "x" * 100_000, "\u202e\u001b[31m", "=cmd|x", "é"),
    *(b"\xff\xfe", b"", "0" * 64, "<script>alert(1)</script>", "-rf", "CON", ".", "~", '{"clarity": 99}', "1e999"),
    *("[1]", '{"a": 1}', '"x"', '{"a": {"b": 1}}', '{"a": [1]}'),
]
"""What is written into a column of one row."""


def edit(ledger: Path, statement: str, *values: object) -> None:
    """Run one SQL statement on a ledger past types and constraints, as another program could."""
    with closing(sqlite3.connect(ledger, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(statement, values)


def upgraded(run: Path) -> None:
    """Give the ledger of the earlier run the tables of a new run."""
    ledger, new = run / "ledger.sqlite", run / "new.sqlite"
    Store(ledger, write=True).close()
    with closing(sqlite3.connect(new, isolation_level=None)) as db:
        db.executescript(SCHEMA)
        db.execute("ATTACH ? AS old", (str(ledger),))
        for table, columns in tables(of_schema()).items():
            names = ", ".join(sorted(columns))
            db.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM old.{table}")
    new.replace(ledger)


def forgeries(original: Path, outside: Path) -> Iterator[list[tuple[str, Change]]]:
    """(name, change) of a copy of `original`, kind by kind."""
    values = [
        (f"{table}.{column} = {value!r:.40}{', loose' * loose}", partial(_set, table, column, value, loose))
        for table, columns in tables(of_schema()).items()
        for column in sorted(columns)
        for value in VALUES
        for loose in (False, True)
    ]
    with closing(sqlite3.connect(original / "ledger.sqlite")) as db:
        keys = [key for (key,) in db.execute("SELECT key FROM meta WHERE key <> 'version' ORDER BY key")]
    metas = [
        (f"meta {key} = {value!r:.40}", partial(_sql, "UPDATE meta SET value = ? WHERE key = ?", value, key))
        for key in keys
        for value in VALUES
        if isinstance(value, str)
    ]
    yield values
    yield metas
    yield [(statement, partial(_sql, statement)) for statement in _statements()]
    yield list(_files(original, outside))


def _sql(statement: str, *values: object, run: Path) -> None:
    with suppress(sqlite3.Error):  # the statement is refused by SQLite: no forgery
        edit(run / "ledger.sqlite", statement, *values)


def _set(table: str, column: str, value: object, loose: bool, run: Path) -> None:
    """Write a value into the first row of a table; `loose` replaces the table by one without types or constraints."""
    if loose:
        for statement in (
            f"CREATE TABLE loose AS SELECT * FROM {table}",
            f"DROP TABLE {table}",
            f"ALTER TABLE loose RENAME TO {table}",
        ):
            edit(run / "ledger.sqlite", statement)
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        key = ", ".join(name for _, name, *_, place in db.execute(f"PRAGMA table_info({table})") if place)
    first = f"({key}) = (SELECT {key} FROM {table} ORDER BY {key} LIMIT 1)"
    _sql(f"UPDATE {table} SET {column} = ? WHERE {first}", value, run=run)


def _statements() -> Iterator[str]:
    for table in tables(of_schema()):
        yield f"DROP TABLE {table}"
        yield f"ALTER TABLE {table} RENAME TO other"
        yield f"DELETE FROM {table}"
        yield f"ALTER TABLE {table} ADD COLUMN more TEXT"
        yield f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM candidates; END"
        yield f"INSERT INTO {table} SELECT * FROM {table}"
    yield "CREATE VIEW v AS WITH RECURSIVE c(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM c) SELECT x FROM c"
    yield "PRAGMA user_version = 99"
    yield "UPDATE meta SET value = '99' WHERE key = 'version'"
    yield "DELETE FROM meta WHERE key = 'version'"
    yield "CREATE TABLE more (a TEXT COLLATE NOCASE)"


def _files(original: Path, outside: Path) -> Iterator[tuple[str, Change]]:
    """Every file of the run directory as another kind of file, a link, or of other content."""
    ledger = (original / "ledger.sqlite").read_bytes()
    contents = {
        "empty": b"",
        "text": b"x" * 2000,
        "other database": b"SQLite format 3\0" + b"\0" * 4080,
        "cut": ledger[:20_000],
        "turned": ledger[:30_000] + b"\xff" * 30_000,
        "deep": b"[" * 100_000,
        "nan": b'{"a": NaN}',
        "latin-1": b'{"a": "\xe9"}',
    }
    puts: dict[str, Change] = {kind: partial(Path.write_bytes, data=data) for kind, data in contents.items()}
    puts |= {"folder": Path.mkdir, "fifo": os.mkfifo, "missing": lambda path: None}
    targets = {"link out": outside, "link to zeros": "/dev/zero", "loop": "run.yaml"}
    puts |= {kind: partial(Path.symlink_to, target=target) for kind, target in targets.items()}
    for name in (
        *("ledger.sqlite", "run.yaml", "provenance.json", "annotations.sqlite", ".lock", "logs", "images"),
        *("report", "exports", "ledger.backup.sqlite", "ledger.sqlite-journal", "ledger.sqlite-wal"),
    ):
        for kind, put in puts.items():
            yield f"{name} {kind}", partial(_replace, name, put)


def _replace(name: str, put: Change, run: Path) -> None:
    path = run / name
    shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    put(path)
