"""Law 6: the time a device is held, cut into rows without gap or overlap, so that they sum to it by construction."""

import time
from datetime import UTC, datetime

from local_bench.runs.energy import EnergyCounter
from local_bench.runs.store import MeterRow, Store

PHASES = ("load", "warm-up", "encode", "denoise", "decode", "metric", "judge", "idle", "retry")


class Meter:
    """The clock of one device in one session. Each `charge` closes the stretch since the last one and commits it."""

    def __init__(self, store: Store, device: str, cuda_index: int | None = None) -> None:
        """Begins a session: the device is held from now on."""
        self._store = store
        self._cuda_index = cuda_index
        self._energy = EnergyCounter(cuda_index)
        self._start = self._cursor = time.monotonic_ns()
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self.session = store.begin_session(now, device)

    def charge(self, phase: str, n_items: int = 0, model: str | None = None, now_ns: int | None = None) -> None:
        """What happened since the last charge was `phase`, for `model` or for the whole run.

        `now_ns` is when it ended by the machine's monotonic clock, where another process saw it; now if left out.
        """
        assert phase in PHASES, phase
        if now_ns is None:
            self._finish_device_work()
        now = max(time.monotonic_ns() if now_ns is None else now_ns, self._cursor + 1)  # a row is never empty
        row = MeterRow(
            self.session,
            self._cursor - self._start,
            now - self._start,
            phase,
            model,
            n_items,
            self._energy.since_last(),
        )
        self._store.enter_time(row, held_ns=now - self._start)
        self._cursor = now

    def end(self, how: str) -> None:
        """Closes the session: what was not charged was idle."""
        self.charge("idle")
        self._store.end_session(self.session, how)

    def _finish_device_work(self) -> None:
        if self._cuda_index is not None:
            import torch

            torch.cuda.synchronize(self._cuda_index)
