"""Asks many questions at once: bounded requests in flight, retries for transport faults only, answers as they come."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx
import tenacity

from local_bench.core.errors import LocalBenchError, ServerError
from local_bench.core.nouns import Question, Verdict
from local_bench.judges.vlm.judge import read_answer
from local_bench.judges.vlm.server import Server

K = TypeVar("K")
RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}
ATTEMPTS = 6


class Unreachable(Exception):
    """The server could not be reached in several attempts, or has ended; nothing was answered."""


class _Busy(Exception):
    """A reply that asks to come again."""


@dataclass(frozen=True)
class Client:
    """A judge at a server. `request` turns a question into the body to send (it runs in a thread)."""

    server: Server
    request: Callable[[Question], dict[str, Any]]
    in_flight: int
    timeout_s: float
    transport: httpx.AsyncBaseTransport | None = None
    """For tests: `httpx.MockTransport`."""

    async def ask(self, questions: Iterable[tuple[K, Question]]) -> AsyncIterator[tuple[K, Verdict]]:
        """Yields (key, verdict) as answers come in, in no fixed order. Unreachable, once every answer was yielded."""
        answers: asyncio.Queue[tuple[K, Verdict] | None] = asyncio.Queue()
        waiting = iter(questions)
        failures: list[Exception] = []

        async def work(http: httpx.AsyncClient) -> None:
            try:
                for key, question in _until(waiting, failures):
                    answers.put_nowait((key, await self._one(http, question)))
            except (Unreachable, LocalBenchError) as e:
                failures.append(e)

        async def all_work(http: httpx.AsyncClient) -> None:
            try:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self.in_flight):
                        group.create_task(work(http))
            finally:
                answers.put_nowait(None)

        async with self._http() as http:
            working = asyncio.create_task(all_work(http))
            try:
                while (answer := await answers.get()) is not None:
                    yield answer
            finally:
                working.cancel()
                await asyncio.wait([working])
            if not working.cancelled() and (error := working.exception()):
                raise error
        if failures:
            raise failures[0]

    def _http(self) -> httpx.AsyncClient:
        headers = {"Authorization": f"Bearer {self.server.api_key}"} if self.server.api_key else {}
        limits = httpx.Limits(max_connections=self.in_flight, max_keepalive_connections=self.in_flight)
        return httpx.AsyncClient(
            headers=headers, timeout=self.timeout_s, limits=limits, transport=self.transport, trust_env=False
        )

    async def _one(self, http: httpx.AsyncClient, question: Question) -> Verdict:
        body = await asyncio.to_thread(self.request, question)
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(self._worth_retrying),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=tenacity.wait_exponential(0.25, max=10),
            reraise=True,
        )
        try:
            reply: httpx.Response = await retrying(self._post, http, body)
        except (httpx.TransportError, _Busy) as e:
            raise Unreachable(str(e) or type(e).__name__) from e
        return self._read(question, reply)

    def _worth_retrying(self, error: BaseException) -> bool:
        return isinstance(error, httpx.TransportError | _Busy) and self.server.alive()

    async def _post(self, http: httpx.AsyncClient, body: dict[str, Any]) -> httpx.Response:
        reply = await http.post(f"{self.server.base_url}/chat/completions", json=body)
        if reply.status_code in RETRY_STATUS:
            raise _Busy(f"status {reply.status_code}")
        return reply

    def _read(self, question: Question, reply: httpx.Response) -> Verdict:
        if reply.status_code in (401, 403, 404):
            raise ServerError(
                f"the judge at {self.server.base_url} answers {reply.status_code}: check its key and model name"
            )
        if reply.status_code != 200:
            return Verdict(
                None, f"the judge's server refused the question (status {reply.status_code})", reply.text[:2000]
            )
        try:
            choice = reply.json()["choices"][0]
            raw = choice["message"]["content"]
            finish_reason = choice.get("finish_reason")
        except (ValueError, KeyError, IndexError, TypeError, AttributeError):
            return Verdict(None, "the judge's server did not reply in its own format", reply.text[:2000])
        if not isinstance(raw, str):
            return Verdict(None, "the judge gave no answer", "")
        return read_answer(question, raw, finish_reason)


def _until(waiting: Iterator[tuple[K, Question]], failures: list[Exception]) -> Iterator[tuple[K, Question]]:
    """The next questions, shared between workers, until there are no more or one has failed."""
    for item in waiting:
        yield item
        if failures:
            return
