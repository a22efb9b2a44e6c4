"""Executors: a run's generation, metrics and judges on some devices, and the meters of these devices. Here those of
this machine: one worker process per device, or this process if there is one device.

An executor never writes results: it yields the workers' events, and the stages of the run store them. The shares of the
work are deterministic, and batches have fixed shapes, so results do not depend on which worker processes an item.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from local_bench.core.errors import LocalBenchError, PartFailed
from local_bench.judges.vlm.judge import Transport
from local_bench.runs.executors.processes import Child, Work, start
from local_bench.runs.judge_factory import JudgeDevice, JudgeOrder, open_judge
from local_bench.runs.meter import Meter
from local_bench.runs.store import Store
from local_bench.runs.work import Event

if TYPE_CHECKING:
    import torch

T = TypeVar("T")
_STOP_S = 10


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
        self._devices, self._logs = devices, logs
        self._children: list[Child] = []
        self._judge_devices = [JudgeDevice.of(device) for device in devices]
        self._meters = [Meter(store, judged.device, judged.cuda_index) for judged in self._judge_devices]

    @contextmanager
    def stage(self) -> Iterator[None]:
        """Worker processes on this machine that are started within the context end with it."""
        busy = True
        try:
            yield
            busy = False
        finally:
            for child in self._children:
                with suppress(OSError):
                    child.end.send(None)
                if busy:  # the worker exits when its pipe is closed
                    child.end.close()
            for child in self._children:
                child.process.join(_STOP_S)
                if child.process.is_alive():
                    child.process.kill()
                    child.process.join()
            self._children = []

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
        Raises the LocalBenchError of a worker, or PartFailed for its order if the worker ends or fails otherwise.
        """
        orders = [replace(order, device=str(device)) for device in self._devices[: len(shares)]]
        if len(shares) == 1:
            try:
                for event in work(orders[0], shares[0]):
                    yield self._meters[0], event
            except SystemExit as e:  # of a package, as a worker's end
                where = f"{orders[0].label}: a package ended the work (SystemExit: {e.code})"
                raise PartFailed(f"{where}: finished work is kept", orders[0].label) from e
            return
        if not self._children:
            self._children = [start(self._logs / f"worker-{i}.log") for i in range(len(self._devices))]
        busy = {child.end: i for i, child in enumerate(self._children[: len(shares)])}
        for child, of_child, share in zip(self._children, orders, shares, strict=False):
            with suppress(OSError):  # a process that has ended is noticed below
                child.end.send((work, of_child, share))
        while busy:
            for pipe in wait(list(busy)):
                assert isinstance(pipe, Connection)
                i = busy[pipe]
                child, of_child = self._children[i], orders[i]
                where = f"{of_child.label}: worker {i} on {of_child.device}"
                try:
                    message: Event | Exception | None = pipe.recv()
                except (EOFError, ConnectionResetError):
                    child.process.join()
                    ended = f"{where} ended unexpectedly (exit {child.process.exitcode})"
                    sentence = f"{ended}: finished work is kept, run the same command again"
                    raise PartFailed(sentence, of_child.label) from None
                if isinstance(message, LocalBenchError):
                    raise message
                if isinstance(message, Exception):
                    raise PartFailed(f"{where} failed, see {child.log}: finished work is kept", of_child.label)
                if message is None:
                    del busy[pipe]
                else:
                    yield self._meters[i], message

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
