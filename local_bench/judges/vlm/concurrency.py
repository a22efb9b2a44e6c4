"""Many requests under way at once at one server, in a window that is given or found."""

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
LOOK_EVERY_S = 1.0


class ConcurrentRequests(Generic[K]):
    """`one` carries a request; `waiting` says how many the server has in its queue."""

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
        self._at_most = window if isinstance(window, int) else MOST
        self._gate = Limiter(window.limit if isinstance(window, Tuner) else window)
        self._replies: asyncio.Queue[tuple[K, Reply] | None] = asyncio.Queue()
        self._failures: list[Exception] = []
        self._done = 0

    async def replies(self) -> AsyncGenerator[list[tuple[K, Reply]], None]:
        """Yields what has come in, never nothing; raises what a call of `one` raised, once all else was yielded."""
        working = asyncio.create_task(self._work())
        try:
            under_way = True
            while under_way:
                found = [await self._replies.get()]
                with suppress(asyncio.QueueEmpty):
                    while True:
                        found.append(self._replies.get_nowait())
                under_way = None not in found
                if come := [reply for reply in found if reply is not None]:
                    yield come
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
                for _ in range(self._at_most):
                    group.create_task(self._carry())
        finally:
            if tuning:
                tuning.cancel()
            self._replies.put_nowait(None)

    async def _carry(self) -> None:
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
        seen, at = 0, time.monotonic()
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            if self._done - seen < self._gate.limit:
                continue  # too few for a rate
            now = time.monotonic()
            rate, seen, at = (self._done - seen) / (now - at), self._done, now
            await self._gate.set(tuner.look(rate, await self._waiting()))
