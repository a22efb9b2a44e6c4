"""Transactions of a SQLite connection without implicit ones (`isolation_level=None`)."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def transaction(db: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Commit all writes of the block, or none; no transaction is open afterwards, whatever was raised: by the block, by
    an interrupt just after BEGIN, or by a COMMIT that found the file locked."""
    try:
        db.execute(begin)
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise
