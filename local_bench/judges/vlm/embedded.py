"""A vLLM engine in a child process that receives requests over a pipe instead of HTTP."""

import json
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from multiprocessing.connection import Connection
from typing import Any, TypeVar

from local_bench.judges.vlm.judge import Unreachable
from local_bench.judges.vlm.protocols import IMAGE, Preparing, Recent, Reply, Request, body, failed
from local_bench.judges.vlm.vllm_process import ENDED, Child, Engine, arguments, environment, require_vllm

K = TypeVar("K")
AHEAD = 512
"""Maximum number of requests sent ahead of their replies: two of vLLM's batches, so that the engine is never idle."""


@dataclass
class Embedded(Child):
    """A managed vLLM engine."""

    engine: Engine
    prepared: Preparing
    start_timeout_s: float
    timeout_s: float
    _end: Connection | None = field(default=None, init=False)
    _counters: dict[str, float] = field(default_factory=dict, init=False)
    _sent_images: Recent[None] = field(default_factory=Recent, init=False)
    """The images in the child's cache."""

    def counters(self) -> dict[str, float]:
        return self._counters

    def complete(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        """Yield (key, reply) as replies arrive. Raises Unreachable if the child ends or sends nothing for
        `timeout_s`."""
        end = self._end
        if end is None:
            raise Unreachable("it has ended")
        feeder = _Feeder(end, self.prepared, self._sent_images, iter(requests), at_once or AHEAD)
        feeder.start()
        try:
            while not (feeder.ended.is_set() and not feeder.under_way):
                yield from feeder.faulty()
                message = self._receive(end, feeder)
                if message is None:
                    continue
                self._counters = message["counters"]
                for number, reply in message["replies"]:
                    yield feeder.done(number), Reply(**reply)
            yield from feeder.faulty()
            if feeder.fault:
                raise feeder.fault
        finally:
            left_off = bool(feeder.under_way) or not feeder.ended.is_set()  # it may be about to send a request
            feeder.stop()
            if left_off:  # replies to abandoned requests must not be read by the next call
                self.stop()

    def _receive(self, end: Connection, feeder: "_Feeder") -> Any:
        """The child's next message, or None once every request is answered."""
        deadline = time.monotonic() + self.timeout_s
        try:
            while not end.poll(0.05):
                if feeder.ended.is_set() and not feeder.under_way:
                    return None
                if not self.alive() and not end.poll():  # its last replies may still be in the pipe
                    raise EOFError
                if feeder.under_way and time.monotonic() > deadline:
                    self.stop()
                    raise Unreachable(f"no reply for {self.timeout_s:.0f} s (judge.request_timeout_s)")
            return json.loads(end.recv_bytes())
        except (EOFError, OSError) as e:
            self._close()
            raise Unreachable("it has ended") from e

    def launch(self) -> None:
        require_vllm(self.engine.gpu is not None)
        ours, theirs = socket.socketpair()
        with theirs:
            command = [sys.executable, "-m", "local_bench.judges.vlm.engine", str(theirs.fileno())]
            self.start([*command, *arguments(self.engine)], environment(self.engine), [theirs.fileno()])
        self._end, self._sent_images = Connection(ours.detach()), Recent()
        self.wait_until(partial(self._end.poll, 0.25), self.start_timeout_s)
        try:
            self._end.recv_bytes()
        except (EOFError, OSError):
            raise self.error(ENDED) from None

    def stop(self) -> None:
        self._close()
        super().stop()

    def _close(self) -> None:
        if self._end is not None:
            self._end.close()
            self._end = None


class _Feeder(threading.Thread):
    """Builds request bodies and sends them, at most `ahead` more than have been answered."""

    def __init__(
        self,
        end: Connection,
        prepared: Preparing,
        sent_images: Recent[None],
        requests: Iterator[tuple[Any, Request]],
        ahead: int,
    ) -> None:
        super().__init__(daemon=True)
        self._pipe = end
        self._prepared = prepared
        self._sent_images = sent_images
        self._requests = requests
        self._slots = threading.Semaphore(ahead)
        self._stopped = False
        self._faulty: deque[tuple[Any, Reply]] = deque()
        self.under_way: dict[int, Any] = {}
        self.ended = threading.Event()
        self.fault: Exception | None = None

    def run(self) -> None:
        try:
            for number, (key, request) in enumerate(self._requests):
                self._slots.acquire()
                if self._stopped:
                    return
                try:
                    images = [*map(self._prepared, request.shown)]
                except Exception as e:  # noqa: BLE001  # raised again if it is not of this request
                    self._faulty.append((key, failed(e)))
                    self._slots.release()
                    continue
                messages: list[bytes] = []
                for image in images:  # those that are not in the child's cache
                    new = partial(messages.append, IMAGE + image.sha256.encode() + image.png)
                    self._sent_images.use(image.sha256, new)
                messages.append(json.dumps([number, body(request, images, "", inline=False)]).encode())
                self.under_way[number] = key
                try:
                    for message in messages:
                        self._pipe.send_bytes(message)
                except OSError:
                    return  # the child has ended; the receiving side reports it
        except Exception as e:  # noqa: BLE001  # raised again in the main thread
            self.fault = e
        finally:
            self.ended.set()

    def faulty(self) -> Iterator[tuple[Any, Reply]]:
        while self._faulty:
            yield self._faulty.popleft()

    def done(self, number: int) -> Any:
        key = self.under_way.pop(number)
        self._slots.release()
        return key

    def stop(self) -> None:
        self._stopped = True
        self._slots.release()
