"""Several workers side by side: one process a device, each with its own share of the work, no talk between them.

A share is decided by what is asked for, so it is the same every time; batches have fixed shapes, so which worker does a
piece changes nothing. Only the parent writes the ledger.
"""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Protocol, Self

from tqdm import tqdm

from local_bench.core.environment import isolate
from local_bench.core.errors import LocalBenchError
from local_bench.runs.work import Event

CONTEXT: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")
"""How worker processes start. Tests use a fork server that has imported torch; with CUDA that would be unsafe, since a
library may initialise CUDA when it is imported, and CUDA cannot be used after a fork."""
_STOP_S = 10


class HasDevice(Protocol):
    """What an order says of the process that it is carried out in."""

    @property
    def device(self) -> str: ...

    @property
    def threads(self) -> int: ...


Work = Callable[[Any, list[Any]], Iterator[Event]]
"""A module's function, called in the worker with an order and a share."""
_Given = tuple[Work, HasDevice, list[Any]]


@dataclass(frozen=True)
class _Failed:
    """What a worker that could not go on says last."""

    error: LocalBenchError | None
    """One for people; None for a fault whose traceback is in the log."""


class WorkerPool:
    """`n` processes that live until the block ends; started at the first work. Without a block they do not end."""

    def __init__(self, n: int, logs: Path) -> None:
        self._n = n
        self._logs = logs
        self._children: list[_Child] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        for child in self._children:
            with suppress(OSError):
                child.end.send(None)
            if kind is not None:  # in the middle of something: it ends when nobody is at the other end
                child.end.close()
        for child in self._children:
            child.process.join(_STOP_S)
            if child.process.is_alive():
                child.process.kill()
                child.process.join()

    def do(self, work: Work, orders: Sequence[HasDevice], shares: Sequence[list[Any]]) -> Iterator[tuple[int, Event]]:
        """What every worker tells of its share, with its number. LocalBenchError where one cannot go on."""
        if not self._children:
            self._children = [_start(self._logs / f"worker-{i}.log") for i in range(self._n)]
        at_work = {child.end: i for i, child in enumerate(self._children[: len(shares)])}
        for child, order, share in zip(self._children, orders, shares, strict=False):
            child.end.send((work, order, share))
        while at_work:
            for end in wait(list(at_work)):
                assert isinstance(end, Connection)
                told = self._hear(at_work[end], orders)
                if told is None:
                    del at_work[end]
                else:
                    yield at_work[end], told

    def _hear(self, i: int, orders: Sequence[HasDevice]) -> Event | None:
        child, where = self._children[i], f"worker {i} on {orders[i].device}"
        try:
            told: Event | _Failed | None = child.end.recv()
        except (EOFError, ConnectionResetError):
            child.process.join()
            raise LocalBenchError(
                f"{where} ended by itself (exit {child.process.exitcode}): what was done is kept, run the same command "
                "again"
            ) from None
        if isinstance(told, _Failed):
            raise told.error or LocalBenchError(f"{where} failed, {child.log} says why: what was done is kept")
        return told


@dataclass(frozen=True)
class _Child:
    process: BaseProcess
    end: Connection
    log: Path


def _start(log: Path) -> _Child:
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_serve, args=(theirs, log), daemon=True)
    process.start()
    theirs.close()
    return _Child(process, ours, log)


def _serve(end: Connection, log: Path) -> None:
    """A worker's whole life: do its shares as they come, tell of them; ends when the parent does."""
    isolate()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent hears it, and its end is ours
    tqdm.set_lock(threading.RLock())  # its own would be a semaphore of the system, left behind when we end at once
    given: SimpleQueue[_Given | None] = SimpleQueue()
    threading.Thread(target=_listen, args=(end, given), daemon=True).start()
    try:
        while (told := given.get()) is not None:
            _do(end, *told)
    except BrokenPipeError:
        return
    except LocalBenchError as e:
        end.send(_Failed(e))
    except Exception:  # noqa: BLE001  # the edge of a process: all of it goes to the log and the parent hears of it
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(traceback.format_exc())
        end.send(_Failed(None))


def _do(end: Connection, work: Work, order: HasDevice, share: list[Any]) -> None:
    from local_bench.core.quiet import quiet_libraries
    from local_bench.generators.numerics import set_determinism

    set_determinism(order.threads)
    quiet_libraries()
    for event in work(order, share):
        end.send(event)
    end.send(None)


def _listen(end: Connection, given: "SimpleQueue[_Given | None]") -> None:
    """Takes in work, and ends the process at once when the parent has gone: also in the middle of a picture."""
    while True:
        try:
            given.put(end.recv())
        except (EOFError, OSError):
            os._exit(1)
