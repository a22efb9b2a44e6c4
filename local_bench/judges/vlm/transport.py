"""Transports, which send requests to a judge and return its replies, and replicas on several GPUs."""

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
    """The judge could not be reached in several attempts, or has ended; pending requests have no reply."""


class Transport(Protocol):
    """A connection to a judge (served, embedded or in this process), as a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def ask(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        """Yield (key, reply) as replies arrive, in no fixed order, with at most `at_once` concurrent requests.

        Raises Unreachable after all received replies have been yielded; LocalBenchError for errors that a restart
        does not fix.
        """
        ...

    def restart(self) -> None:
        """Restart a judge that has ended. Raises ServerError if it is not managed here or does not start."""
        ...

    def counters(self) -> dict[str, float]:
        """The engine's `prompt_tokens` and `cached_tokens` since its start; empty if it does not count them."""
        ...


def answers(
    transport: Transport, spec: JudgeSpec, questions: Iterable[tuple[K, Question]], at_once: int | None = None
) -> Iterator[tuple[K, Verdict]]:
    """Yield (key, verdict) once every request of a question has a reply. Raises the errors of `Transport.ask`."""
    pending: dict[K, tuple[Question, list[Reply | None]]] = {}

    def requests() -> Iterator[tuple[tuple[K, int], Request]]:
        for key, question in questions:
            parts = spec.requests(question)
            pending[key] = question, [None] * len(parts)
            for i, request in enumerate(parts):
                yield (key, i), request

    for (key, i), reply in transport.ask(requests(), at_once):
        question, replies = pending[key]
        replies[i] = reply
        received = [r for r in replies if r is not None]
        if len(received) == len(replies):
            del pending[key]
            yield key, read(question, spec.protocol, received, spec.rubrics)


class Replicas:
    """Replicas of one judge, each on its own GPU; consecutive requests with the same first image use one replica."""

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
            except Exception as e:  # noqa: BLE001  # raised again in the main thread
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
        finally:  # also if the caller stops iterating
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
    """A thread-safe iterator."""

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
    except Exception as e:  # noqa: BLE001  # raised again in the main thread
        faults.append(e)
