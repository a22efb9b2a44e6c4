"""Serves a site below a secret path, with the state of runs that are in progress."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from local_bench.report.site.live import LiveRun, states

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.types import ASGIApp


def create_app(folder: Path, token: str, runs: Sequence[LiveRun], write_again: Callable[[], None]) -> "ASGIApp":
    """The files of `folder` below `/{token}/`, `live.json` with the runs' state, `live/{digest}.png` their images, and
    `POST refresh`, which calls `write_again` in a thread."""
    from starlette.applications import Starlette
    from starlette.concurrency import run_in_threadpool
    from starlette.middleware.trustedhost import TrustedHostMiddleware
    from starlette.responses import FileResponse, JSONResponse, PlainTextResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles

    writing = False

    async def live(request: "Request") -> "Response":
        return JSONResponse(states(runs), headers={"Cache-Control": "no-store"})

    async def image(request: "Request") -> "Response":
        sha = request.path_params["sha"]
        file = next((found for one in runs if (found := one.image(sha)) is not None), None)
        if file is None or not file.is_file():
            return PlainTextResponse("no such image", 404)
        return FileResponse(file, media_type="image/png")

    async def refresh(request: "Request") -> "Response":
        nonlocal writing
        if writing:
            return PlainTextResponse("the site is already being written", 409)
        writing = True
        try:
            await run_in_threadpool(write_again)
        finally:
            writing = False
        for one in runs:
            one.shown = None
        return PlainTextResponse("written")

    routes = [
        Route("/live.json", live),
        Route("/live/{sha}.png", image),
        Route("/refresh", refresh, methods=["POST"]),
        Mount("/", StaticFiles(directory=folder, html=True)),
    ]

    async def no_icon(request: "Request") -> "Response":
        return PlainTextResponse("", 204)

    app = Starlette(routes=[Route("/favicon.ico", no_icon), Mount(f"/{token}", routes=routes)])
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=["127.0.0.1", "localhost"])
    return app
