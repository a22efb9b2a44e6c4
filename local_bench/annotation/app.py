"""The web application of `local-bench annotate`.

Every request needs an annotator's token (a link sets it as a cookie), every change a CSRF token derived from it. Pages
load nothing from elsewhere and contain nothing about models; images are addressed by the digest of their pixels.
"""

import hashlib
import hmac
import re
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

import yaml
from fastapi import APIRouter, Body, Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import HTMLResponse, JSONResponse, RedirectResponse, Response
from jinja2 import Environment, PackageLoader, StrictUndefined
from pydantic import BaseModel, ConfigDict, Field
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from local_bench.annotation.database import AlreadyAnswered, Annotator
from local_bench.annotation.protocol import LANGUAGES, Answer, Item, Kind, Side
from local_bench.annotation.session import NOTE_CHARACTERS, InvalidAnswer, Session
from local_bench.annotation.summary import summary
from local_bench.core.errors import ImageError

_FOLDER = Path(__file__).parent
COOKIE = "local_bench_annotator"
MAX_BODY = 64 * 1024
AT_ONCE = 5
"""Most items that a page can load ahead."""
MOST_INVALID_LINKS, LINKS_WITHIN_S = 10, 60.0
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
    """Checks the Host header, limits the size of bodies, and adds the security headers to every response."""

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app, self._hosts = app, hosts

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
            refusal = _failed(Request(scope), HTTPException(400, "wrong_host"))
            await refusal(scope, receive, with_headers)
        else:
            await self._app(scope, limited, with_headers)


@cache
def texts(language: str) -> dict[str, str]:
    """Key -> text, in English if the interface does not have the language."""
    data = yaml.safe_load((_FOLDER / "text.yaml").read_text("utf-8"))
    return {key: by_language.get(language, by_language["en"]) for key, by_language in data.items()}


def preferred_language(request: Request) -> str:
    """The interface's language that the request's `Accept-Language` header prefers, else English."""
    header = request.headers.get("accept-language", "").lower()
    languages = re.findall(r"\b([a-z]{2,3})\b[a-z0-9-]*(?:\s*;\s*q=([01](?:\.\d+)?))?", header)
    ranked = sorted(languages, key=lambda language: -float(language[1] or 1))
    return next((name for name, _ in ranked if name in LANGUAGES), "en")


class AnswerIn(BaseModel):
    """An answer as the page sends it."""

    model_config = ConfigDict(extra="forbid", strict=True)
    request_id: str = Field(pattern=r"^[0-9a-f-]{8,64}$")
    item_id: str = Field(pattern=r"^[0-9a-f]{64}$")
    kind: Kind
    values: dict[Annotated[str, Field(max_length=8)], dict[Annotated[str, Field(max_length=40)], bool | int | str]]
    cannot_tell: str | None = Field(None, max_length=40)
    reasons: list[Annotated[str, Field(max_length=40)]] = Field([], max_length=30)
    note: str = Field("", max_length=NOTE_CHARACTERS)
    left: Side | None = None
    elapsed_ms: int | None = Field(None, ge=0, le=86_400_000)


def csrf_token(token: str) -> str:
    """The CSRF token of an annotator's secret; it survives restarts of the server."""
    return hmac.new(token.encode(), b"csrf", hashlib.sha256).hexdigest()


_JINJA = Environment(
    loader=PackageLoader("local_bench.annotation"),
    autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True,
)  # fmt: skip


def _html(template: str, **values: Any) -> str:
    return _JINJA.get_template(template).render(values)


def _entry(session: Session, me: Annotator, item: Item, kind: Kind, left: Side | None = None) -> dict[str, Any]:
    """One item for the page; `left` is the side of a pair on the left, by default the queue's. A repeat is marked only
    by its kind `repeat`, which the page does not show."""
    protocol, task = session.protocol, session.tasks[item.task_id]
    left = left or session.queue.left_side(me.name, item.item_id, kind)
    sides = (item.images, item.other) if left != "b" else (item.other, item.images)
    fields, keys = session.fields(item), session.keys(item)
    html = _html(
        "item.html.j2",
        t=texts(me.language),
        language=me.language,
        protocol=protocol,
        task=task,
        left=sides[0],
        right=sides[1],
        keys=keys,
        fields=fields,
        adjudication=kind == "adjudication",
        opinions=session.queue.opinions(item.item_id) if kind == "adjudication" else [],
        note_characters=NOTE_CHARACTERS,
        point_list=task.points if protocol.show_points and not protocol.points else (),
    )
    return {"item_id": item.item_id, "kind": kind, "left": left, "html": html, "direct": len(fields) == len(keys) == 1}


def _sentence(key: str, language: str) -> str:
    """The text with this key; the key itself if there is none."""
    return texts(language).get(key, key.replace("_", " "))


def _error(status: int, sentence: str) -> JSONResponse:
    return JSONResponse({"error": sentence}, status)


router = APIRouter()


def _session(request: Request) -> Session:
    session: Session = request.app.state.session
    return session


Opened = Annotated[Session, Depends(_session)]


def _annotator(request: Request, session: Opened) -> Annotator:
    token = request.cookies.get(COOKIE, "")
    annotator = session.database.annotator_of(token) if token else None
    if annotator is None:
        raise HTTPException(403, "link_invalid")
    session.queue.add(annotator.name, annotator.role)
    language = annotator.language or preferred_language(request)
    return replace(annotator, language=language if language in LANGUAGES else "en")


Me = Annotated[Annotator, Depends(_annotator)]


def _changing(request: Request, me: Me) -> Annotator:
    """The annotator of a request that changes something."""
    origin = request.headers.get("origin")
    if origin not in (None, request.app.state.base) and urlsplit(origin).netloc != request.headers.get("host"):
        raise HTTPException(403, "wrong_origin")
    sent = request.headers.get("x-csrf-token", "")
    if not hmac.compare_digest(sent.encode(), csrf_token(request.cookies[COOKIE]).encode()):
        raise HTTPException(403, "other_link")
    return me


def _lead(me: Me) -> Annotator:
    if me.role != "lead":
        raise HTTPException(403, "not_found")
    return me


Changing = Annotated[Annotator, Depends(_changing)]
Lead = Annotated[Annotator, Depends(_lead)]


@router.get("/a/{token}")
def enter(token: str, request: Request, session: Opened) -> Response:
    """A personal link: sets the cookie. A valid one is never refused: all clients of a proxy have its address."""
    annotator = session.database.annotator_of(token)
    if annotator is None:
        client, now = request.client.host if request.client else "", time.monotonic()
        invalid_links: dict[str, list[float]] = request.app.state.invalid_links
        recent = [at for at in invalid_links.get(client, ()) if now - at <= LINKS_WITHIN_S]
        if len(recent) >= MOST_INVALID_LINKS:
            raise HTTPException(429, "too_many")
        if len(invalid_links) > 10_000:
            invalid_links.clear()
        invalid_links[client] = [*recent, now]
        raise HTTPException(403, "link_invalid")
    secure = request.app.state.base.startswith("https:")
    response = RedirectResponse("/lead" if annotator.role == "lead" else "/", 303)
    response.set_cookie(COOKIE, token, max_age=90 * 86400, httponly=True, samesite="lax", secure=secure)
    return response


@router.get("/")
def page(request: Request, me: Me, session: Opened) -> Response:
    """The page of an annotator; its items are loaded by `queue`."""
    protocol = session.protocol
    option_keys = dict.fromkeys(o.key for field in protocol.fields_of(("",)) for o in field.options)
    return HTMLResponse(
        _html(
            "page.html.j2",
            t=texts(me.language),
            language=me.language,
            languages=LANGUAGES,
            protocol=protocol,
            option_keys=" ".join(option_keys),
            csrf=csrf_token(request.cookies[COOKIE]),
            me=me.name,
        )
    )


@router.get("/queue")
def queue(me: Me, session: Opened, n: int = 1) -> dict[str, Any]:
    """The next items as fragments, with the annotator's progress and the number of the latest answer."""
    entries = session.queue.next(me.name, max(1, min(n, AT_ONCE)))
    progress = session.queue.progress(me.name)
    return {
        "items": [_entry(session, me, item, kind) for item, kind in entries],
        "progress": {"done": progress.done, "left": max(progress.left, len(entries))},
        "last": session.database.latest(me.name, session.protocol.id),
        "more_later": not entries and session.queue.may_follow(me.name),
    }


@router.get("/image/{sha}")
def image(sha: str, me: Me, session: Opened) -> Response:
    if sha not in session.images:
        raise HTTPException(404, "image_failed")
    try:
        data = session.load_png(sha)
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
def answer(body: AnswerIn, me: Changing, session: Opened) -> Response:
    content = Answer(body.values, body.cannot_tell, tuple(body.reasons), body.note.strip(), body.left)
    try:
        session.answer(me, body.request_id, body.item_id, body.kind, content, body.elapsed_ms)
    except AlreadyAnswered:
        return _error(409, _sentence("stale", me.language))
    except InvalidAnswer as e:
        return _error(422, str(e))
    return JSONResponse({"saved": body.request_id})


@router.post("/undo")
def undo(number: Annotated[int, Body(embed=True, strict=True)], me: Changing, session: Opened) -> Response:
    withdrawn = session.undo(me, number)
    if withdrawn is None:
        return _error(409, _sentence("nothing_to_undo", me.language))
    item, stored = withdrawn
    entry = _entry(session, me, item, stored.kind, stored.given.left)
    return JSONResponse(entry | {"given": stored.given.content})


@router.post("/language")
def language(language: Annotated[str, Body(embed=True)], me: Changing, session: Opened) -> Response:
    chosen = language if language in LANGUAGES else "en"
    session.database.set_language(me.name, chosen)
    return JSONResponse({"language": chosen})


@router.get("/lead")
def lead(me: Lead, session: Opened) -> Response:
    now = datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return HTMLResponse(_html("lead.html.j2", found=summary(session), now=now))


@router.get("/lead.json")
def lead_json(me: Lead, session: Opened) -> dict[str, Any]:
    return asdict(summary(session))


def _failed(request: Request, error: Exception) -> Response:
    """An error as a page in every language if the browser asks for one, else as JSON."""
    assert isinstance(error, HTTPException)
    key = str(error.detail)
    if "text/html" in request.headers.get("accept", "") and request.method == "GET":
        lines = [(language, _sentence(key, language)) for language in LANGUAGES]
        return HTMLResponse(_html("message.html.j2", lines=lines), error.status_code)
    return _error(error.status_code, _sentence(key, preferred_language(request)))


def _malformed(request: Request, error: Exception) -> Response:
    """A request that is not of the expected form. The input is not echoed."""
    assert isinstance(error, RequestValidationError)
    where = ".".join(str(part) for part in error.errors()[0]["loc"][:2])
    return _error(422, f"The request is not of the expected form ({where}).")


def create_app(session: Session, hosts: frozenset[str] = frozenset(), base: str = "") -> FastAPI:
    """The application. It answers only under the names in `hosts` (empty: any). `base` is the origin of the annotators'
    links: pages of it may send answers whatever the Host header is, and if it is https the cookie is `Secure`."""
    app = FastAPI(title="local-bench annotate", docs_url=None, redoc_url=None, openapi_url=None)
    app.state.session, app.state.base = session, base
    app.state.invalid_links = {}  # client -> times at which it opened one
    app.add_middleware(Guard, hosts=hosts)
    app.add_exception_handler(HTTPException, _failed)
    app.add_exception_handler(RequestValidationError, _malformed)
    app.include_router(router)
    app.mount("/static", StaticFiles(directory=_FOLDER / "static"))
    return app
