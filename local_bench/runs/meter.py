"""Metering of device time: rows partition the time a device is held, so they sum to it exactly."""

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import pynvml

from local_bench.runs.store import MeterRow, Store


class EnergyCounter:
    """The GPU's energy counter in millijoules; None, never 0, if the GPU has no counter."""

    def __init__(self, cuda_index: int | None) -> None:
        self._handle = None if cuda_index is None else nvml_handle(cuda_index)
        self._last: int | None = None
        self.since_last()

    def since_last(self) -> int | None:
        """Millijoules since the previous call, or since the counter was created."""
        now, last = None, self._last
        if self._handle is not None:
            with suppress(pynvml.NVMLError):
                now = int(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        self._last = now
        return None if now is None or last is None else now - last


def nvml_handle(cuda_index: int) -> Any:
    """NVML's handle of the GPU with this torch index (their indices may differ); None if NVML does not list it."""
    import torch

    with suppress(pynvml.NVMLError):
        pynvml.nvmlInit()
        uuid = str(torch.cuda.get_device_properties(cuda_index).uuid)
        return pynvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
    return None


PHASES = ("load", "warm-up", "encode", "denoise", "decode", "metric", "judge", "idle", "retry")


class Meter:
    """Meters one device in one session. Each `charge` stores the time since the previous one."""

    def __init__(self, store: Store, device: str, cuda_index: int | None = None, start_ns: int | None = None) -> None:
        """Start a session: the device is held from now on, or since `start_ns` of the monotonic clock."""
        self._store = store
        self._cuda_index = cuda_index
        self._energy = EnergyCounter(cuda_index)
        self._start = self._cursor = start_ns or time.monotonic_ns()
        self.session = store.begin_session(datetime.now(UTC).isoformat(timespec="seconds"), device)

    def charge(
        self,
        phase: str,
        n_items: int = 0,
        model: str | None = None,
        now_ns: int | None = None,
        energy_mj: int | None = None,
    ) -> None:
        """Charge the time since the last charge to `phase`, for `model` or for the whole run.

        `now_ns` is when the phase ended, by the monotonic clock, and `energy_mj` its energy, if another process
        measured them; they default to now and to the device's own counter.
        """
        assert phase in PHASES, phase
        if now_ns is None and self._cuda_index is not None:
            import torch

            torch.cuda.synchronize(self._cuda_index)  # finish the device's work
        now = max(time.monotonic_ns() if now_ns is None else now_ns, self._cursor + 1)  # no empty row
        row = MeterRow(
            self.session,
            self._cursor - self._start,
            now - self._start,
            phase,
            model,
            n_items,
            self._energy.since_last() if energy_mj is None else energy_mj,
        )
        self._store.enter_time(row, held_ns=now - self._start)
        self._cursor = now

    def end(self, how: str) -> None:
        """End the session; time not charged yet is charged as idle."""
        self.charge("idle")
        self._store.end_session(self.session, how)
