"""`local-bench judges compare`: the judges of a run side by side."""

from pathlib import Path

import click

from local_bench.cli.options import JSON, PATH, RUN, Commands, examples
from local_bench.cli.output import say, show


@click.group(cls=Commands)
def judges() -> None:
    """Compare the judges of a run."""


@judges.command(
    epilog=examples(
        "local-bench judges compare runs/demo                          # with ground truth",
        "local-bench judges compare runs/studio --people labels.jsonl",
        "local-bench judges compare runs/studio --people labels.jsonl --out judges.svg",
    )
)
@RUN
@click.option("--people", metavar="FILE|RUN", type=PATH, help="Human annotations, as `local-bench agreement` reads.")
@click.option("--out", type=PATH, help="Draw agreement and bias as .svg, .pdf or .png.")
@click.option(
    "--format", "form", type=click.Choice(["text", "csv", "latex", "json"]), default="text", help="[default: text]"
)
@JSON
def compare(run_dir: Path, people: Path | None, out: Path | None, form: str, as_json: bool) -> int:
    """Compare RUN's judges on the same labelled images.

    Agreement and bias in each dimension with intervals, against people's annotations or, without --people, the suite's
    ground truth; order sensitivity, successful prompt injections, repeatability and questions per second."""
    from local_bench.report.papers.draw import check_suffix, draw
    from local_bench.report.passport import passport
    from local_bench.report.render import FORMATS
    from local_bench.runs.rundir import RunDir

    if out is not None:
        check_suffix(out)
    with RunDir.open(run_dir) as run:
        found = passport(run, people)
    show(FORMATS["json" if as_json else form](found.data))
    for note in found.data.notes:
        say(note)
    if out is not None:
        draw(found, out)
    return 0
