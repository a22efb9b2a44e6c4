"""ASGI middleware of the annotation server: Host header, size of bodies, security headers."""

import re
from collections.abc import Callable

from fastapi import Request
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

MAX_BODY = 64 * 1024
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
}


class Guard:
    """Checks the Host header and the size of bodies, and adds the security headers to every response. `refuse` makes
    the response to another Host."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], refuse: Callable[[Request, Exception], Response]) -> None:
        self._app, self._hosts, self._refuse = app, hosts, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                names = {name.lower() for name, _ in message["headers"]}
                added = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
                if b"cache-control" not in names:
                    added.append((b"cache-control", b"no-store"))
                message["headers"] = [*message["headers"], *added]
            await send(message)

        headers = dict(scope["headers"])
        host = headers.get(b"host", b"").decode("latin-1").lower()
        name = host.rpartition(":")[0] if re.search(r":\d+$", host) else host
        if self._hosts and name not in self._hosts:
            refusal = self._refuse(Request(scope), HTTPException(400, "wrong_host"))
            await refusal(scope, receive, with_headers)
            return
        body = await _body(receive) if scope["method"] == "POST" else b""
        if body is None:
            await PlainError(413, f"A request has at most {MAX_BODY:,} bytes.")(scope, receive, with_headers)
            return
        sent = False

        async def replay() -> Message:
            nonlocal sent
            if sent:
                return await receive()
            sent = True
            return {"type": "http.request", "body": body, "more_body": False}

        await self._app(scope, replay, with_headers)


async def _body(receive: Receive) -> bytes | None:
    """The request's body; None if it is too large."""
    parts, size = [], 0
    while True:
        message = await receive()
        if message["type"] != "http.request":
            return b""
        parts.append(message.get("body", b""))
        size += len(parts[-1])
        if size > MAX_BODY:
            return None
        if not message.get("more_body"):
            return b"".join(parts)


class PlainError(JSONResponse):
    """An error as `{"error": sentence}`."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__({"error": sentence}, status_code=status)
