"""A judge behind an HTTP server: a managed child process that is stopped on every exit path, or an external server.

`Client` sends it concurrent requests, at most a fixed number at a time, with retries for transport errors only, and
with limits on their whole duration and on the bytes of the response.
"""

import asyncio
import math
import os
import re
import secrets
import socket
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterable, Iterator
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Self, TypeVar

import httpx2
import tenacity
from pydantic import SecretStr

from local_bench.core.errors import FAILED, ConfigError, LocalBenchError, ServerError, short
from local_bench.judges.vlm.judge import Served, Unreachable
from local_bench.judges.vlm.protocols import NO_REPLY, REFUSED, Preparing, Reply, Request, body, failed, reply
from local_bench.judges.vlm.vllm_process import Child, Engine, arguments, environment, require_vllm

K = TypeVar("K")
T = TypeVar("T")
MAX_CONCURRENCY = 128
"""Concurrent requests if a config sets no number; vLLM queues what exceeds its batch."""
RETRY_STATUS = {408, 425, 429, *range(500, 600)}
ATTEMPTS = 6
METRICS_S = 10.0
SERVED_NAME = "judge"
_KEY = re.compile(r"[!-~]+")
MAX_BYTES = 4 * 1024 * 1024
"""Maximum size of a response body. The longest answer of a rubric has a few thousand tokens."""
MAX_REDIRECTS = 5
TOO_LARGE = f"the judge's response is larger than {MAX_BYTES // 1024**2} MiB"


class ResponseTooLarge(Exception):
    """The body has more than `MAX_BYTES`."""


class Redirected(Exception):
    """The server redirects to another origin, which must not get images and keys; its message is the address."""


async def fetch(
    http: httpx2.AsyncClient, method: str, url: str, timeout_s: float | None, body: dict[str, Any] | None = None
) -> httpx2.Response:
    """The response with its body read, at most `timeout_s` seconds after the call. Redirects are followed within the
    same origin, with the same method and body.

    Raises httpx2.ReadTimeout after that time, ResponseTooLarge, Redirected, or another httpx2.HTTPError;
    httpx2.DecodingError for a compressed body, whose size would only be known after decompression.
    """
    for _ in range(MAX_REDIRECTS + 1):
        received = await _fetch(http, method, url, timeout_s, body)
        location = received.headers.get("Location")
        if received.status_code not in (301, 302, 307, 308) or location is None:
            return received
        here = httpx2.URL(url)
        try:
            target = here.join(location).copy_with(userinfo=b"")
        except httpx2.InvalidURL as e:
            raise httpx2.RemoteProtocolError(f"a redirect to an invalid address ({e})") from None
        if (target.scheme, target.host, target.port) != (here.scheme, here.host, here.port):
            raise Redirected(str(target))
        url = str(target)
    raise httpx2.TooManyRedirects(f"more than {MAX_REDIRECTS} redirects", request=received.request)


async def _fetch(
    http: httpx2.AsyncClient, method: str, url: str, timeout_s: float | None, body: dict[str, Any] | None
) -> httpx2.Response:
    headers = {"Accept-Encoding": "identity"}
    try:
        async with (
            asyncio.timeout(timeout_s),
            http.stream(method, url, json=body, headers=headers, follow_redirects=False) as received,
        ):
            if received.headers.get("Content-Encoding", "identity").lower() != "identity":
                raise httpx2.DecodingError("the response is compressed, although the request accepts no compression")
            content = bytearray()
            async for chunk in received.aiter_bytes():
                content += chunk
                if len(content) > MAX_BYTES:
                    raise ResponseTooLarge(TOO_LARGE)
            kept = {name: value for name, value in received.headers.items() if name in ("location", "retry-after")}
            return httpx2.Response(received.status_code, headers=kept, content=bytes(content), request=received.request)
    except TimeoutError:
        raise httpx2.ReadTimeout(f"no complete response within {timeout_s:g} s") from None


def fetch_now(url: str, headers: dict[str, str], timeout_s: float) -> httpx2.Response:
    """Synchronous `fetch` with GET; ignores proxies from environment variables."""

    async def get() -> httpx2.Response:
        async with httpx2.AsyncClient(headers=headers, timeout=timeout_s, trust_env=False) as http:
            return await fetch(http, "GET", url, timeout_s)

    return asyncio.run(get())


def _authorization(key: SecretStr | None) -> dict[str, str]:
    return {"Authorization": f"Bearer {key.get_secret_value()}"} if key else {}


@dataclass
class ManagedServer(Child):
    """A managed vLLM server on the loopback interface with a random API key."""

    engine: Engine
    start_timeout_s: float
    port: int | None = None
    model: str = SERVED_NAME
    content_ids: bool = True
    """Whether the server accepts image ids for its caches (a vLLM extension)."""
    base_url: str = field(default="", init=False)
    api_key: SecretStr | None = field(default=None, init=False)

    def launch(self) -> None:
        require_vllm(self.engine.gpu is not None)
        port = claim_port(self.port)
        key = secrets.token_urlsafe(24)
        self.api_key = SecretStr(key)
        self.base_url = f"http://127.0.0.1:{port}/v1"
        ours = ["--served-model-name", SERVED_NAME, "--host", "127.0.0.1", "--port", str(port)]
        command = [sys.executable, "-m", "local_bench.judges.vlm.api_server", *ours, "--disable-uvicorn-access-log"]
        self.start([*command, *arguments(self.engine)], environment(self.engine) | {"VLLM_API_KEY": key})

        def healthy() -> bool:
            with suppress(httpx2.TransportError):
                if httpx2.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False).status_code == 200:
                    return True
            time.sleep(0.25)
            return False

        self.wait_until(healthy, self.start_timeout_s)


def _served(entry: dict[str, Any]) -> Served:
    """The properties of a model in a server's list that tell it from another; of a folder only its name."""
    served: dict[str, str | int] = {}
    for key in ("id", "root"):
        if isinstance(entry.get(key), str):
            is_path = entry[key].startswith(("/", "~", ".")) or "\\" in entry[key]
            served[key] = re.split(r"[/\\]", entry[key].rstrip("/\\"))[-1] if is_path else entry[key]
    if type(entry.get("max_model_len")) is int:
        served["max_model_len"] = entry["max_model_len"]
    return tuple(sorted(served.items()))


def _shown(served: Served) -> str:
    return ", ".join(f"{name} {value}" for name, value in served)


@dataclass
class ExternalServer:
    """A server that is managed elsewhere: only its availability is checked; it is never started or stopped."""

    base_url: str
    api_key: SecretStr | None
    model: str = ""
    timeout_s: float = 10.0
    """Time limit for the request of its model list."""
    content_ids: bool = field(default=False, init=False)
    expected: tuple[str, ...] = ()
    """Names of the model that may answer if `model` is not given: the card's and those of its source; any if empty."""
    known: Served | None = None
    """What answered before in this run; ConfigError if it is another model now."""
    served: Served = field(default=(), init=False)

    def __enter__(self) -> Self:
        try:
            reply = fetch_now(f"{self.base_url}/models", _authorization(self.api_key), self.timeout_s)
            sentence = refused(self.base_url, reply.status_code)
            if sentence is not None:
                raise ServerError(sentence)
            reply.raise_for_status()
            listed = {str(m["id"]): m for m in reply.json()["data"]}
            self.content_ids = any(m.get("owned_by") == "vllm" for m in listed.values())
        except Redirected as e:
            raise ServerError(redirected(self.base_url, str(e))) from None
        except httpx2.HTTPStatusError as e:
            raise ServerError(
                f"the judge at {self.base_url} returned status {e.response.status_code}: wait, or look at its log"
            ) from e
        except (
            ResponseTooLarge,
            httpx2.HTTPError,
            httpx2.InvalidURL,
            ValueError,
            RecursionError,
            KeyError,
            TypeError,
            AttributeError,
        ) as e:
            raise ServerError(f"no judge answers at {self.base_url} ({e}): start it or correct judge.base_url") from e
        if self.model not in listed and (self.model or len(listed) != 1):
            names = ", ".join(listed) or "nothing"
            raise ConfigError(f"judge.served_model: {self.base_url} serves {names}: name the one that is the judge")
        if not self.model:
            (self.model,) = listed
            self._check_name(listed[self.model])
        self.served = _served(listed[self.model])
        if self.known is not None and self.known != self.served:
            raise ConfigError(
                f"judge.base_url: {self.base_url} serves {_shown(self.served)}, and this run was judged by "
                f"{_shown(self.known)}: serve that again, or give a new --run-dir"
            )
        return self

    def _check_name(self, entry: dict[str, Any]) -> None:
        """ConfigError if neither the served model's id nor its root, which may be a path, has an expected name."""
        names = [str(entry[key]) for key in ("id", "root") if entry.get(key)]
        parts = {_letters(part) for text in names for part in re.split(r"[/\\]|--", text)}
        if self.expected and not parts & {_letters(name) for name in self.expected}:
            raise ConfigError(
                f"judge.served_model: {self.base_url} serves {' at '.join(dict.fromkeys(names))}, which is not "
                f"{self.expected[0]}: choose the judge's card, or set judge.served_model if it is this model"
            )

    def __exit__(self, *error: Any) -> None:
        pass

    def alive(self) -> bool:
        return True

    def restart(self) -> None:
        raise ServerError(
            f"the judge at {self.base_url} stopped answering: start it again, then run the same command again"
        )


def refused(base_url: str, status: int) -> str | None:
    """The sentence about a status with which no question can be answered; None for others."""
    if status == 404:
        path = "" if base_url.endswith("/v1") else " (it usually ends in /v1)"
        return f"{base_url} has no such address (status 404): correct judge.base_url{path} or judge.served_model"
    if status in (401, 403):
        return f"the judge at {base_url} rejects the key (status {status}): check the variable of judge.api_key_env"
    return None


def redirected(base_url: str, target: str) -> str:
    """The sentence about a redirect to another origin."""
    return f"the judge at {base_url} redirects to {target}, which is another server: set judge.base_url if it is yours"


def _letters(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def key_from(variable: str) -> SecretStr | None:
    """The server's API key from an environment variable, or None if the variable is not set.

    Raises ConfigError, without the key in its message, for a key that is not valid in an HTTP header.
    """
    key = os.environ.get(variable)
    if key and not _KEY.fullmatch(key):
        raise ConfigError(
            f"the API key in {variable} contains a line break, a space or another character that keys do not have: "
            "set the variable to the key alone"
        )
    return SecretStr(key) if key else None


def claim_port(port: int | None) -> int:
    """A free port on the loopback interface. Raises ConfigError if `port` is in use."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port or 0))
        except OSError as e:
            raise ConfigError(
                f"judge.port: {port} is in use on this machine ({e.strerror}): choose another or leave it out"
            ) from e
        return int(probe.getsockname()[1])


async def concurrently(
    requests: Iterator[tuple[K, Request]], answer: Callable[[Request], Coroutine[Any, Any, Reply]], at_once: int
) -> AsyncGenerator[list[tuple[K, Reply]], None]:
    """Pass the requests to `answer`, `at_once` at a time. Yields non-empty lists of received replies, then raises the
    first error, if any."""
    running: dict[asyncio.Task[Reply], K] = {}
    received: list[tuple[K, Reply]] = []
    failures: list[Exception] = []
    try:
        while True:
            try:
                while not failures and len(running) < at_once and (item := next(requests, None)) is not None:
                    running[asyncio.create_task(answer(item[1]))] = item[0]
            except (Unreachable, LocalBenchError) as e:
                failures.append(e)
            if received:
                await asyncio.sleep(0)  # the next requests are on their way while the caller works on these replies
                yield received
            if not running:
                break
            done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
            received = []
            for task in done:
                try:
                    received.append((running.pop(task), task.result()))
                except (Unreachable, LocalBenchError) as e:
                    failures.append(e)
    finally:
        for task in running:
            task.cancel()
        if running:
            await asyncio.wait(running)
    if failures:
        raise failures[0]


class _Busy(Exception):
    def __init__(self, response: httpx2.Response) -> None:
        super().__init__(f"status {response.status_code}")
        self.waits = response.status_code in (429, 503)
        """Whether the server only asks to wait; it is then waited for as long as for an answer."""
        wait, now, self.retry_after_s = response.headers.get("retry-after", ""), datetime.now(UTC), 0.0
        with suppress(ValueError, TypeError):  # neither a number of seconds nor a date
            self.retry_after_s = (
                float(wait) if wait.isdecimal() else (parsedate_to_datetime(wait) - now).total_seconds()
            )


@dataclass
class _IdleTimeout:
    """How long an answer is waited for: `timeout_s` since the question was sent or since any answer was received, so
    that a slow server that answers steadily, however long its queue, is waited for."""

    timeout_s: float
    waiting: set[asyncio.Timeout] = field(default_factory=set)

    async def wait(self, answer: Coroutine[Any, Any, T]) -> T:
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

    server: ManagedServer | ExternalServer
    prepared: Preparing
    in_flight: int | None
    """Maximum number of concurrent requests. None: `MAX_CONCURRENCY`."""
    timeout_s: float
    transport: httpx2.AsyncBaseTransport | None = None
    """For tests: `httpx2.MockTransport`."""
    note: Callable[[str], None] = lambda _: None
    """Is given a sentence about each other name under which the server answers, such as that of a gateway's model."""
    _names: list[str] = field(default_factory=list, init=False)
    _answered: list[dict[str, Any]] = field(default_factory=list, init=False)
    """The body of the last request with an answer."""

    def __enter__(self) -> Self:
        self.server.__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        self.server.__exit__(*error)

    def restart(self) -> None:
        self.server.restart()

    def complete(self, requests: Iterable[tuple[K, Request]], at_once: int | None = None) -> Iterator[tuple[K, Reply]]:
        """Yield (key, reply) as replies arrive, in no fixed order.

        Raises Unreachable after all received replies have been yielded.
        """
        replies = self._complete(requests, at_once or self.in_flight or MAX_CONCURRENCY)
        with asyncio.Runner() as runner:
            try:
                while batch := _completed(runner, lambda: anext(replies, [])):
                    yield from batch
            finally:
                _completed(runner, replies.aclose)

    def counters(self) -> dict[str, float]:
        """Prompt tokens and those of them served from the prefix cache, from the server's metrics."""
        url = self.server.base_url.removesuffix("/v1") + "/metrics"
        try:
            text = _text(fetch_now(url, _authorization(self.server.api_key), METRICS_S))
            names = {"prompt_tokens": "prefix_cache_queries_total", "cached_tokens": "prefix_cache_hits_total"}
            return {counter: _metric(text, f"vllm:{name}") for counter, name in names.items()}
        except (httpx2.HTTPError, ValueError, ResponseTooLarge, Redirected):
            return {}

    async def _complete(
        self, requests: Iterable[tuple[K, Request]], in_flight: int
    ) -> AsyncGenerator[list[tuple[K, Reply]], None]:
        async with httpx2.AsyncClient(
            headers=_authorization(self.server.api_key),
            timeout=(self.timeout_s, None, None, None),
            limits=httpx2.Limits(max_connections=in_flight + 1, max_keepalive_connections=in_flight + 1),
            transport=self.transport,
            trust_env=False,
        ) as http:
            complete = partial(self._one, http, _IdleTimeout(self.timeout_s))
            async with aclosing(concurrently(iter(requests), complete, in_flight)) as replies:
                async for batch in replies:
                    yield batch

    async def _one(self, http: httpx2.AsyncClient, idle: _IdleTimeout, request: Request) -> Reply:
        server = self.server
        try:
            sent = await asyncio.to_thread(self._body, request)
        except Exception as e:  # noqa: BLE001  # raised again if it is not of this request
            return failed(e)
        retryable = tenacity.retry_if_exception(lambda e: isinstance(e, httpx2.RequestError | _Busy) and server.alive())
        retrying = tenacity.AsyncRetrying(retry=retryable, stop=_stop, wait=_wait_s, reraise=True)
        try:
            received: httpx2.Response = await idle.wait(retrying(self._post, http, sent))
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
        sentence = refused(server.base_url, received.status_code)
        if sentence is not None:
            raise ServerError(sentence)
        if received.status_code != 200:
            return Reply(_text(received)[:2000], refusal=REFUSED)
        self._answered[:] = [sent]
        try:
            answer = received.json()
        except (ValueError, RecursionError):
            return Reply(_text(received)[:2000], refusal=NO_REPLY)
        name = answer.get("model") if isinstance(answer, dict) else None
        if isinstance(name, str) and name not in (server.model, *self._names):
            self._names.append(name)
            self.note(f"the judge at {server.base_url} answers as {short(name)}, not {server.model}: check its model")
        return reply(answer)

    def _body(self, request: Request) -> dict[str, Any]:
        images = [*map(self.prepared, request.shown)]
        return body(request, images, self.server.model, content_ids=self.server.content_ids)

    async def _answers(self, http: httpx2.AsyncClient) -> bool:
        """Whether the server still answers a request that it has answered before, or else one without an image."""
        other = {"model": self.server.model, "messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
        with suppress(httpx2.RequestError, _Busy, Redirected, ResponseTooLarge, TimeoutError):
            async with asyncio.timeout(self.timeout_s):
                return (await self._post(http, self._answered[0] if self._answered else other)).status_code == 200
        return False

    async def _post(self, http: httpx2.AsyncClient, body: dict[str, Any]) -> httpx2.Response:
        received = await fetch(http, "POST", f"{self.server.base_url}/chat/completions", None, body)
        if received.status_code in RETRY_STATUS:
            raise _Busy(received)
        return received


_backoff = tenacity.wait_exponential(0.25, max=10)


def _stop(state: tenacity.RetryCallState) -> bool:
    """After ATTEMPTS; never while the server only asks to wait."""
    error = state.outcome.exception() if state.outcome else None
    return state.attempt_number >= ATTEMPTS and not (isinstance(error, _Busy) and error.waits)


def _wait_s(state: tenacity.RetryCallState) -> float:
    """The server's `Retry-After`, and at least the exponential delay: it may be 0."""
    error = state.outcome.exception() if state.outcome else None
    return max(_backoff(state), error.retry_after_s if isinstance(error, _Busy) else 0.0)


def _completed(runner: asyncio.Runner, begin: Callable[[], Awaitable[T]]) -> T:
    """The result of what `begin` returns. A signal's exception, which leaves the loop anywhere, cancels it first, so
    that its generators can be closed."""

    async def awaited() -> T:
        return await begin()

    loop = runner.get_loop()
    task = loop.create_task(awaited())
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


def _metric(text: str, name: str) -> float:
    """The sum of a Prometheus metric over its labels. Raises ValueError if the sum is not finite."""
    lines = (line for line in text.splitlines() if line.startswith((f"{name}{{", f"{name} ")))
    total = sum(float(line.rpartition(" ")[2]) for line in lines)
    if not math.isfinite(total):
        raise ValueError(f"{name} is {total}")
    return total
