"""The judge's server: a managed child process that is stopped on every exit path, or an external server; and single
HTTP requests to it, with a limit on their whole duration and on the bytes of the response.
"""

import asyncio
import os
import re
import secrets
import socket
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Protocol, Self

import httpx2
from pydantic import SecretStr

from local_bench.core.errors import ConfigError, ServerError
from local_bench.judges.vlm.child import Child
from local_bench.judges.vlm.flags import Engine, arguments, environment, require_vllm
from local_bench.judges.vlm.judge import Served

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
        try:
            target = httpx2.URL(url).join(location).copy_with(userinfo=b"")
        except httpx2.InvalidURL as e:
            raise httpx2.RemoteProtocolError(f"a redirect to an invalid address ({e})") from None
        if _origin(target) != _origin(httpx2.URL(url)):
            raise Redirected(str(target))
        url = str(target)
    raise httpx2.TooManyRedirects(f"more than {MAX_REDIRECTS} redirects", request=received.request)


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


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
                    raise ResponseTooLarge
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


SERVED_NAME = "judge"
_KEY = re.compile(r"[!-~]+")


class Server(Protocol):
    """An OpenAI-compatible server for the judge."""

    base_url: str
    api_key: SecretStr | None
    model: str
    content_ids: bool
    """Whether the server accepts image ids for its caches (a vLLM extension)."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None: ...
    def alive(self) -> bool: ...
    def restart(self) -> None:
        """Restart a server that has ended. Raises ServerError if it is not managed here or does not start."""


@dataclass
class ManagedServer:
    """A managed vLLM server on the loopback interface with a random API key, as a context manager."""

    engine: Engine
    child: Child
    start_timeout_s: float
    port: int | None = None
    model: str = SERVED_NAME
    content_ids: bool = True
    base_url: str = field(default="", init=False)
    api_key: SecretStr | None = field(default=None, init=False)

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self.child.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.child.stop()

    def alive(self) -> bool:
        return self.child.alive()

    def restart(self) -> None:
        self.child.restart(self._start)

    def _start(self) -> None:
        require_vllm()
        port = claim_port(self.port)
        key = secrets.token_urlsafe(24)
        self.api_key = SecretStr(key)
        self.base_url = f"http://127.0.0.1:{port}/v1"
        ours = ["--served-model-name", SERVED_NAME, "--host", "127.0.0.1", "--port", str(port)]
        command = [sys.executable, "-m", "local_bench.judges.vlm.api_server", *ours, "--disable-uvicorn-access-log"]
        self.child.start([*command, *arguments(self.engine)], environment(self.engine) | {"VLLM_API_KEY": key})
        self._wait_for_health(port)

    def _wait_for_health(self, port: int) -> None:
        deadline = time.monotonic() + self.start_timeout_s
        while time.monotonic() < deadline:
            if not self.alive():
                raise self.child.not_started()
            with suppress(httpx2.TransportError):
                if httpx2.get(f"http://127.0.0.1:{port}/health", timeout=5, trust_env=False).status_code == 200:
                    return
            time.sleep(0.25)
        raise self.child.not_ready(self.start_timeout_s)


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
    """Names of the model that may answer if `model` is not given: the card's and its repository's; any if empty."""
    known: Served | None = None
    """What answered before in this run; ConfigError if it is another model now."""
    served: Served = field(default=(), init=False)

    def __enter__(self) -> Self:
        headers = {"Authorization": f"Bearer {self.api_key.get_secret_value()}"} if self.api_key else {}
        try:
            reply = fetch_now(f"{self.base_url}/models", headers, self.timeout_s)
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
        except ResponseTooLarge:
            raise ServerError(
                f"no judge answers at {self.base_url} ({TOO_LARGE}): start it or correct judge.base_url"
            ) from None
        except (
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

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
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
