"""The progress interface of a run. The command line implements it; `Quiet` is the default."""

import json
import math
import time
from contextlib import AbstractContextManager, nullcontext, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol

from local_bench.core.errors import LocalBenchError
from local_bench.core.files import write_atomic

FILE = "progress.json"
"""In the run's folder `logs`."""


class Progress(Protocol):
    """Messages and one progress bar at a time. By default nothing is shown."""

    def note(self, message: str) -> None:
        return

    def begin(self, phase: str, total: int) -> None:
        return

    def advance(self, n: int = 1) -> None:
        return

    def waiting(self, what: str) -> AbstractContextManager[None]:
        """Show `what` and the elapsed time until the context ends, for work whose size is unknown."""
        return nullcontext()

    def overall(self, fraction: float, seconds_left: float | None) -> None:
        """Show the finished fraction of the whole run and the estimated time left, None if that is unknown."""
        return


class Quiet(Progress):
    """Shows nothing."""


class Forwarding:
    """Passes messages, waits and the whole run's progress on to `shown`; the base of what changes the rest."""

    def __init__(self, shown: Progress) -> None:
        self._shown = shown

    def note(self, message: str) -> None:
        self._shown.note(message)

    def waiting(self, what: str) -> AbstractContextManager[None]:
        return self._shown.waiting(what)

    def overall(self, fraction: float, seconds_left: float | None) -> None:
        self._shown.overall(fraction, seconds_left)


class Late(Forwarding):
    """Passes progress on a few times per second, and a phase only once it has lasted a second."""

    AFTER_S, EVERY_S = 1.0, 0.2

    def __init__(self, shown: Progress) -> None:
        super().__init__(shown)
        self._phase, self._total, self._kept = "", 0, 0
        self._begun = False
        self._next = math.inf

    def begin(self, phase: str, total: int) -> None:
        self._flush()
        self._phase, self._total, self._kept, self._begun = phase, total, 0, False
        self._next = time.monotonic() + self.AFTER_S

    def advance(self, n: int = 1) -> None:
        self._kept += n
        if (now := time.monotonic()) >= self._next:
            if not self._begun:
                self._shown.begin(self._phase, self._total)
                self._begun = True
            self._flush()
            self._next = now + self.EVERY_S

    def _flush(self) -> None:
        if self._begun:
            self._shown.advance(self._kept)
            self._kept = 0


class Recorded(Forwarding):
    """Passes progress on and keeps it in a file, at most once per second, for other processes to read (`view`).

    The file has `phases`: name, `n` of `total`, and elapsed `seconds`, in order; and `updated_utc`. A file that cannot
    be written is left out: the run goes on.
    """

    EVERY_S = 1.0

    def __init__(self, shown: Progress, file: Path) -> None:
        super().__init__(shown)
        self._file = file
        self._phases: list[dict[str, Any]] = []
        self._begun = self._written = time.monotonic()

    def begin(self, phase: str, total: int) -> None:
        self._shown.begin(phase, total)
        self._begun = time.monotonic()
        self._phases.append({"phase": phase, "n": 0, "total": total, "seconds": 0.0})
        self._write()

    def advance(self, n: int = 1) -> None:
        self._shown.advance(n)
        if not self._phases or not n:
            return
        now, last = time.monotonic(), self._phases[-1]
        last["n"] += n
        last["seconds"] = round(now - self._begun, 1)
        if last["n"] >= last["total"] or now - self._written >= self.EVERY_S:
            self._write()

    def _write(self) -> None:
        self._written = time.monotonic()
        state = {"phases": self._phases, "updated_utc": datetime.now(UTC).isoformat(timespec="seconds")}
        with suppress(LocalBenchError, OSError):
            write_atomic(self._file, json.dumps(state).encode(), durable=False)
