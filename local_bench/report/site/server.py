"""Serves a site below a secret path while it is written, with the state of runs that are in progress."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp

    from local_bench.report.site.live import LiveRun

Write = Callable[[Callable[[str], None], Callable[[], None]], None]
"""Writes a site: `write(note, ready)` as in `build.write_site`."""
_WAITING = """<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="color-scheme" content="light dark">
<meta http-equiv="refresh" content="{seconds}"><title>local-bench</title></head>
<body><h1>local-bench</h1><p role="status">{text}</p></body></html>"""


class Writing:
    """A site that is written in a thread."""

    def __init__(self, write: Write, failed: Callable[[Exception], None] = lambda _: None) -> None:
        """`failed` gets what ended the writing."""
        self._write, self._failed = write, failed
        self._thread: threading.Thread | None = None
        self.step: str | None = None
        """What is being written or why it failed, while the pages cannot be shown."""

    @property
    def active(self) -> bool:
        """Whether pages or figures are being written."""
        return self._thread is not None and self._thread.is_alive()

    def start(self) -> None:
        """Write the site; nothing if it is being written."""
        if not self.active:
            self.step = "starting"
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()

    def _run(self) -> None:
        def note(step: str) -> None:
            if self.step is not None:
                self.step = step

        def ready() -> None:
            self.step = None

        try:
            self._write(note, ready)
        except Exception as e:  # noqa: BLE001  # passed on
            self.step = f"it failed: {e}"
            self._failed(e)

    def page(self) -> str | None:
        """A page that says what is being written and loads itself again; None if the pages can be shown."""
        step = self.step
        if step is None:
            return None
        if self.active:
            return _WAITING.format(
                seconds=1, text=f"The pages are being computed: {escape(step)}. They appear here by themselves."
            )
        self.start()
        return _WAITING.format(
            seconds=10, text=f"The pages cannot be shown, {escape(step)}. The next try is under way."
        )


def create_app(folder: Path, token: str, runs: "Sequence[LiveRun]", writing: Writing) -> "ASGIApp":
    """The files of `folder` below `/{token}/`, `live.json` with the runs' state, `live/{digest}.png` their images, and
    `POST refresh`, which writes the site again. Until the pages are written, the first one says so; a figure is sent
    when it is drawn."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import FileResponse, HTMLResponse, JSONResponse, PlainTextResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    files, polls = StaticFiles(directory=folder, html=True, check_dir=False), asyncio.Lock()

    async def index(request: "Request") -> "Response":
        page = writing.page()
        if page is None:
            return FileResponse(folder / "index.html", headers={"Cache-Control": "no-cache"})
        policy = {"Content-Security-Policy": "default-src 'none'", "Cache-Control": "no-store"}
        return HTMLResponse(page, headers=policy)

    async def figure(request: "Request") -> "Response":
        path = f"figures/{request.path_params['name']}.svg"
        while writing.active and not (folder / path).is_file():
            await asyncio.sleep(0.2)
        return await files.get_response(path, request.scope)

    async def live(request: "Request") -> "Response":
        from local_bench.report.site.live import states

        async with polls:  # one at a time: the runs' state changes with each
            state = await run_in_threadpool(states, runs)
        return JSONResponse(state, headers={"Cache-Control": "no-store"})

    async def image(request: "Request") -> "Response":
        sha = request.path_params["sha"]
        file = next((state for run in runs if (state := run.image(sha)) is not None), None)
        if file is None or not file.is_file():
            return PlainTextResponse("no such image", 404)
        return FileResponse(file, media_type="image/png")

    async def refresh(request: "Request") -> "Response":
        if writing.active:
            return PlainTextResponse("the site is already being written", 409)
        writing.start()
        return PlainTextResponse("writing", 202)

    async def no_icon(request: "Request") -> "Response":
        return PlainTextResponse("", 204)

    routes = [
        Route("/", index),
        Route("/live.json", live),
        Route("/live/{sha}.png", image),
        Route("/refresh", refresh, methods=["POST"]),
        Route("/figures/{name}.svg", figure),
        Mount("/", files),
    ]
    app = Starlette(routes=[Route("/favicon.ico", no_icon), Mount(f"/{token}", routes=routes)])
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return app
