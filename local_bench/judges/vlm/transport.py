"""Transports, which send requests to a judge and return its replies."""

from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Protocol, Self, TypeVar

from local_bench.core.types import Question, Verdict
from local_bench.judges.vlm.judge import JudgeSpec
from local_bench.judges.vlm.protocols import Reply, Request, failed, read

K = TypeVar("K")


class Unreachable(Exception):
    """The judge could not be reached in several attempts, or has ended; pending requests have no reply."""


class Transport(Protocol):
    """A connection to a judge (served, embedded or in this process), as a context manager."""

    def __enter__(self) -> Self: ...

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...

    def complete(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
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
    """Yield (key, verdict) once every request of a question has a reply. Consecutive different questions with the same
    requests, such as the points of a task in one prompt, share the replies. Raises the errors of
    `Transport.complete`."""
    pending: dict[int, tuple[dict[Question, K], list[Reply | None]]] = {}
    without_request: list[tuple[K, Verdict]] = []

    def grouped() -> Iterator[tuple[dict[Question, K], list[Request]]]:
        group: dict[Question, K] = {}
        of_group: list[Request] = []
        for key, question in questions:
            try:
                parts = spec.requests(question)
            except Exception as e:  # noqa: BLE001  # raised again by `failed` if it is not of this question
                without_request.append((key, Verdict(None, failed(e).refusal, "")))
                continue
            shared = spec.rubrics.shares_requests(question)
            if group and (parts != of_group or question in group or not shared):
                yield group, of_group
                group = {}
            if shared:
                group[question], of_group = key, parts
            else:
                yield {question: key}, parts
        if group:
            yield group, of_group

    def requests() -> Iterator[tuple[tuple[int, int], Request]]:
        for number, (group, parts) in enumerate(grouped()):
            pending[number] = group, [None] * len(parts)
            for i, request in enumerate(parts):
                yield (number, i), request

    for (number, i), reply in transport.complete(requests(), at_once):
        group, replies = pending[number]
        replies[i] = reply
        received = [r for r in replies if r is not None]
        if len(received) == len(replies):
            del pending[number]
            for question, key in group.items():
                end = spec.thinking.end if spec.thinking else ""
                yield key, read(question, spec.protocol, received, spec.rubrics, end)
    yield from without_request
