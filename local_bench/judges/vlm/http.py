"""One HTTP request with a limit on its whole duration and on the bytes of its response."""

import asyncio
from typing import Any

import httpx2

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
