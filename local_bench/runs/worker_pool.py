"""A pool of worker processes, one per device, which do not communicate with each other.

The shares of the work are deterministic, and batches have fixed shapes, so results do not depend on which worker
processes an item. Only the parent process writes the store.
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
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from tqdm import tqdm

from local_bench.core.environment import isolate
from local_bench.core.errors import LocalBenchError, PartFailed
from local_bench.runs.work import Event

CONTEXT: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")
"""How worker processes start. Tests use a fork server that has imported torch; with CUDA that would be unsafe, since a
library may initialise CUDA when it is imported, and CUDA cannot be used after a fork."""
_STOP_S = 10

Work = Callable[[Any, list[Any]], Iterator[Event]]
"""A module-level function, called in the worker with an order and a share."""


class WorkerPool:
    """`n` processes, started with the first work and ended by the context manager, which can be entered again."""

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
            if kind is not None:  # the worker is busy: it exits when its pipe is closed
                child.end.close()
        for child in self._children:
            child.process.join(_STOP_S)
            if child.process.is_alive():
                child.process.kill()
                child.process.join()
        self._children = []

    def do(self, work: Work, orders: Sequence[Any], shares: Sequence[list[Any]]) -> Iterator[tuple[int, Event]]:
        """Yield (worker index, event) from all workers; `orders` have `label`, `device` and `threads`. Raises the
        LocalBenchError of a worker, or PartFailed for its order if the worker ends or fails otherwise."""
        if not self._children:
            self._children = [_start(self._logs / f"worker-{i}.log") for i in range(self._n)]
        busy = {child.end: i for i, child in enumerate(self._children[: len(shares)])}
        for child, order, share in zip(self._children, orders, shares, strict=False):
            with suppress(OSError):  # a process that has ended is noticed below
                child.end.send((work, order, share))
        while busy:
            for end in wait(list(busy)):
                assert isinstance(end, Connection)
                i = busy[end]
                child, order = self._children[i], orders[i]
                where = f"{order.label}: worker {i} on {order.device}"
                try:
                    message: Event | Exception | None = end.recv()
                except (EOFError, ConnectionResetError):
                    child.process.join()
                    ended = f"{where} ended unexpectedly (exit {child.process.exitcode})"
                    sentence = f"{ended}: finished work is kept, run the same command again"
                    raise PartFailed(sentence, order.label) from None
                if isinstance(message, LocalBenchError):
                    raise message
                if isinstance(message, Exception):
                    raise PartFailed(f"{where} failed, see {child.log}: finished work is kept", order.label)
                if message is None:
                    del busy[end]
                else:
                    yield i, message


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
    """The main function of a worker process: processes requests and sends events; exits when the parent does."""
    isolate()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it, and the worker exits with the parent
    # tqdm's default is a system semaphore, which would leak if the process exits abruptly
    tqdm.set_lock(threading.RLock())
    requests: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_listen, args=(end, requests), daemon=True).start()
    try:
        while (request := ForkingPickler.loads(requests.get())) is not None:  # as Connection.recv does
            from local_bench.core.environment import quiet_libraries
            from local_bench.generators.numerics import set_determinism

            work, order, share = request
            set_determinism(order.threads)
            quiet_libraries()
            for event in work(order, share):
                end.send(event)
            end.send(None)
    except BrokenPipeError:
        return
    except LocalBenchError as e:
        end.send(e)
    except Exception:  # noqa: BLE001  # the process boundary: the traceback goes to the log, a message to the parent
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text(traceback.format_exc())
        end.send(Exception())


def _listen(end: Connection, requests: "SimpleQueue[bytes]") -> None:
    """Receive requests; end the process immediately if the parent has exited, even while an image is generated or
    libraries are imported (which loading a request does, and so it is not done here)."""
    while True:
        try:
            requests.put(end.recv_bytes())
        except (EOFError, OSError):
            os._exit(1)
