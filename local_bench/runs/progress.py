"""How a run tells people where it is. The command line brings its own; libraries and tests stay quiet."""

from typing import Protocol


class Progress(Protocol):
    """Messages and one bar at a time."""

    def note(self, message: str) -> None: ...
    def begin(self, phase: str, total: int) -> None: ...
    def advance(self, n: int = 1) -> None: ...


class Quiet:
    """Says nothing."""

    def note(self, message: str) -> None:
        pass

    def begin(self, phase: str, total: int) -> None:
        pass

    def advance(self, n: int = 1) -> None:
        pass
