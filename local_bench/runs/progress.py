"""The progress interface of a run. The command line implements it; `Quiet` is the default."""

from typing import Protocol


class Progress(Protocol):
    """Messages and one progress bar at a time."""

    def note(self, message: str) -> None: ...
    def begin(self, phase: str, total: int) -> None: ...
    def advance(self, n: int = 1) -> None: ...


class Quiet:
    """Shows nothing."""

    def note(self, message: str) -> None:
        pass

    def begin(self, phase: str, total: int) -> None:
        pass

    def advance(self, n: int = 1) -> None:
        pass
