"""Transactions end, whatever is raised and wherever."""

import sqlite3

import pytest

from local_bench.core.files import transaction


class Interrupted(sqlite3.Connection):
    """Raises KeyboardInterrupt after a statement has been executed, as a signal does."""

    at = ""

    def execute(self, statement, *values):
        results = super().execute(statement, *values)
        if self.at and statement.startswith(self.at):
            self.at = ""
            raise KeyboardInterrupt
        return results


@pytest.fixture
def db(tmp_path):
    db = sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None, timeout=0, factory=Interrupted)
    db.execute("CREATE TABLE t (a INTEGER)")
    yield db
    db.close()


def values(db):
    return [row[0] for row in db.execute("SELECT a FROM t ORDER BY a")]


@pytest.mark.parametrize(("at", "expected"), [("BEGIN", []), ("INSERT", []), ("COMMIT", [1])])
def test_an_interrupt_ends_the_transaction(db, at, expected):
    db.at = at
    with pytest.raises(KeyboardInterrupt), transaction(db):
        db.execute("INSERT INTO t VALUES (1)")
    assert values(db) == expected
    with transaction(db):
        db.execute("INSERT INTO t VALUES (2)")
    assert values(db) == [*expected, 2]


def test_a_commit_that_finds_the_file_locked_ends_the_transaction(db, tmp_path):
    reader = sqlite3.connect(tmp_path / "a.sqlite", isolation_level=None)
    reader.execute("BEGIN")
    reader.execute("SELECT count(*) FROM t").fetchall()
    with pytest.raises(sqlite3.OperationalError, match="locked"), transaction(db):
        db.execute("INSERT INTO t VALUES (1)")
    assert not db.in_transaction
    reader.close()
    with transaction(db):
        db.execute("INSERT INTO t VALUES (2)")
    assert values(db) == [2]
