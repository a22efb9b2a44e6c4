"""Replicas of one judge that share its requests: on several GPUs of a machine, or on several machines."""

import itertools
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from typing import Any, Self, TypeVar

from local_bench.core.errors import LocalBenchError
from local_bench.judges.vlm.judge import Transport, Unreachable
from local_bench.judges.vlm.protocols import Reply, Request

K = TypeVar("K")
_Group = list[tuple[Any, Request]]
_POLL_S = 1.0


class Replicas:
    """Replicas of one judge; consecutive requests with the same first image use one replica.

    If a replica ends, the others process its requests while it is restarted. `note` receives a sentence about it.
    `joining` returns replicas that have become available since its last call.
    """

    def __init__(
        self,
        members: Sequence[Transport],
        note: Callable[[str], None] = lambda _: None,
        joining: Callable[[], Sequence[Transport]] = lambda: (),
    ) -> None:
        self._members = list(members)
        self._note = note
        self._joining = joining
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        faults: list[Exception] = []

        def enter(member: Transport) -> None:
            try:
                stack.enter_context(member)
            except Exception as e:  # noqa: BLE001  # raised again in the main thread
                faults.append(e)

        with ExitStack() as stack:
            starting = [threading.Thread(target=enter, args=(member,)) for member in self._members]
            for thread in starting:
                thread.start()
            for thread in starting:
                thread.join()
            if faults:
                raise faults[0]
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self._stack.__exit__(*error)

    def complete(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        """As `Transport.complete`. Raises Unreachable only if every replica has ended and none could be restarted."""
        session = _Session(requests, at_once)
        for member in self._members:
            session.start(member)
        try:
            while (received := session.next()) is not None:
                if isinstance(received, str):
                    self._note(received)
                elif received:
                    yield received
                else:
                    for member in self._joining():
                        self._members.append(member)
                        session.start(member, self._stack)
        finally:  # also if the caller stops iterating
            session.close()
        if session.fault:
            raise session.fault

    def restart(self) -> None:
        for member in self._members:
            member.restart()

    def counters(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for member in self._members:
            for name, value in member.counters().items():
                total[name] = total.get(name, 0) + value
        return total


class _Session:
    """One call of `complete`: a thread per replica, which takes groups of requests with the same first image, puts back
    those that it cannot answer, and puts replies into a queue."""

    def __init__(self, requests: Iterable[tuple[Any, Request]], at_once: int | None) -> None:
        self._source = (list(group) for _, group in itertools.groupby(requests, key=lambda kr: kr[1].shown[:1]))
        self._returned: deque[_Group] = deque()
        self._changed = threading.Condition()
        self._exhausted = False
        self._n_left = 0
        """Requests that were taken or returned and are not answered."""
        self.closed = False
        self._at_once = at_once
        self._received: queue.SimpleQueue[tuple[Any, Reply] | str | None] = queue.SimpleQueue()
        self._threads: list[threading.Thread] = []
        self._running = 0
        self._polled = time.monotonic()
        self._fault: Exception | None = None
        self._failures: list[Exception] = []

    def start(self, member: Transport, entering: ExitStack | None = None) -> None:
        """Give requests to `member`, after entering it if it has just joined."""
        thread = threading.Thread(target=self._run, args=(member, entering), daemon=True)
        self._threads.append(thread)
        self._running += 1
        thread.start()

    def next(self) -> tuple[Any, Reply] | str | tuple[()] | None:
        """A reply, a note, () once per `_POLL_S`, or None once all replicas have ended."""
        while self._running:
            wait_s = self._polled + _POLL_S - time.monotonic()
            try:
                if wait_s <= 0:
                    raise queue.Empty
                received = self._received.get(timeout=wait_s)
            except queue.Empty:
                self._polled = time.monotonic()
                return ()
            if received is not None:
                return received
            self._running -= 1
        return None

    def close(self) -> None:
        """Give no more requests, and wait for the replicas."""
        self._end()
        for thread in self._threads:
            thread.join()

    @property
    def fault(self) -> Exception | None:
        """Why requests are left: a fault that no restart fixes, else the first replica's."""
        if self._fault or self._finished:
            return self._fault
        return next((e for e in self._failures if not isinstance(e, Unreachable)), self._failures[0])

    def take(self) -> _Group | None:
        """The next group; None if there is none now."""
        with self._changed:
            if self.closed:
                return None
            if self._returned:
                return self._returned.popleft()
            try:
                group = None if self._exhausted else next(self._source, None)
            except Exception as e:
                self._fault, self.closed = e, True
                self._changed.notify_all()
                raise
            if group is None:
                self._exhausted = True
            else:
                self._n_left += len(group)
            return group

    def answered(self) -> None:
        with self._changed:
            self._n_left -= 1
            if not self._n_left:
                self._changed.notify_all()

    def put_back(self, requests: _Group) -> None:
        with self._changed:
            self._returned.append(requests)
            self._changed.notify_all()

    @property
    def _finished(self) -> bool:
        return self._exhausted and not self._n_left

    def _wait(self) -> bool:
        """Wait until there may be a group; False once all requests are answered, or after `close`."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed or self._returned or not self._exhausted or self._finished)
            return not self.closed and (bool(self._returned) or not self._exhausted)

    def _end(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def _run(self, member: Transport, entering: ExitStack | None) -> None:
        try:
            if entering is not None:
                entering.enter_context(member)
            while self._wait():
                self._process(member)
        except Unreachable as e:  # the others continue
            self._failures.append(e)
        except Exception as e:  # noqa: BLE001  # raised again in the main thread
            self._failures.append(e)
            if entering is None:
                self._fault = self._fault or e
                self._end()
            else:  # the others continue without the replica that could not join
                self._received.put(f"a replica of the judge could not be started ({e})")
        finally:
            self._received.put(None)

    def _process(self, member: Transport) -> None:
        """Give groups to `member` while there are any. Raises Unreachable if it ends and cannot be restarted."""
        taken = _Taken(self)
        try:
            for key, reply in member.complete(taken, self._at_once):
                taken.answered(key)
                self._received.put((key, reply))
                if self.closed:
                    return
        except Unreachable as e:
            n = taken.put_back()
            self._received.put(f"a replica of the judge stopped responding ({e}); {n} questions go to the others")
            try:
                member.restart()
            except LocalBenchError as refused:
                self._received.put(str(refused))
                raise Unreachable(str(e)) from refused
        finally:
            taken.put_back()


class _Taken(Iterator[tuple[Any, Request]]):
    def __init__(self, session: _Session) -> None:
        self._session = session
        self._waiting: deque[tuple[Any, Request]] = deque()
        self._given: dict[Any, Request] = {}
        self._lock = threading.Lock()  # a transport may take requests in another thread
        self._ended = False

    def __next__(self) -> tuple[Any, Request]:
        with self._lock:
            if self._ended or self._session.closed:
                raise StopIteration
            if not self._waiting:
                group = self._session.take()
                if group is None:
                    raise StopIteration
                self._waiting.extend(group)
            key, request = self._waiting.popleft()
            self._given[key] = request
            return key, request

    def answered(self, key: Any) -> None:
        with self._lock:
            del self._given[key]
        self._session.answered()

    def put_back(self) -> int:
        """Return the requests without a reply to the others; their number."""
        with self._lock:
            self._ended = True
            left = [*self._given.items(), *self._waiting]
            self._given.clear()
            self._waiting.clear()
        for _, group in itertools.groupby(left, key=lambda kr: kr[1].shown[:1]):
            self._session.put_back(list(group))
        return len(left)
