"""Executors: a run's generation, metrics and judges on some devices, and the meters of these devices. Here those of
this machine: one worker process per device, or this process if there is one device.

An executor never writes results: it yields the workers' events, and the stages of the run store them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from local_bench.judges.vlm.judge import Transport
from local_bench.runs.judge_factory import JudgeDevice, JudgeOrder, open_judge
from local_bench.runs.meter import Meter
from local_bench.runs.store import Store
from local_bench.runs.work import Event
from local_bench.runs.worker_pool import Work, WorkerPool

if TYPE_CHECKING:
    import torch

T = TypeVar("T")


@dataclass(frozen=True)
class WorkerDevice:
    """The device of a worker."""

    device: str
    """A torch device string, valid on the worker's host."""
    workers: int
    """Number of workers that share the host's memory."""


class Executor:
    """The devices of a run's stages, which it meters, and their worker processes: those of this machine. Workers write
    to `logs`."""

    def __init__(self, store: Store, devices: "Sequence[torch.device]", logs: Path) -> None:
        self._devices = devices
        self._pool = WorkerPool(len(devices), logs)
        self._judge_devices = [JudgeDevice.of(device) for device in devices]
        self._meters = [Meter(store, judged.device, judged.cuda_index) for judged in self._judge_devices]

    def stage(self) -> AbstractContextManager[object]:
        """Worker processes on this machine that are started within the context end with it."""
        return self._pool

    @property
    def n_workers(self) -> int:
        """Number of workers that run at the same time."""
        return len(self._devices)

    @property
    def n_shares(self) -> int:
        """Number of shares into which work should be split."""
        return self.n_workers

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """The result of a module-level function, called with a `WorkerDevice` and `arguments` on one of the devices.
        Raises its LocalBenchError."""
        return function(WorkerDevice(str(self._devices[0]), self.n_workers), *arguments)

    def do(
        self, work: Work, order: Any, shares: Sequence[list[Any]], left: Callable[[list[Any]], list[Any]]
    ) -> Iterator[tuple[Meter, Event]]:
        """Yield (meter of the device, event) from all workers until every share is processed.

        `order` is sent with its device replaced by the worker's. `left` returns the items of a share that have no
        result; they are processed by another worker if theirs is lost, which for a worker of this machine is an error.
        LocalBenchError if the work fails.
        """
        orders = [replace(order, device=str(device)) for device in self._devices[: len(shares)]]
        if len(shares) == 1:
            for event in work(orders[0], shares[0]):
                yield self._meters[0], event
            return
        for worker, event in self._pool.do(work, orders, shares):
            yield self._meters[worker], event

    @property
    def judge_devices(self) -> Sequence[JudgeDevice]:
        """The devices on which judges run. LocalBenchError if there is none."""
        return self._judge_devices

    def open_judge(self, order: JudgeOrder) -> AbstractContextManager[Transport]:
        """Open the judge on all devices, as `judge_factory.open_judge`."""
        return open_judge(order, self.judge_devices)

    def charge(self, phase: str, n_items: int = 0) -> None:
        """Charge the time since the last charge to every device that the open judge uses; count the items once."""
        for i, meter in enumerate(self._meters):
            meter.charge(phase, 0 if i else n_items)

    def end(self, status: str) -> None:
        """End the sessions of all devices."""
        for meter in self._meters:
            meter.end(status)
