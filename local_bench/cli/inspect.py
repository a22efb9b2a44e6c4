"""The commands that look at a run: `report` and `digest`."""

from pathlib import Path

import click

from local_bench.cli.output import show, show_json, table

RUN = click.argument("run_dir", metavar="RUN", type=click.Path(path_type=Path))
JSON = click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")


@click.command()
@RUN
@JSON
def report(run_dir: Path, as_json: bool) -> int:
    """Write the report and the exports of RUN anew."""
    from local_bench.report.exports import write_exports
    from local_bench.report.page import write_report
    from local_bench.runs.rundir import RunDir

    with RunDir.open(run_dir) as run:
        exports = write_exports(run)
        page = write_report(run)
    if as_json:
        show_json({"report": str(page), "exports": [str(path) for path in exports]})
    else:
        show(f"report: {page}")
    return 0


@click.command()
@RUN
@JSON
def digest(run_dir: Path, as_json: bool) -> int:
    """Name what RUN found.

    One digest each for its images, verdicts, scores and settlement."""
    from local_bench.runs.digest import digests
    from local_bench.runs.rundir import RunDir

    with RunDir.open(run_dir) as run:
        found = digests(run)
    if as_json:
        show_json(found)
    else:
        show(table(["of", "sha256"], list(found.items())))
    return 0
