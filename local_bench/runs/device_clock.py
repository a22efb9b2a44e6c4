"""Timestamps of work on a device, without blocking the launch of further work."""

import time
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True)
class Mark:
    """A position in a device's command stream."""

    event: Any
    """torch.cuda.Event on a GPU, else None."""
    recorded_ns: int
    """When it was recorded, by the monotonic clock; on a CPU this is when the preceding work ended."""


class DeviceClock:
    """Records marks in the current stream and returns when they were reached (in ns of `time.monotonic_ns`).

    On a GPU it uses CUDA events relative to a moment at which the device was idle. Use one clock for minutes of work at
    most: `elapsed_time` is a 32-bit number of milliseconds.
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
        """Wait until the work before `mark` is done; return when that was."""
        if mark.event is None:
            return mark.recorded_ns
        mark.event.synchronize()
        return self._zero_ns + int(self._zero.elapsed_time(mark.event) * 1e6)

    def _set(self) -> Any:
        if self._device.type != "cuda":
            return None
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event
