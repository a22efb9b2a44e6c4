"""How often results that come one by one are saved."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class SaveInterval:
    """Saving is due at once, and then whenever all saving together takes at most `share` of the time."""

    def __init__(self, share: float = 0.1) -> None:
        self._share = share
        self._next = time.monotonic()

    @property
    def due(self) -> bool:
        return time.monotonic() >= self._next

    @contextmanager
    def saving(self) -> Iterator[None]:
        """Times the block; the next saving is due the later the longer this one took."""
        begun = time.monotonic()
        yield
        ended = time.monotonic()
        self._next = ended + (ended - begun) * (1 / self._share - 1)
