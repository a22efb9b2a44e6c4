"""The web application of `local-bench annotate`.

Every request needs an annotator's token (a link sets it as a cookie), every change a CSRF token derived from it. Pages
load nothing from elsewhere and contain nothing about models; images are addressed by the digest of their pixels.
"""

import hashlib
import hmac
import re
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from fastapi import APIRouter, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from local_bench.core.errors import ImageError
from local_bench.judges.people.database import AlreadyAnswered, Annotator
from local_bench.judges.people.items import Given, Kind, Side
from local_bench.judges.people.pages import Pages, known_language, preferred_language
from local_bench.judges.people.protocol import Language
from local_bench.judges.people.session import NOTE_CHARACTERS, InvalidAnswer, Session
from local_bench.judges.people.summary import summary

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
    """Checks the Host header, limits the size of bodies, and adds the security headers to every response. `refuse`
    makes the response to another Host."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str], refuse: Callable[[Request, Exception], Response]) -> None:
        self._app, self._hosts, self._refuse = app, hosts, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        size = 0

        async def limited() -> Message:
            nonlocal size
            message = await receive()
            size += len(message.get("body", b""))
            if size > MAX_BODY:
                raise HTTPException(413, f"A request has at most {MAX_BODY:,} bytes.")
            return message

        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        host = re.sub(r":\d+$", "", Request(scope).headers.get("host", "").lower())
        if self._hosts and host not in self._hosts:
            refusal = self._refuse(Request(scope), HTTPException(400, "wrong_host"))
            await refusal(scope, receive, with_headers)
        else:
            await self._app(scope, limited, with_headers)


class PlainError(JSONResponse):
    """An error as `{"error": sentence}`."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__({"error": sentence}, status_code=status)


COOKIE = "local_bench_annotator"
AT_ONCE = 5
"""Most items that a page can load ahead."""


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class AnswerIn(_Body):
    """An answer as the page sends it."""

    request_id: str = Field(pattern=r"^[0-9a-f-]{8,64}$")
    item_id: str = Field(pattern=r"^[0-9a-f]{64}$")
    kind: Kind
    values: dict[Annotated[str, Field(max_length=8)], dict[Annotated[str, Field(max_length=40)], bool | int | str]]
    cannot_tell: str | None = Field(None, max_length=40)
    reasons: list[Annotated[str, Field(max_length=40)]] = Field([], max_length=30)
    note: str = Field("", max_length=NOTE_CHARACTERS)
    left: Side | None = None
    elapsed_ms: int | None = Field(None, ge=0, le=86_400_000)


class UndoIn(_Body):
    """The number of the answer to withdraw."""

    number: int


class LanguageIn(_Body):
    language: str = Field(max_length=8)


@dataclass
class LinkLimit:
    """Counts requests with invalid links by client address."""

    most: int = 10
    within_s: float = 60.0
    _failures: dict[str, deque[float]] = field(default_factory=dict)

    def exceeded(self, client: str) -> bool:
        times = self._failures.get(client)
        now = time.monotonic()
        while times and now - times[0] > self.within_s:
            times.popleft()
        return times is not None and len(times) >= self.most

    def failed(self, client: str) -> None:
        if len(self._failures) > 10_000:
            self._failures.clear()
        self._failures.setdefault(client, deque(maxlen=self.most)).append(time.monotonic())


def csrf_token(token: str) -> str:
    """The CSRF token of an annotator's secret; it survives restarts of the server."""
    return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()


@dataclass(frozen=True)
class _Context:
    """What the requests of an application share."""

    session: Session
    pages: Pages
    limit: LinkLimit
    base: str


router = APIRouter()


def _context(request: Request) -> _Context:
    found: _Context = request.app.state.context
    return found


def _annotator(request: Request) -> Annotator:
    session = _context(request).session
    token = request.cookies.get(COOKIE, "")
    found = session.database.annotator_of(token) if token else None
    if found is None:
        raise HTTPException(403, "link_invalid")
    session.queue.add(found.name, found.role)
    return replace(found, language=found.language or _language(request))


def _language(request: Request) -> Language:
    return preferred_language(request.headers.get("accept-language", ""))


def _changing(request: Request) -> Annotator:
    """The annotator of a request that changes something."""
    found = _annotator(request)
    origin = request.headers.get("origin")
    if origin not in (None, _context(request).base) and urlsplit(origin).netloc != request.headers.get("host"):
        raise HTTPException(403, "wrong_origin")
    given = request.headers.get("x-csrf-token", "")
    if not hmac.compare_digest(given.encode(), csrf_token(request.cookies[COOKIE]).encode()):
        raise HTTPException(403, "other_link")
    return found


def _lead(request: Request) -> Annotator:
    found = _annotator(request)
    if found.role != "lead":
        raise HTTPException(403, "not_found")
    return found


Shared = Annotated[_Context, Depends(_context)]
Me = Annotated[Annotator, Depends(_annotator)]
Changing = Annotated[Annotator, Depends(_changing)]
Lead = Annotated[Annotator, Depends(_lead)]


@router.get("/a/{token}")
def enter(token: str, request: Request, shared: Shared) -> Response:
    """A personal link: sets the cookie. A valid one is never refused: all clients of a proxy have its address."""
    client = request.client.host if request.client else ""
    found = shared.session.database.annotator_of(token)
    if found is None:
        if shared.limit.exceeded(client):
            raise HTTPException(429, "too_many")
        shared.limit.failed(client)
        raise HTTPException(403, "link_invalid")
    secure = shared.base.startswith("https:")
    response = RedirectResponse("/lead" if found.role == "lead" else "/", 303)
    response.set_cookie(COOKIE, token, max_age=90 * 86400, httponly=True, samesite="lax", secure=secure)
    return response


@router.get("/")
def page(request: Request, me: Me, shared: Shared) -> Response:
    return HTMLResponse(shared.pages.page(me, csrf_token(request.cookies[COOKIE])))


@router.get("/queue")
def queue(me: Me, shared: Shared, n: int = 1) -> dict[str, Any]:
    return shared.pages.queue(me, max(1, min(n, AT_ONCE)))


@router.get("/image/{sha}")
def image(sha: str, me: Me, shared: Shared) -> Response:
    if sha not in shared.session.images:
        raise HTTPException(404, "image_failed")
    try:
        data = shared.session.load_png(sha)
    except ImageError:
        raise HTTPException(404, "image_failed") from None
    headers = {
        "Cache-Control": "private, max-age=86400, immutable",
        "Content-Disposition": 'inline; filename="image.png"',
    }
    return Response(data, media_type="image/png", headers=headers)


@router.get("/favicon.ico")
def icon() -> Response:
    return Response(status_code=204)


@router.post("/answer")
def answer(body: AnswerIn, me: Changing, shared: Shared) -> Response:
    given = Given(body.values, body.cannot_tell, tuple(body.reasons), body.note.strip(), body.left)
    try:
        shared.session.answer(me, body.request_id, body.item_id, body.kind, given, body.elapsed_ms)
    except AlreadyAnswered:
        return PlainError(409, shared.pages.sentence("stale", known_language(me.language)))
    except InvalidAnswer as e:
        return PlainError(422, str(e))
    return JSONResponse({"saved": body.request_id})


@router.post("/undo")
def undo(body: UndoIn, me: Changing, shared: Shared) -> Response:
    found = shared.session.undo(me, body.number)
    if found is None:
        return PlainError(409, shared.pages.sentence("nothing_to_undo", known_language(me.language)))
    item, stored = found
    entry = shared.pages.entry(me, item, stored.kind, stored.given.left)
    return JSONResponse(entry | {"given": stored.given.content})


@router.post("/language")
def language(body: LanguageIn, me: Changing, shared: Shared) -> Response:
    shared.session.database.set_language(me.name, known_language(body.language))
    return JSONResponse({"language": known_language(body.language)})


@router.get("/lead")
def lead(me: Lead, shared: Shared) -> Response:
    return HTMLResponse(shared.pages.lead(me, summary(shared.session)))


@router.get("/lead.json")
def lead_json(me: Lead, shared: Shared) -> dict[str, Any]:
    return asdict(summary(shared.session))


def _failed(request: Request, error: Exception) -> Response:
    """An error as a page if the browser asks for one, else as JSON."""
    assert isinstance(error, HTTPException)
    pages = _context(request).pages
    if "text/html" in request.headers.get("accept", "") and request.method == "GET":
        return HTMLResponse(pages.message(str(error.detail)), error.status_code)
    return PlainError(error.status_code, pages.sentence(str(error.detail), _language(request)))


def _malformed(request: Request, error: Exception) -> Response:
    """A request that is not of the expected form. The input is not echoed."""
    assert isinstance(error, RequestValidationError)
    where = ".".join(str(part) for part in error.errors()[0]["loc"][:2])
    return PlainError(422, f"The request is not of the expected form ({where}).")


def create_app(session: Session, hosts: frozenset[str] = frozenset(), base: str = "") -> FastAPI:
    """The application. It answers only under the names in `hosts` (empty: any). `base` is the origin of the annotators'
    links: pages of it may send answers whatever the Host header is, and if it is https the cookie is `Secure`."""
    app = FastAPI(title="local-bench annotate", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.context = _Context(session, Pages(session), LinkLimit(), base)
    app.add_middleware(Guard, hosts=hosts, refuse=_failed)
    app.add_exception_handler(HTTPException, _failed)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=Path(__file__).parent / "static"))
    return app
