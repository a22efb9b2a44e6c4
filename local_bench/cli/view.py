"""`local-bench view`: the site of one run or several, served on this machine."""

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import click

from local_bench.cli.options import JSON, PATH, examples, opened, run_dirs, runs_completed
from local_bench.cli.output import say, show, show_json
from local_bench.core.errors import UserError

if TYPE_CHECKING:
    from local_bench.report.site.live import LiveRun


@click.command(epilog=examples("local-bench view runs/studio", "local-bench view                 # all runs in runs/"))
@click.argument("targets", metavar="[RUN…|FOLDER]", nargs=-1, type=PATH, shell_complete=runs_completed)
@click.option("--port", type=click.IntRange(0, 65535), default=8766, show_default=True, help="0: any free port.")
@JSON
def view(targets: tuple[Path, ...], port: int, as_json: bool) -> int:
    """Browse runs: leaderboard, models, tasks with all images side by side, and a gallery with filters.

    Of a run in progress it shows the progress, the time left, recent images and the GPUs, updated every few seconds.
    Serves on this machine only, until Ctrl-C; the link contains a secret and works at once: the pages appear when they
    are computed, and are kept until a run changes. `report RUN… --out FOLDER` writes the same site as files."""
    from local_bench.annotation.serve import listening_socket
    from local_bench.core.files import cache_dir
    from local_bench.core.identity import digest

    paths = _runs(targets)
    out = cache_dir() / "sites" / digest([str(path.resolve()) for path in paths])[:16]
    with listening_socket("127.0.0.1", port) as bound:
        bound.listen()  # the first request waits for the server
        token = secrets.token_urlsafe(24)
        link = f"http://127.0.0.1:{bound.getsockname()[1]}/{token}/"
        if as_json:
            with opened(paths) as runs:
                n = sum(run.store.counts().candidates for run in runs)
            show_json({"link": link, "n_runs": len(paths), "n_candidates": n})
        else:
            show(link)
        say("local-bench: Ctrl-C stops the server")
        _serve(paths, out, token, bound)
    return 0


def _serve(paths: list[Path], out: Path, token: str, bound: socket.socket) -> None:
    """Serve the site of the runs until Ctrl-C, and write it meanwhile if they have changed. Raises what ends the first
    writing."""
    import uvicorn

    from local_bench.report.site.mark import complete, files, is_of, state
    from local_bench.report.site.server import Writing, create_app

    watched: list[LiveRun] = []
    failures: list[Exception] = []
    n_written = 0

    def write(note: Callable[[str], None], ready: Callable[[], None]) -> None:
        nonlocal n_written
        now = state(paths)
        unchanged = is_of(out, now)
        if unchanged:
            ready()
        from local_bench.report.site.live import LiveRun

        watched[:] = watched or map(LiveRun, paths)
        for live in watched:
            live.shown = [*files(live.path)]
        if not unchanged:
            from local_bench.report.site.build import write_site

            with opened(paths) as runs:
                write_site(runs, out, runs[0].config.engine.io_workers, note, ready)
            complete(out, now)
        n_written += 1

    def failed(error: Exception) -> None:
        if n_written:
            say(f"local-bench: the site was not written again: {error}")
        else:
            failures.append(error)
            server.should_exit = True

    writing = Writing(write, failed)
    app = create_app(out, token, watched, writing)
    config = uvicorn.Config(
        app, log_level="warning", access_log=False, server_header=False, lifespan="off", timeout_graceful_shutdown=2
    )
    server = uvicorn.Server(config)
    writing.start()
    with suppress(KeyboardInterrupt):
        server.run(sockets=[bound])
    for error in failures:
        raise error


def _runs(targets: tuple[Path, ...]) -> list[Path]:
    """The given runs, or those in the given folder [default: runs/]."""
    from local_bench.core.files import runs_dir

    if len(targets) == 1 and targets[0].is_dir() and not (targets[0] / "run.yaml").is_file():
        paths = run_dirs(targets[0])
        if not paths:
            raise UserError(f"there is no run in {targets[0]}: give run directories, or the folder that contains them")
        return paths
    if targets:
        for path in targets:
            if not (path / "run.yaml").is_file():
                raise UserError(
                    f"{path} is not a run directory (it has no run.yaml): give one created by `local-bench run`"
                )
        return list(targets)
    paths = run_dirs(runs_dir())
    if not paths:
        raise UserError(f"there is no run in {runs_dir()}: give run directories, or the folder that contains them")
    return paths
