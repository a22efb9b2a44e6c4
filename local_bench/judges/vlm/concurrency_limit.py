"""How many requests are kept in flight at a server: as many as serve best, found out as it works."""

import asyncio
from dataclasses import dataclass
from types import TracebackType

FIRST = 32
LEAST, MOST = 4, 512
_STEP = 1.5
_BETTER = 1.05
"""By how much the rate must rise for a wider window to be worth it: less is noise."""
_REST = 8
"""Looks for which a window that was found best is left alone."""


class Limiter:
    """Lets at most `limit` in at a time; the limit may change while they are in."""

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
    """Climbs towards the window with the most replies a second: a wider one, else a narrower one, else it rests."""

    limit: int = FIRST
    _best: tuple[float, int] | None = None
    """Replies a second at the window that gave the most."""
    _tried: int = 0
    _rest: int = 0

    def look(self, rate: float, waiting: float) -> int:
        """The next window, after a look at how many replies a second the present one gives and how many requests
        `waiting` the server has not begun."""
        if waiting > self.limit / 2:  # it is full: more would only stand in its queue
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
