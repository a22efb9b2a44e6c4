"""What carries requests to a judge and replies back, and how several of them work side by side."""

import itertools
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Protocol, Self, TypeVar

from local_bench.core.types import Question, Verdict
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.protocols import Reply, Request, read

K = TypeVar("K")


class Unreachable(Exception):
    """The judge could not be reached in several attempts, or has ended; what it had not answered is not answered."""


class Transport(Protocol):
    """A judge that answers, as a context manager: served, embedded or in this process."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def ask(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        """Yields (key, reply) as replies come in, in no fixed order, at most `at_once` under way.

        Raises Unreachable once every reply that came was yielded; LocalBenchError for what no restart mends.
        """
        ...

    def restart(self) -> None:
        """Brings a judge that went down back. ServerError where that is not ours to do or did not work."""
        ...

    def counters(self) -> dict[str, float]:
        """The engine's own counts since it started, `prompt_tokens` and of these `cached_tokens`; empty without any."""
        ...


def answers(
    transport: Transport, spec: JudgeSpec, questions: Iterable[tuple[K, Question]], at_once: int | None = None
) -> Iterator[tuple[K, Verdict]]:
    """Yields (key, verdict) as soon as every request of a question is answered. Raises as `Transport.ask`."""
    open_: dict[K, tuple[Question, list[Reply | None]]] = {}

    def requests() -> Iterator[tuple[tuple[K, int], Request]]:
        for key, question in questions:
            wanted = spec.requests(question)
            open_[key] = question, [None] * len(wanted)
            for i, request in enumerate(wanted):
                yield (key, i), request

    for (key, i), reply in transport.ask(requests(), at_once):
        question, replies = open_[key]
        replies[i] = reply
        whole = [r for r in replies if r is not None]
        if len(whole) == len(replies):
            del open_[key]
            yield key, read(question, spec.protocol, whole, spec.rubrics)


class Replicas:
    """Several judges of one kind, each on a GPU of its own; what shares a picture goes to the same one."""

    def __init__(self, members: Sequence[Transport]) -> None:
        self._members = members
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        faults: list[Exception] = []
        with ExitStack() as stack:
            starting = [threading.Thread(target=_enter, args=(stack, member, faults)) for member in self._members]
            for thread in starting:
                thread.start()
            for thread in starting:
                thread.join()
            if faults:
                raise faults[0]
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def ask(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        groups = _Shared(list(group) for _, group in itertools.groupby(requests, key=lambda kr: kr[1].shown[:1]))
        replies: queue.SimpleQueue[tuple[K, Reply] | None] = queue.SimpleQueue()
        failures: list[Exception] = []
        abandoned = threading.Event()

        def work(member: Transport) -> None:
            try:
                for reply in member.ask(itertools.chain.from_iterable(groups), at_once):
                    replies.put(reply)
                    if abandoned.is_set():
                        return
            except Exception as e:  # noqa: BLE001  # the edge of a thread: whoever listens raises it
                failures.append(e)
                groups.close()
            finally:
                replies.put(None)

        threads = [threading.Thread(target=work, args=(member,), daemon=True) for member in self._members]
        for thread in threads:
            thread.start()
        ended = 0
        try:
            while ended < len(threads):
                reply = replies.get()
                if reply is None:
                    ended += 1
                else:
                    yield reply
        finally:  # also where nobody listens any more
            abandoned.set()
            groups.close()
            for thread in threads:
                thread.join()
        if failures:
            raise next((e for e in failures if not isinstance(e, Unreachable)), failures[0])

    def restart(self) -> None:
        for member in self._members:
            member.restart()

    def counters(self) -> dict[str, float]:
        total: dict[str, float] = {}
        for member in self._members:
            for name, value in member.counters().items():
                total[name] = total.get(name, 0) + value
        return total


class _Shared(Iterator[list[tuple[K, Request]]]):
    """An iterator that several threads may draw from."""

    def __init__(self, items: Iterator[list[tuple[K, Request]]]) -> None:
        self._items = items
        self._lock = threading.Lock()
        self._closed = False

    def __next__(self) -> list[tuple[K, Request]]:
        with self._lock:
            if self._closed:
                raise StopIteration
            return next(self._items)

    def close(self) -> None:
        self._closed = True


def _enter(stack: ExitStack, member: Transport, faults: list[Exception]) -> None:
    try:
        stack.enter_context(member)
    except Exception as e:  # noqa: BLE001  # the edge of a thread: whoever started it raises it
        faults.append(e)
