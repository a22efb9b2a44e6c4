"""The commands about a finished run: `report`, `digest`, `verify` and `recover`."""

from pathlib import Path

import click

from local_bench.cli.output import say_faults, show, show_json
from local_bench.core.tables import table

RUN = click.argument("run_dir", metavar="RUN", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.command()
@RUN
@JSON
def report(run_dir: Path, as_json: bool) -> int:
    """Write the report and the exports of RUN anew."""
    from local_bench.analysis.settlement import accounting
    from local_bench.report.exports import write_exports
    from local_bench.report.page import write_report
    from local_bench.report.scenarios import economics_json
    from local_bench.runs.rundir import RunDir

    with RunDir.open(run_dir) as run:
        run.pictures.check(run.store, decode=True, io_workers=run.config.engine.io_workers)
        exports = write_exports(run)
        page = write_report(run)
        scenarios = economics_json(run, accounting(run.store, run.config.settlement))
        faults = run.pictures.all_faults
    if as_json:
        found = {"report": str(page), "exports": [str(path) for path in exports], "economics": scenarios}
        show_json(found | {"image_faults": [vars(fault) for fault in faults]})
    else:
        show(f"report: {page}")
    return say_faults(faults)


@click.command()
@RUN
@JSON
def digest(run_dir: Path, as_json: bool) -> int:
    """Name what RUN found.

    One digest each for its images, verdicts, scores and settlement. Exit 1 where a picture is not what the ledger
    says."""
    from local_bench.analysis.digest import digests
    from local_bench.runs.rundir import RunDir

    with RunDir.open(run_dir) as run:
        found = digests(run)
        faults = run.pictures.check(run.store, decode=True, io_workers=run.config.engine.io_workers)
    if as_json:
        show_json(found | ({"image_faults": [vars(fault) for fault in faults]} if faults else {}))
    else:
        show(table(["of", "sha256"], list(found.items())))
    return say_faults(faults)


@click.command()
@RUN
@JSON
def verify(run_dir: Path, as_json: bool) -> int:
    """Check that the ledger of RUN is sound and every picture is what the ledger says.

    Lists the pictures that are missing, damaged or altered; exit 1 where there are any."""
    from local_bench.runs.image_store import named
    from local_bench.runs.rundir import RunDir

    with RunDir.open(run_dir) as run:  # which checks the ledger
        n = sum(map(len, named(run.store).values()))
        faults = run.pictures.check(run.store, decode=True, io_workers=run.config.engine.io_workers)
    if as_json:
        show_json({"n_pictures": n, "image_faults": [vars(fault) for fault in faults]})
    elif faults:
        show(table(["picture", "fault"], [[fault.file, fault.fault] for fault in faults]))
    else:
        show(f"the ledger is sound, and all {n:,} pictures are what it says")
    return say_faults(faults)


@click.command()
@RUN
@JSON
def recover(run_dir: Path, as_json: bool) -> int:
    """Restore the damaged ledger of RUN from its backup.

    The damaged one is kept as ledger.damaged.N.sqlite. A ledger without damage is left alone."""
    from local_bench.runs.recover import recover as restore

    found = restore(run_dir)
    done = found.committed
    if as_json:
        kept = None if found.kept is None else str(found.kept)
        show_json(
            {"backup": str(found.backup), "kept": kept, "n_candidates": found.n_candidates}
            | {f"n_{name}": n for name, n in done._asdict().items() if name != "candidates"}
            | {"n_finished": done.candidates}
        )
    else:
        show(
            f"{found.damage}; {found.backup} is in its place"
            + (f", the damaged file is {found.kept}" if found.kept else "")
            + f"\n{done.candidates:,} of {found.n_candidates:,} candidates finished, {done.verdicts:,} verdicts, "
            f"{done.retests:,} retests, {done.scores:,} scores"
            "\nrun the command of this run again: it does what the backup does not have"
        )
    return 0
