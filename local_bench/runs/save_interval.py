"""The interval at which streamed results are saved."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class SaveInterval:
    """Saving is due immediately, and then as often as keeps the time spent on saving at or below `share`."""

    def __init__(self, share: float = 0.1) -> None:
        self._share = share
        self._next = time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Time the block; the longer it takes, the later the next saving is due."""
        begun = time.monotonic()
        yield
        ended = time.monotonic()
        self._next = ended + (ended - begun) * (1 / self._share - 1)
