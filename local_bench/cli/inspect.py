"""Commands on existing runs: `ls`, `report`, `view`, `digest`, `verify` and `recover`."""

import secrets
import socket
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from local_bench.cli.options import ALLOW_REMOTE, JSON, PATH, RUN, SETTING, examples, opened, run_dirs, runs_completed
from local_bench.cli.output import progress, say, say_faults, say_written, show, show_json, show_result
from local_bench.core.errors import UserError, count
from local_bench.report.render import aligned

if TYPE_CHECKING:
    from local_bench.report.site.live import LiveRun


@click.command("ls", epilog=examples("local-bench ls", "local-bench ls /data/runs --json"))
@click.argument("folder", metavar="[FOLDER]", type=PATH, required=False)
@JSON
def list_runs(folder: Path | None, as_json: bool) -> int:
    """List the runs in FOLDER [default: runs/]: suite, models and progress."""
    from local_bench.core.files import runs_dir

    if folder is None:
        folder = runs_dir()
    elif not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder that contains run directories")
    rows = [_run_row(path) for path in run_dirs(folder)]
    header = ["run", "suite", "models", "images", "unscored", "verdicts", "modified", "fault"]
    text = aligned(header, [_table_row(row) for row in rows]) if rows else f"no runs in {folder}"
    return show_result({"folder": str(folder), "runs": rows}, text, as_json)


def _run_row(path: Path) -> dict[str, Any]:
    from local_bench.core.errors import LocalBenchError
    from local_bench.runs.rundir import RunDir
    from local_bench.runs.store import LEDGER

    row: dict[str, Any] = {"run_dir": str(path), "suite": None, "models": [], "fault": None}
    row |= dict.fromkeys(("n", "n_done", "n_unscored", "n_verdicts", "changed"))
    try:
        with RunDir.open(path) as run:
            counts = run.store.counts()
            row |= {"suite": run.config.suite.name, "models": [model.label for model in run.config.models]}
            row |= {"n": counts.candidates, "n_done": counts.done, "n_unscored": counts.unscored}
            row |= {"n_verdicts": counts.verdicts}
        changed = datetime.fromtimestamp((path / LEDGER).stat().st_mtime).astimezone()
        row["changed"] = changed.isoformat(timespec="seconds")
    except LocalBenchError as e:
        row["fault"] = str(e)
    return row


def _table_row(row: dict[str, Any]) -> list[str]:
    if row["fault"]:
        return [row["run_dir"], "-", "-", "-", "-", "-", "-", row["fault"]]
    counts = [f"{row['n_done']}/{row['n']}", str(row["n_unscored"]), str(row["n_verdicts"])]
    when = datetime.fromisoformat(row["changed"]).strftime("%Y-%m-%d %H:%M")
    return [row["run_dir"], row["suite"], ", ".join(row["models"]), *counts, when, ""]


@click.command(
    epilog=examples(
        "local-bench report runs/studio --figures", "local-bench report runs/a runs/b --out site/      # to share"
    )
)
@click.argument("run_dirs", metavar="RUN…", nargs=-1, required=True, type=PATH, shell_complete=runs_completed)
@click.option("--out", type=PATH, help="Write a site of all RUNs, which can be copied, to this folder.")
@click.option(
    "--figures", is_flag=True, help="Also draw the figures, as SVG, PDF, PNG and CSV, to RUN/exports/figures."
)
@click.option(
    "--single-file", is_flag=True, help="Also write the site as one file to mail, report.html beside its index."
)
@JSON
def report(run_dirs: tuple[Path, ...], out: Path | None, figures: bool, single_file: bool, as_json: bool) -> int:
    """Write RUN's report and exports, or with --out a report of one RUN or several.

    The report is the site that `view` serves: leaderboard, models, tasks, a gallery of all images with filters, judges,
    costs and provenance. It opens from a file, RUN/report/index.html. RUN/exports has all data as CSV and Parquet, and
    tables for papers as LaTeX, Markdown and CSV."""
    from local_bench.report.site.build import FOLDER, write_site

    if out is None and len(run_dirs) > 1:
        raise UserError("RUN/report is of one run: give --out FOLDER for a site of several runs")
    with opened(run_dirs) as runs:
        workers, result = runs[0].config.engine.io_workers, dict[str, Any]()
        if out is None:
            from local_bench.analysis.settlement import accounting
            from local_bench.report.settlement import economics_json
            from local_bench.report.site.paper import write_exports, write_run_figures

            run = runs[0]
            run.image_store.check(run.store, decode=True, io_workers=workers)
            money = accounting(run.store, run.config.settlement)
            exports = write_exports(run, money, say) + (write_run_figures(run, money) if figures else [])
            result = {"exports": [str(path) for path in exports], "economics": economics_json(run, money)}
        site = write_site(runs, out or run_dirs[0] / FOLDER, workers, say if out else lambda _: None)
        faults = [fault for run in runs for fault in run.image_store.all_faults]
        say_written(*runs)
    result |= {"report": str(site.index)} if out is None else vars(site) | {"index": str(site.index)}
    if single_file:
        from local_bench.report.site.build import write_single_file

        result["single_file"] = str(write_single_file(site.index))
    values = result if out else result | {"image_faults": [vars(fault) for fault in faults]}
    show_result(values, f"{'site' if out else 'report'}: {result.get('single_file', site.index)}", as_json)
    if out is None:
        return say_faults(faults)
    if site.n_missing:
        say(f"local-bench: {count(site.n_missing, 'images are')} missing or damaged: `local-bench verify` lists them")
    return int(bool(site.n_missing))


@click.command(epilog=examples("local-bench digest runs/studio --json"))
@RUN
@click.option("--fast", is_flag=True, help="Do not check the image files.")
@JSON
def digest(run_dir: Path, fast: bool, as_json: bool) -> int:
    """Print content digests of RUN: images, verdicts, scores, settlement, and the root of all results.

    Two runs with equal digests have the same content. Exit 1 if an image file differs from its recorded digest."""
    from local_bench.analysis.digest import digests
    from local_bench.runs.rundir import RunDir
    from local_bench.runs.store.contents import root

    with RunDir.open(run_dir) as run:
        digests_of = digests(run) | {"root": root(run.store)}
        faults = run.image_store.check(run.store, decode=not fast, io_workers=run.config.engine.io_workers)
    values: dict[str, Any] = digests_of | ({"images_checked": False} if fast else {})
    values |= {"image_faults": [vars(fault) for fault in faults]} if faults else {}
    show_result(values, aligned(["of", "sha256"], list(digests_of.items())), as_json)
    if fast:
        say("the pixels of the image files were not checked (--fast)")
    return say_faults(faults)


@click.command(
    epilog=examples(
        "local-bench verify runs/studio", "local-bench verify runs/studio --deep 5 --set suite.path=data/tasks.jsonl"
    )
)
@RUN
@click.option("--deep", metavar="N", type=click.IntRange(1), help="Also generate and judge N tasks again.")
@SETTING
@ALLOW_REMOTE
@JSON
def verify(run_dir: Path, deep: int | None, settings: tuple[str, ...], allow_remote: bool, as_json: bool) -> int:
    """Check that RUN is what local-bench wrote.

    Compares every image file with its digest, every row with its identity and with the record of the last command,
    and computes question ids, scores and decisions again. Lists what differs; exit 1 if anything does."""
    from local_bench.runs.image_store import stored_digests
    from local_bench.runs.rundir import RunDir
    from local_bench.runs.store.contents import root
    from local_bench.runs.verify import verify as checked

    with RunDir.open(run_dir) as run, progress() as shown:
        findings = checked(run, shown.note)
        if deep:
            from local_bench.runs.config import load_config_to_judge
            from local_bench.runs.verify import repeat_tasks

            config = load_config_to_judge(run_dir / "run.yaml", settings, allow_remote=allow_remote)
            findings += repeat_tasks(run, config, deep, shown)
        n = sum(map(len, stored_digests(run.store).values()))
        faults, digest_ = run.image_store.all_faults, root(run.store)
    result = {"n_pictures": n, "image_faults": [vars(fault) for fault in faults], "ok": not findings}
    result |= {"findings": [vars(finding) for finding in findings], "root": digest_}
    text = f"all checks passed: {count(n, 'image files')}, and all rows of the database; root {digest_}"
    if findings:
        text = aligned(["check", "subject", "fault"], [[f.check, f.subject, f.fault] for f in findings])
    show_result(result, text, as_json)
    return say_faults(faults) or int(bool(findings))


@click.command(epilog=examples("local-bench recover runs/studio"))
@RUN
@JSON
def recover(run_dir: Path, as_json: bool) -> int:
    """Replace RUN's damaged database by its latest backup.

    The damaged file is renamed to ledger.damaged.N.sqlite. An intact database is not changed."""
    from local_bench.runs.rundir import recover as restore

    restored = restore(run_dir)
    done = restored.committed
    values: dict[str, Any] = {"backup": str(restored.backup), "kept": restored.kept and str(restored.kept)}
    values |= {"n_candidates": restored.n_candidates}
    values |= {f"n_{name}": n for name, n in done._asdict().items() if name != "candidates"}
    text = (
        f"{restored.damage}; replaced by {restored.backup}"
        + (f", the damaged file is now {restored.kept}" if restored.kept else "")
        + f"\n{done.candidates:,} of {restored.n_candidates:,} candidates finished, {done.verdicts:,} verdicts, "
        f"{done.retests:,} retests, {done.scores:,} scores"
        "\nrun the command of this run again to complete the work missing from the backup"
    )
    return show_result(values | {"n_finished": done.candidates}, text, as_json)


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
    from local_bench.core.files import cache_dir, runs_dir
    from local_bench.core.types import digest

    other = next((path for path in targets if not (path / "run.yaml").is_file()), None)
    if other is not None and (len(targets) > 1 or not other.is_dir()):
        raise UserError(f"{other} is not a run directory (it has no run.yaml): give one created by `local-bench run`")
    folder = other or runs_dir()
    paths = list(targets) if targets and other is None else run_dirs(folder)
    if not paths:
        raise UserError(f"there is no run in {folder}: give run directories, or the folder that contains them")
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
