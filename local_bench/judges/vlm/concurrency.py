"""Concurrent requests to one server, at most a fixed number at a time."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from local_bench.core.errors import LocalBenchError
from local_bench.judges.vlm.protocols import Reply, Request
from local_bench.judges.vlm.transport import Unreachable

K = TypeVar("K")
MAX_CONCURRENCY = 128
"""Concurrent requests if a config sets no number; vLLM queues what exceeds its batch."""


class ConcurrentRequests(Generic[K]):
    """Sends `requests` through `one`, `max_concurrency` at a time."""

    def __init__(
        self,
        requests: Iterator[tuple[K, Request]],
        one: Callable[[Request], Awaitable[Reply]],
        max_concurrency: int = MAX_CONCURRENCY,
    ) -> None:
        self._requests = requests
        self._one = one
        self._max_concurrency = max_concurrency
        self._replies: asyncio.Queue[tuple[K, Reply] | None] = asyncio.Queue()
        self._failures: list[Exception] = []

    async def replies(self) -> AsyncGenerator[list[tuple[K, Reply]], None]:
        """Yield non-empty lists of received replies, then raise the first error of `one`, if any."""
        working = asyncio.create_task(self._work())
        try:
            running = True
            while running:
                received = [await self._replies.get()]
                with suppress(asyncio.QueueEmpty):
                    while True:
                        received.append(self._replies.get_nowait())
                running = None not in received
                if batch := [reply for reply in received if reply is not None]:
                    yield batch
        finally:
            working.cancel()
            await asyncio.wait([working])
        if not working.cancelled() and (error := working.exception()):
            raise error
        if self._failures:
            raise self._failures[0]

    async def _work(self) -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._max_concurrency):
                    group.create_task(self._send_requests())
        finally:
            self._replies.put_nowait(None)

    async def _send_requests(self) -> None:
        try:
            while not self._failures and (item := next(self._requests, None)) is not None:
                self._replies.put_nowait((item[0], await self._one(item[1])))
        except (Unreachable, LocalBenchError) as e:
            self._failures.append(e)
