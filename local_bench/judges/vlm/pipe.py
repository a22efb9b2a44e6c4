"""What both ends of the pipe to an embedded judge hold to. Imports nothing heavy.

A message is JSON, or a picture for the next one: `PICTURE`, 64 characters of its sha256, a PNG file. Both ends go
through a request's pictures in its order and forget by the same rule, so the sender knows what the other still holds.
"""

from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")
PICTURE = b"P"
KEPT = 256


class Recent(Generic[T]):
    """The `KEPT` things that were used last, by name."""

    def __init__(self) -> None:
        self._held: OrderedDict[str, T] = OrderedDict()

    def use(self, name: str, make: Callable[[], T]) -> T:
        """The thing of that name, made where it is not held; what was used longest ago makes room."""
        if name not in self._held:
            self._held[name] = make()
        self._held.move_to_end(name)
        if len(self._held) > KEPT:
            self._held.popitem(last=False)
        return self._held[name]
