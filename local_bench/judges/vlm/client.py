"""Sends concurrent requests to a server, with retries for transport errors only."""

import asyncio
import math
from collections.abc import AsyncGenerator, Coroutine, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from types import TracebackType
from typing import Any, Self, TypeVar

import httpx2
import tenacity

from local_bench.core.errors import ServerError
from local_bench.judges.vlm.chat_api import NOT_ITS_FORMAT, REFUSED, reply
from local_bench.judges.vlm.composer import Composer
from local_bench.judges.vlm.concurrency import MAX_CONCURRENCY, ConcurrentRequests
from local_bench.judges.vlm.http import TOO_LARGE, ResponseTooLarge, fetch, fetch_now
from local_bench.judges.vlm.protocols import Reply, Request
from local_bench.judges.vlm.server import Server
from local_bench.judges.vlm.transport import Unreachable

K = TypeVar("K")
T = TypeVar("T")
RETRY_STATUS = {408, 425, 429, 500, 502, 503, 504}
ATTEMPTS = 6
METRICS_S = 10.0


class _Busy(Exception):
    """The server returned a status that permits a retry."""


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
        except (httpx2.HTTPError, ValueError, ResponseTooLarge):
            return {}

    async def _complete(
        self, requests: Iterable[tuple[K, Request]], in_flight: int
    ) -> AsyncGenerator[list[tuple[K, Reply]], None]:
        async with self._http(in_flight) as http:
            concurrent = ConcurrentRequests(iter(requests), partial(self._one, http), in_flight)
            async with aclosing(concurrent.replies()) as replies:
                async for batch in replies:
                    yield batch

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.server.api_key.get_secret_value()}"} if self.server.api_key else {}

    def _http(self, connections: int) -> httpx2.AsyncClient:
        limits = httpx2.Limits(max_connections=connections + 1, max_keepalive_connections=connections + 1)
        return httpx2.AsyncClient(
            headers=self._headers(), timeout=self.timeout_s, limits=limits, transport=self.transport, trust_env=False
        )

    def _metrics_url(self) -> str:
        return self.server.base_url.removesuffix("/v1") + "/metrics"

    async def _one(self, http: httpx2.AsyncClient, request: Request) -> Reply:
        server = self.server
        body = await asyncio.to_thread(self.composer.body, request, server.model, server.content_ids)
        retrying = tenacity.AsyncRetrying(
            retry=tenacity.retry_if_exception(self._is_retryable),
            stop=tenacity.stop_after_attempt(ATTEMPTS),
            wait=tenacity.wait_exponential(0.25, max=10),
            reraise=True,
        )
        try:
            async with asyncio.timeout(self.timeout_s):
                received: httpx2.Response = await retrying(self._post, http, body)
        except TimeoutError:
            raise Unreachable(f"no answer within {self.timeout_s:g} s (judge.request_timeout_s)") from None
        except ResponseTooLarge:
            return Reply("", refusal=TOO_LARGE)
        except (httpx2.RequestError, _Busy) as e:
            raise Unreachable(str(e) or type(e).__name__) from e
        return self._read(received)

    def _is_retryable(self, error: BaseException) -> bool:
        return isinstance(error, httpx2.RequestError | _Busy) and self.server.alive()

    async def _post(self, http: httpx2.AsyncClient, body: dict[str, Any]) -> httpx2.Response:
        url = f"{self.server.base_url}/chat/completions"
        received = await fetch(http, "POST", url, self.timeout_s, body)
        if received.status_code in RETRY_STATUS:
            raise _Busy(f"status {received.status_code}")
        return received

    def _read(self, received: httpx2.Response) -> Reply:
        if received.status_code in (401, 403, 404):
            raise ServerError(
                f"the judge at {self.server.base_url} returned status {received.status_code}: check its key and model "
                "name"
            )
        if received.status_code != 200:
            return Reply(_text(received)[:2000], refusal=REFUSED)
        try:
            return reply(received.json())
        except (ValueError, RecursionError):
            return Reply(_text(received)[:2000], refusal=NOT_ITS_FORMAT)


def _completed(runner: asyncio.Runner, coroutine: Coroutine[Any, Any, T]) -> T:
    """The result of `coroutine`. A signal's exception, which leaves the loop anywhere, cancels the coroutine first, so
    that its generators can be closed."""
    loop = runner.get_loop()
    task = loop.create_task(coroutine)
    try:
        return loop.run_until_complete(task)
    except BaseException:
        loop.set_exception_handler(lambda *_: None)  # other tasks may hold the signal's exception
        if not task.done():
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
