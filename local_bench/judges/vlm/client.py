"""Sends concurrent requests to a server, at most a fixed number at a time, with retries for transport errors only."""

import asyncio
import math
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2
import tenacity

from local_bench.core.errors import FAILED, LocalBenchError, ServerError
from local_bench.judges.vlm.chat_api import NOT_ITS_FORMAT, REFUSED, Composer, reply
from local_bench.judges.vlm.protocols import Reply, Request, failed
from local_bench.judges.vlm.server import (
    TOO_LARGE,
    Redirected,
    ResponseTooLarge,
    Server,
    fetch,
    fetch_now,
    redirected,
    refused,
)
from local_bench.judges.vlm.transport import Unreachable

K = TypeVar("K")
T = TypeVar("T")
MAX_CONCURRENCY = 128
"""Concurrent requests if a config sets no number; vLLM queues what exceeds its batch."""


async def concurrently(
    requests: Iterator[tuple[K, Request]], answer: Callable[[Request], Awaitable[Reply]], at_once: int
) -> AsyncGenerator[list[tuple[K, Reply]], None]:
    """Pass the requests to `answer`, `at_once` at a time. Yields non-empty lists of received replies, then raises the
    first error, if any."""
    replies: asyncio.Queue[tuple[K, Reply] | None] = asyncio.Queue()
    failures: list[Exception] = []

    async def send() -> None:
        try:
            while not failures and (item := next(requests, None)) is not None:
                replies.put_nowait((item[0], await answer(item[1])))
        except (Unreachable, LocalBenchError) as e:
            failures.append(e)

    async def send_all() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(at_once):
                    group.create_task(send())
        finally:
            replies.put_nowait(None)

    sending = asyncio.create_task(send_all())
    try:
        running = True
        while running:
            received = [await replies.get()]
            while not replies.empty():
                received.append(replies.get_nowait())
            running = None not in received
            if batch := [reply for reply in received if reply is not None]:
                yield batch
    finally:
        sending.cancel()
        await asyncio.wait([sending])
    if not sending.cancelled() and (error := sending.exception()):
        raise error
    if failures:
        raise failures[0]


RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}
ATTEMPTS = 6
METRICS_S = 10.0


class _Busy(Exception):
    """The server returned a status that permits a retry."""

    def __init__(self, response: httpx2.Response) -> None:
        super().__init__(f"status {response.status_code}")
        self.waits = response.status_code in (429, 503)
        """Whether the server only asks to wait; it is then waited for as long as for an answer."""
        self.retry_after_s = _seconds(response.headers.get("retry-after", ""))


def _seconds(retry_after: str) -> float:
    """Seconds to wait by a `Retry-After` header, which is a number or a date; 0 if it is neither."""
    if retry_after.isdecimal():
        return float(retry_after)
    try:
        return (parsedate_to_datetime(retry_after) - datetime.now(UTC)).total_seconds()
    except (ValueError, TypeError):
        return 0.0


@dataclass
class _IdleTimeout:
    """How long an answer is waited for: `timeout_s` since the question was sent or since any answer was received, so
    that a slow server that answers steadily, however long its queue, is waited for."""

    timeout_s: float
    waiting: set[asyncio.Timeout] = field(default_factory=set)

    async def wait(self, answer: Coroutine[Any, Any, T]) -> T:
        """The answer. Raises TimeoutError."""
        async with asyncio.timeout(self.timeout_s) as timer:
            self.waiting.add(timer)
            try:
                received = await answer
            finally:
                self.waiting.remove(timer)
            for other in self.waiting:
                if not other.expired():
                    other.reschedule(asyncio.get_running_loop().time() + self.timeout_s)
            return received


@dataclass(frozen=True)
class Client:
    """A judge behind an HTTP server; the context manager starts and stops the server."""

    server: Server
    composer: Composer
    in_flight: int | None
    """Maximum number of concurrent requests. None: `MAX_CONCURRENCY`."""
    timeout_s: float
    transport: httpx2.AsyncBaseTransport | None = None
    """For tests: `httpx2.MockTransport`."""
    _answered: list[dict[str, Any]] = field(default_factory=list, init=False)
    """The body of the last request with an answer."""

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.server.__exit__(kind, error, trace)

    def restart(self) -> None:
        self.server.restart()

    def complete(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        """Yield (key, reply) as replies arrive, in no fixed order.

        Raises Unreachable after all received replies have been yielded.
        """
        replies = self._complete(requests, at_once or self.in_flight or MAX_CONCURRENCY)

        async def next_batch() -> list[tuple[K, Reply]]:
            return await anext(replies, [])

        async def close() -> None:
            await replies.aclose()

        with asyncio.Runner() as runner:
            try:
                while batch := _completed(runner, next_batch()):
                    yield from batch
            finally:
                _completed(runner, close())

    def counters(self) -> dict[str, float]:
        """Prompt tokens and those of them served from the prefix cache, from the server's metrics."""
        try:
            return _counters(_text(fetch_now(self._metrics_url(), self._headers(), METRICS_S)))
        except (httpx2.HTTPError, ValueError, ResponseTooLarge, Redirected):
            return {}

    async def _complete(
        self, requests: Iterable[tuple[K, Request]], in_flight: int
    ) -> AsyncGenerator[list[tuple[K, Reply]], None]:
        async with self._http(in_flight) as http:
            complete = partial(self._one, http, _IdleTimeout(self.timeout_s))
            async with aclosing(concurrently(iter(requests), complete, in_flight)) as replies:
                async for batch in replies:
                    yield batch

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.server.api_key.get_secret_value()}"} if self.server.api_key else {}

    def _http(self, connections: int) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=connections + 1, max_keepalive_connections=connections + 1)
        return httpx2.AsyncClient(
            headers=self._headers(),
            timeout=(self.timeout_s, None, None, None),
            limits=limits,
            transport=self.transport,
            trust_env=False,
        )

    def _metrics_url(self) -> str:
        return self.server.base_url.removesuffix("/v1") + "/metrics"

    async def _one(self, http: httpx2.AsyncClient, idle: _IdleTimeout, request: Request) -> Reply:
        server = self.server
        try:
            body = await asyncio.to_thread(self.composer.body, request, server.model, server.content_ids)
        except Exception as e:  # noqa: BLE001  # raised again if it is not of this request
            return failed(e)
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(self._is_retryable),
            stop=_stop,
            wait=_wait_s,
            reraise=True,
        )
        try:
            received: httpx2.Response = await idle.wait(retrying(self._post, http, body))
        except TimeoutError:
            raise Unreachable(f"no answer within {self.timeout_s:g} s (judge.request_timeout_s)") from None
        except ResponseTooLarge:
            return Reply("", refusal=TOO_LARGE)
        except Redirected as e:
            raise ServerError(redirected(server.base_url, str(e))) from None
        except _Busy as e:
            if e.waits or not await self._answers(http):
                raise Unreachable(str(e)) from e
            return Reply("", refusal=f"{FAILED}judging (the server returned {e} in {ATTEMPTS} attempts)")
        except httpx2.RequestError as e:
            raise Unreachable(str(e) or type(e).__name__) from e
        if received.status_code == 200:
            self._answered[:] = [body]
        return self._read(received)

    async def _answers(self, http: httpx2.AsyncClient) -> bool:
        """Whether the server still answers a request that it has answered before."""
        try:
            async with asyncio.timeout(self.timeout_s):
                return bool(self._answered) and (await self._post(http, self._answered[0])).status_code == 200
        except (httpx2.RequestError, _Busy, Redirected, ResponseTooLarge, TimeoutError):
            return False

    def _is_retryable(self, error: BaseException) -> bool:
        return isinstance(error, httpx2.RequestError | _Busy) and self.server.alive()

    async def _post(self, http: httpx2.AsyncClient, body: dict[str, Any]) -> httpx2.Response:
        url = f"{self.server.base_url}/chat/completions"
        received = await fetch(http, "POST", url, None, body)
        if received.status_code in RETRY_STATUS:
            raise _Busy(received)
        return received

    def _read(self, received: httpx2.Response) -> Reply:
        sentence = refused(self.server.base_url, received.status_code)
        if sentence is not None:
            raise ServerError(sentence)
        if received.status_code != 200:
            return Reply(_text(received)[:2000], refusal=REFUSED)
        try:
            return reply(received.json())
        except (ValueError, RecursionError):
            return Reply(_text(received)[:2000], refusal=NOT_ITS_FORMAT)


_backoff = tenacity.wait_exponential(0.25, max=10)


def _stop(state: tenacity.RetryCallState) -> bool:
    """After ATTEMPTS; never while the server only asks to wait."""
    error = state.outcome.exception() if state.outcome else None
    return state.attempt_number >= ATTEMPTS and not (isinstance(error, _Busy) and error.waits)


def _wait_s(state: tenacity.RetryCallState) -> float:
    """The server's `Retry-After`, and at least the exponential delay: it may be 0."""
    error = state.outcome.exception() if state.outcome else None
    return max(_backoff(state), error.retry_after_s if isinstance(error, _Busy) else 0.0)


def _completed(runner: asyncio.Runner, coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of `coroutine`. A signal's exception, which leaves the loop anywhere, cancels the coroutine first, so
    that its generators can be closed."""
    loop = runner.get_loop()
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        loop.set_exception_handler(lambda *_: None)  # other tasks may hold the signal's exception
        while not task.done():  # another task's exception can leave the loop before the cancelled one ends
            task.cancel()
            with suppress(asyncio.CancelledError, KeyboardInterrupt):
                loop.run_until_complete(task)
        raise


def _text(received: httpx2.Response) -> str:
    """The body decoded as UTF-8. The charset in the header is ignored, because it is untrusted and may be invalid."""
    return received.content.decode("utf-8", "replace")


def _counters(text: str) -> dict[str, float]:
    return {
        "prompt_tokens": _metric(text, "vllm:prefix_cache_queries_total"),
        "cached_tokens": _metric(text, "vllm:prefix_cache_hits_total"),
    }


def _metric(text: str, name: str) -> float:
    """The sum of a Prometheus metric over its labels. Raises ValueError if the sum is not finite."""
    lines = (line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    total = sum(float(line.rpartition(" ")[2]) for line in lines)
    if not math.isfinite(total):
        raise ValueError(f"{name} is {total}")
    return total
