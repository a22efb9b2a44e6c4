"""The protocol of the pipe to an embedded judge. Imports nothing heavy.

A message is JSON, or an image for a later message: `IMAGE`, 64 characters of its sha256, a PNG file. Both ends
process a request's images in order and evict by the same rule, so the sender can compute which images the receiver
has cached.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
IMAGE = b"P"
CACHE_SIZE = 256


class Recent(Generic[T]):
    """An LRU cache with `CACHE_SIZE` entries."""

    def __init__(self) -> None:
        self._entries: OrderedDict[str, T] = OrderedDict()

    def use(self, name: str, make: Callable[[], T]) -> T:
        """The entry of that name, created by `make` if it is missing; evicts the least recently used entry."""
        if name not in self._entries:
            self._entries[name] = make()
        self._entries.move_to_end(name)
        if len(self._entries) > CACHE_SIZE:
            self._entries.popitem(last=False)
        return self._entries[name]
