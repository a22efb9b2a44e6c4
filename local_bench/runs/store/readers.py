"""Runs queries of a large file at the same time, each with a connection of its own: SQLite does not need Python's
interpreter lock while it searches for the next row."""

import sqlite3
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")
Query = Callable[[sqlite3.Connection], T]
_CONNECTIONS = 2
_AHEAD = 8
"""Queries that have been started and whose results have not been used."""


def at_once(connect: Callable[[], sqlite3.Connection], queries: Sequence[Query[T]]) -> Iterator[T]:
    """The results of functions that read committed rows, in their order."""
    free: SimpleQueue[sqlite3.Connection] = SimpleQueue()

    def result(query: Query[T]) -> T:
        db = free.get()
        try:
            return query(db)
        finally:
            free.put(db)

    with ExitStack() as opened:
        for _ in range(_CONNECTIONS):
            free.put(opened.enter_context(closing(connect())))
        pool = opened.enter_context(ThreadPoolExecutor(_CONNECTIONS))
        started: deque[Future[T]] = deque()
        for query in queries:
            started.append(pool.submit(result, query))
            if len(started) == _AHEAD:
                yield started.popleft().result()
        while started:
            yield started.popleft().result()
