"""When work on a device was done, without waiting for it while more work can be given to it."""

import time
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Mark:
    """A point in a device's work."""

    event: Any
    """torch.cuda.Event on a GPU, else None."""
    seen_ns: int
    """When it was set, by the machine's monotonic clock: on the CPU, when the work before it was done."""


class DeviceClock:
    """Marks points in the current stream's work, and says when they were reached (ns of `time.monotonic_ns`).

    On a GPU by events, counted from a moment at which the device had nothing to do; so a clock belongs to a stretch of
    work of minutes: `elapsed_time` is a 32-bit number of milliseconds.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._zero = self._set()
        if self._zero is not None:
            self._zero.synchronize()
        self._zero_ns = time.monotonic_ns()

    def mark(self) -> Mark:
        return Mark(self._set(), time.monotonic_ns())

    def reached_ns(self, mark: Mark) -> int:
        """Waits until the work before `mark` is done, and says when that was."""
        if mark.event is None:
            return mark.seen_ns
        mark.event.synchronize()
        return self._zero_ns + int(self._zero.elapsed_time(mark.event) * 1e6)

    def _set(self) -> Any:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event
