"""Metering of device time: rows partition the time a device is held, so they sum to it exactly."""

import time
from datetime import UTC, datetime

from local_bench.runs.energy import EnergyCounter
from local_bench.runs.store import MeterRow, Store

PHASES = ("load", "warm-up", "encode", "denoise", "decode", "metric", "judge", "idle", "retry")


class Meter:
    """Meters one device in one session. Each `charge` stores the time since the previous one."""

    def __init__(self, store: Store, device: str, cuda_index: int | None = None, start_ns: int | None = None) -> None:
        """Start a session: the device is held from now on, or since `start_ns` of the monotonic clock."""
        self._store = store
        self._cuda_index = cuda_index
        self._energy = EnergyCounter(cuda_index)
        self.energy_mj: int | None = None
        """The energy of the next charge, if another process measured it."""
        self._start = self._cursor = start_ns or time.monotonic_ns()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.session = store.begin_session(now, device)

    def charge(self, phase: str, n_items: int = 0, model: str | None = None, now_ns: int | None = None) -> None:
        """Charge the time since the last charge to `phase`, for `model` or for the whole run.

        `now_ns` is when the phase ended, by the monotonic clock, if another process measured it; defaults to now.
        """
        assert phase in PHASES, phase
        if now_ns is None:
            self._finish_device_work()
        now = max(time.monotonic_ns() if now_ns is None else now_ns, self._cursor + 1)  # no empty row
        row = MeterRow(
            self.session,
            self._cursor - self._start,
            now - self._start,
            phase,
            model,
            n_items,
            self._energy.since_last() if self.energy_mj is None else self.energy_mj,
        )
        self.energy_mj = None
        self._store.enter_time(row, held_ns=now - self._start)
        self._cursor = now

    def end(self, how: str) -> None:
        """End the session; time not charged yet is charged as idle."""
        self.charge("idle")
        self._store.end_session(self.session, how)

    def _finish_device_work(self) -> None:
        if self._cuda_index is not None:
            import torch

            torch.cuda.synchronize(self._cuda_index)
