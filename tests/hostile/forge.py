"""A run directory of others: the run of an earlier release with every possible change of its ledger and files."""

import json
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, suppress
from functools import cache, partial
from pathlib import Path

from local_bench.runs.store.schema import SCHEMA, tables_of_schema

VALUES: list[object] = [
    *(None, 0, -1, 2, 10**9, 2**62, -(2**63), 9_200_000_000_000_000, 1e308, float("inf"), -float("inf"), 1e-320, 0.5),
    *("", " ", "x", "../../escape", "/etc/passwd", "..", "a/b", "a\\b", "a\0b", "NaN", "{}", "[]", "3", "null", "{"),
    *('{"a": NaN}', '{"a": ' * 5000, "[" * 100_000, "9" * 5000, "x" * 100_000, "\u202e\u001b[31m", "=cmd|x", "é"),
    *(b"\xff\xfe", b"", "0" * 64, "<script>alert(1)</script>", "-rf", "CON", ".", "~", '{"clarity": 99}', "1e999"),
]
"""What is written into each column of one row."""


JSON_COLUMNS = (
    *(("tasks", "content"), ("candidates", "work"), ("candidates", "truncated")),
    *(("verdicts", "answer"), ("verdicts", "labels"), ("retests", "answer"), ("retests", "labels")),
)


def edit(ledger: Path, statement: str, *values: object, loose: bool = False) -> None:
    """Run one SQL statement on a ledger; `loose` writes past types and constraints, as another program could."""
    with closing(sqlite3.connect(ledger, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        if loose:
            db.execute("PRAGMA ignore_check_constraints = ON")
        db.execute(statement, values)


def loosened(ledger: Path) -> None:
    """Replace every table by one without types or constraints."""
    with closing(sqlite3.connect(ledger, isolation_level=None)) as db:
        db.execute("PRAGMA foreign_keys = OFF")
        for table in tables_of_schema():
            db.execute(f"CREATE TABLE loose AS SELECT * FROM {table}")
            db.execute(f"DROP TABLE {table}")
            db.execute(f"ALTER TABLE loose RENAME TO {table}")


def upgraded(run: Path) -> None:
    """Give the ledger of the earlier run the tables of a new run."""
    from local_bench.runs.store import Store

    ledger, new = run / "ledger.sqlite", run / "new.sqlite"
    Store(ledger, write=True).close()
    with closing(sqlite3.connect(new, isolation_level=None)) as db:
        db.executescript(SCHEMA)
        db.execute("ATTACH ? AS old", (str(ledger),))
        for table, columns in tables_of_schema().items():
            names = ", ".join(sorted(columns))
            db.execute(f"INSERT INTO {table} ({names}) SELECT {names} FROM old.{table}")
    new.replace(ledger)


@cache
def key_of(table: str) -> str:
    """The names of a table's key in the schema, separated by commas."""
    with closing(sqlite3.connect(":memory:")) as db:
        db.executescript(SCHEMA)
        columns = db.execute(f"PRAGMA table_info({table})").fetchall()
    return ", ".join(name for _, name, *_, position in columns if position)


def shapes(text: str) -> Iterator[tuple[str, str]]:
    """(name, text): other JSON values in place of the JSON in `text`."""
    for whole in ("[]", "{}", "[1]", '{"a": 1}', '"x"', "1", "null", "{", '{"a": {"b": 1}}', '{"a": [1]}'):
        yield f"= {whole}", whole
    with suppress(ValueError):
        value = json.loads(text)
        for path in _paths(value) if isinstance(value, dict) else ():
            for other in ("absent", None, [], "x", -1):
                changed = json.loads(text)
                inner = changed[path[0]] if path[1:] else changed
                if other == "absent":
                    del inner[path[-1]]
                else:
                    inner[path[-1]] = other
                yield f"{'.'.join(path):.60} {other}", json.dumps(changed)


def _paths(value: dict[str, object]) -> Iterator[tuple[str, ...]]:
    for key, inner in value.items():
        yield (key,)
        if isinstance(inner, dict):
            yield from ((key, name) for name in inner)


class Forgery:
    """A copy of a run that every case changes anew; only what a case changed is copied again."""

    def __init__(self, original: Path, run: Path) -> None:
        self.original, self.run = original, run
        shutil.copytree(original, run)

    def restore(self) -> Path:
        for path in self.run.iterdir():
            if path.name not in ("images", "inputs"):
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
        for path in self.original.iterdir():
            if path.is_file():
                shutil.copyfile(path, self.run / path.name)
        return self.run / "ledger.sqlite"

    def columns(self, loose: bool, every: int) -> Iterator[tuple[str, Callable[[], None]]]:
        """(name, change): every column of every table with each of VALUES."""
        n = 0
        for table, columns in tables_of_schema().items():
            for column in sorted(columns):
                for value in VALUES:
                    n += 1
                    if n % every == 0:
                        yield f"{table}.{column} = {value!r:.40}", self._change(table, column, value, loose)

    def _change(self, table: str, column: str, value: object, loose: bool) -> Callable[[], None]:
        def change() -> None:
            ledger = self.restore()
            if loose:
                loosened(ledger)
            key = key_of(table)
            row = f"({key}) = (SELECT {key} FROM {table} ORDER BY {key} LIMIT 1)"
            with suppress(sqlite3.Error):  # the type is refused by SQLite: no forgery
                edit(ledger, f"UPDATE {table} SET {column} = ? WHERE {row}", value, loose=True)

        return change

    def statements(self) -> Iterator[tuple[str, Callable[[], None]]]:
        """(name, change): tables missing, renamed, emptied, views and triggers in their place."""
        for table in tables_of_schema():
            for statement in (
                f"DROP TABLE {table}",
                f"ALTER TABLE {table} RENAME TO other",
                f"DELETE FROM {table}",
                f"ALTER TABLE {table} ADD COLUMN more TEXT",
                f"CREATE TRIGGER t AFTER INSERT ON {table} BEGIN DELETE FROM candidates; END",
                f"INSERT INTO {table} SELECT * FROM {table}",
            ):
                yield statement, self._run(statement)
            yield (
                f"view {table}",
                self._run(
                    f"ALTER TABLE {table} RENAME TO other",
                    f"CREATE VIEW {table} AS WITH RECURSIVE c(x) AS (VALUES(1) UNION ALL SELECT x + 1 FROM c) "
                    "SELECT other.* FROM other, c",
                ),
            )
        yield "extra view", self._run("CREATE VIEW v AS SELECT 1")
        yield "user version", self._run("PRAGMA user_version = 99")
        yield "reserved", self._run("UPDATE meta SET value = '99' WHERE key = 'version'")
        yield "no version", self._run("DELETE FROM meta WHERE key = 'version'")
        yield "collation", self._run("CREATE TABLE more (a TEXT COLLATE NOCASE)")

    def json(self, every: int) -> Iterator[tuple[str, Callable[[], None]]]:
        """(name, change): every JSON value in `meta` and in provenance.json, and the first of every other column, as
        another value, and without or with another value of each of its keys, of the first two levels."""
        with closing(sqlite3.connect(self.original / "ledger.sqlite")) as db:
            stored = [
                (f"meta {key}", "UPDATE meta SET value = ? WHERE key = ?", key, text)
                for key, text in db.execute("SELECT key, value FROM meta WHERE key <> 'version' ORDER BY key")
            ]
            for table, column in JSON_COLUMNS:
                key = key_of(table)
                first = f"({key}) = (SELECT {key} FROM {table} WHERE {column} IS NOT NULL ORDER BY {key} LIMIT 1)"
                for (text,) in db.execute(f"SELECT {column} FROM {table} WHERE {first}"):
                    change = f"UPDATE {table} SET {column} = ? WHERE ? AND {first}"
                    stored.append((f"{table}.{column}", change, 1, text))
        n = 0
        for name, statement, key, text in stored:
            for changed, value in shapes(text):
                n += 1
                if n % every == 0:
                    yield f"{name} {changed}", partial(self._edit, statement, value, key)
        for changed, value in shapes((self.original / "provenance.json").read_text()):
            n += 1
            if n % every == 0:
                yield f"provenance.json {changed}", partial(self._provenance, value)

    def _edit(self, statement: str, *values: object) -> None:
        edit(self.restore(), statement, *values, loose=True)

    def _provenance(self, text: str) -> None:
        self.restore()
        (self.run / "provenance.json").write_text(text)

    def _run(self, *statements: str) -> Callable[[], None]:
        def change() -> None:
            ledger = self.restore()
            for statement in statements:
                with suppress(sqlite3.Error):
                    edit(ledger, statement, loose=True)

        return change

    def files(self, outside: Path) -> Iterator[tuple[str, Callable[[], None]]]:
        """(name, change): every file of the run directory as another kind of file, a link, or of other content."""
        contents: dict[str, bytes] = {
            "empty": b"",
            "text": b"x" * 2000,
            "other database": b"SQLite format 3\0" + b"\0" * 4080,
            "cut": (self.original / "ledger.sqlite").read_bytes()[:20_000],
            "turned": (self.original / "ledger.sqlite").read_bytes()[:30_000] + b"\xff" * 30_000,
            "png": b"\x89PNG\r\n\x1a\n" + b"\0" * 40,
            "deep": b"[" * 100_000,
            "nan": b'{"a": NaN}',
            "latin-1": b'{"a": "\xe9"}',
        }
        names = ("ledger.sqlite", "run.yaml", "provenance.json", "annotations.sqlite", ".lock", "logs")
        names += ("report", "exports", "ledger.backup.sqlite", "ledger.sqlite-journal", "ledger.sqlite-wal", "images")
        for name in names:
            for kind, data in contents.items():
                yield f"{name} {kind}", self._place(name, lambda path, data=data: path.write_bytes(data))
            yield f"{name} folder", self._place(name, lambda path: path.mkdir())
            yield f"{name} fifo", self._place(name, os.mkfifo)
            yield f"{name} link out", self._place(name, lambda path: path.symlink_to(outside))
            yield f"{name} link to zeros", self._place(name, lambda path: path.symlink_to("/dev/zero"))
            yield f"{name} loop", self._place(name, lambda path, name=name: path.symlink_to(name))
            yield f"{name} missing", self._place(name, lambda path: None)

    def _place(self, name: str, put: Callable[[Path], object]) -> Callable[[], None]:
        def change() -> None:
            self.restore()
            path = self.run / name
            if name == "images":
                shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink(missing_ok=True)
            else:
                path.unlink(missing_ok=True)
            put(path)

        return change


def first_json(ledger: Path, query: str) -> object:
    with closing(sqlite3.connect(ledger)) as db:
        return json.loads(db.execute(query).fetchone()[0])


assert "STRICT" in SCHEMA
