"""Concurrent requests to one server, with a fixed or tuned concurrency limit."""

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import Generic, TypeVar

from local_bench.core.errors import LocalBenchError
from local_bench.judges.vlm.concurrency_limit import MOST, Limiter, Tuner
from local_bench.judges.vlm.protocols import Reply, Request
from local_bench.judges.vlm.transport import Unreachable

K = TypeVar("K")
TUNING_INTERVAL_S = 1.0


class ConcurrentRequests(Generic[K]):
    """`one` sends one request; `waiting` returns the length of the server's queue."""

    def __init__(
        self,
        requests: Iterator[tuple[K, Request]],
        one: Callable[[Request], Awaitable[Reply]],
        waiting: Callable[[], Awaitable[float]],
        window: int | Tuner,
    ) -> None:
        self._requests = requests
        self._one = one
        self._waiting = waiting
        self._tuner = window if isinstance(window, Tuner) else None
        self._max_concurrency = window if isinstance(window, int) else MOST
        self._gate = Limiter(window.limit if isinstance(window, Tuner) else window)
        self._replies: asyncio.Queue[tuple[K, Reply] | None] = asyncio.Queue()
        self._failures: list[Exception] = []
        self._done = 0

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
        tuning = asyncio.create_task(self._tune(self._tuner)) if self._tuner else None
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(self._max_concurrency):
                    group.create_task(self._send_requests())
        finally:
            if tuning:
                tuning.cancel()
            self._replies.put_nowait(None)

    async def _send_requests(self) -> None:
        try:
            while not self._failures:
                async with self._gate:
                    item = next(self._requests, None)
                    if item is None:
                        return
                    self._replies.put_nowait((item[0], await self._one(item[1])))
                self._done += 1
        except (Unreachable, LocalBenchError) as e:
            self._failures.append(e)

    async def _tune(self, tuner: Tuner) -> None:
        last_done, last_time = 0, time.monotonic()
        while True:
            await asyncio.sleep(TUNING_INTERVAL_S)
            if self._done - last_done < self._gate.limit:
                continue  # too few replies to estimate a rate
            now = time.monotonic()
            rate, last_done, last_time = (self._done - last_done) / (now - last_time), self._done, now
            await self._gate.set(tuner.update(rate, await self._waiting()))
