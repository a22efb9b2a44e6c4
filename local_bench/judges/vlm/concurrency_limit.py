"""The limit on concurrent requests to a server, tuned at run time for the highest reply rate."""

import asyncio
from dataclasses import dataclass
from types import TracebackType

FIRST = 32
LEAST, MOST = 4, 512
_STEP = 1.5
_BETTER = 1.05
"""Relative increase of the reply rate below which a change counts as noise."""
_REST = 8
"""Number of updates for which the best window is left unchanged."""


class Limiter:
    """A semaphore whose `limit` may change while it is held."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.inside = 0
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.inside < self.limit)
            self.inside += 1

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.inside -= 1
        async with self._changed:
            self._changed.notify()

    async def set(self, limit: int) -> None:
        async with self._changed:
            self.limit = limit
            self._changed.notify_all()


@dataclass
class Tuner:
    """Hill climbing for the window (concurrent requests) with the most replies per second: try a wider window, then a
    narrower one, then leave it unchanged for a while."""

    limit: int = FIRST
    _best: tuple[float, int] | None = None
    """The highest rate in replies per second, and its window."""
    _tried: int = 0
    _rest: int = 0

    def update(self, rate: float, waiting: float) -> int:
        """The next window, given the current one's `rate` in replies per second and the number of requests `waiting`
        in the server's queue."""
        if waiting > self.limit / 2:  # the server is saturated; more requests would only queue
            self._best, self._rest = None, _REST
            self.limit = max(LEAST, self.limit - int(waiting / 2))
        elif self._rest:
            self._rest -= 1
        elif self._best is None:
            self._best, self._tried = (rate, self.limit), 0
            self.limit = self._wider()
        elif rate > self._best[0] * _BETTER:
            wider = self.limit > self._best[1]
            self._best = rate, self.limit
            self.limit = self._wider() if wider else self._narrower()
        else:
            self.limit, self._tried = self._best[1], self._tried + 1
            if self._tried == 1:
                self.limit = self._narrower()
            else:
                self._best, self._rest = None, _REST
        return self.limit

    def _wider(self) -> int:
        return min(MOST, int(self.limit * _STEP))

    def _narrower(self) -> int:
        return max(LEAST, int(self.limit / _STEP))
