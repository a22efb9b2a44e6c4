"""Worker processes, which do not communicate with each other: each works on requests of its parent, which alone writes
the store, and sends it events."""

import multiprocessing
import os
import signal
import threading
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext, SpawnContext
from multiprocessing.process import BaseProcess
from multiprocessing.reduction import ForkingPickler
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from tqdm import tqdm

from local_bench.core.environment import isolate
from local_bench.core.errors import LocalBenchError
from local_bench.runs.work import Event

CONTEXT: SpawnContext | ForkServerContext = multiprocessing.get_context("spawn")
"""How worker processes start. Tests use a fork server that has imported torch; with CUDA that would be unsafe, since a
library may initialise CUDA when it is imported, and CUDA cannot be used after a fork."""

Work = Callable[[Any, list[Any]], Iterator[Event]]
"""A module-level function, called in the worker with an order and a share."""


@dataclass(frozen=True)
class Child:
    """A worker process and this process's end of its pipe."""

    process: BaseProcess
    end: Connection
    log: Path


def start(log: Path) -> Child:
    """Start a worker process, which writes the traceback of a fault to `log`."""
    ours, theirs = CONTEXT.Pipe()
    process = CONTEXT.Process(target=_serve, args=(theirs, log), daemon=True)
    process.start()
    theirs.close()
    return Child(process, ours, log)


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
            set_determinism(order.engine.threads)
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
