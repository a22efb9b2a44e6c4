"""`local-bench view`: the site of one run or several, served on this machine."""

import secrets
from contextlib import ExitStack, suppress
from pathlib import Path

import click

from local_bench.cli.options import JSON, PATH, examples, run_dirs, runs_completed
from local_bench.cli.output import say, show, show_json
from local_bench.core.errors import UserError


@click.command(epilog=examples("local-bench view runs/studio", "local-bench view                 # all runs in runs/"))
@click.argument("targets", metavar="[RUN…|FOLDER]", nargs=-1, type=PATH, shell_complete=runs_completed)
@click.option("--port", type=click.IntRange(0, 65535), default=8766, show_default=True, help="0: any free port.")
@JSON
def view(targets: tuple[Path, ...], port: int, as_json: bool) -> int:
    """Browse runs: leaderboard, models, tasks with all images side by side, and a gallery with filters.

    Of a run in progress it shows the progress, the time left, recent images and the GPUs, updated every few seconds.
    Serves on this machine only, until Ctrl-C; the link contains a secret. `report RUN… --out FOLDER` writes the same
    site as files."""
    from local_bench.core.identity import digest
    from local_bench.core.paths import cache_dir
    from local_bench.judges.people.serve import listening_socket
    from local_bench.report.site.build import write_site
    from local_bench.report.site.live import LiveRun
    from local_bench.report.site.server import create_app
    from local_bench.runs.rundir import RunDir

    paths = _runs(targets)
    with ExitStack() as stack:
        runs = [stack.enter_context(RunDir.open(path)) for path in paths]
        out = cache_dir() / "sites" / digest([str(path.resolve()) for path in paths])[:16]
        site = write_site(runs, out, runs[0].config.engine.io_workers, say, live=True)
        bound = stack.enter_context(listening_socket("127.0.0.1", port))
        token = secrets.token_urlsafe(24)
        link = f"http://127.0.0.1:{bound.getsockname()[1]}/{token}/"
        if as_json:
            show_json({"link": link, "n_runs": site.n_runs, "n_candidates": site.n_candidates})
        else:
            show(link)
        say("local-bench: Ctrl-C stops the server")
        import uvicorn

        def write_again() -> None:
            with ExitStack() as again:
                opened = [again.enter_context(RunDir.open(path)) for path in paths]
                write_site(opened, out, opened[0].config.engine.io_workers, live=True)

        app = create_app(out, token, [LiveRun(run.path, run.store.counts()) for run in runs], write_again)
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, lifespan="off",
            timeout_graceful_shutdown=2,
        )  # fmt: skip
        with suppress(KeyboardInterrupt):
            uvicorn.Server(config).run(sockets=[bound])
    return 0


def _runs(targets: tuple[Path, ...]) -> list[Path]:
    """The given runs, or those in the given folder [default: runs/]."""
    from local_bench.core.paths import runs_dir

    if len(targets) == 1 and targets[0].is_dir() and not (targets[0] / "run.yaml").is_file():
        found = run_dirs(targets[0])
        if not found:
            raise UserError(f"there is no run in {targets[0]}: give run directories, or the folder that contains them")
        return found
    if targets:
        return list(targets)
    found = run_dirs(runs_dir())
    if not found:
        raise UserError(f"there is no run in {runs_dir()}: give run directories, or the folder that contains them")
    return found
