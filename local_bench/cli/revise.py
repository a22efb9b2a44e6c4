"""`local-bench revise`: refused images as orders for an editing model, and what that is worth."""

from pathlib import Path

import click

from local_bench.cli.output import show, show_json
from local_bench.core.money import usd, usd_number
from local_bench.core.tables import table

RUN = click.Path(path_type=Path)


@click.group()
def revise() -> None:
    """Have refused images revised by an editing model, by the judges' own reasons."""


@revise.command("write")
@click.argument("run_dir", metavar="RUN", type=RUN)
@click.option("--out", required=True, type=RUN, help="A new folder for the orders and their images.")
@click.option("--model", "models", multiple=True, metavar="LABEL", help="Only this model's images; may be repeated.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def write(run_dir: Path, out: Path, models: tuple[str, ...], as_json: bool) -> int:
    """Write an order for every first attempt in RUN that was refused.

    Its source is the refused image, its brief what the judges found wrong. Run the orders with editing models
    (suite.name=servimage, suite.path=OUT/tasks.jsonl), then `revise settle RUN OUT REVISED_RUN`."""
    from local_bench.analysis.revisions import write_revisions
    from local_bench.runs.rundir import RunDir

    with RunDir.open(run_dir) as run:
        found = write_revisions(run, out, models)
    if as_json:
        counts = {"n": found.n, "n_accepted": found.n_accepted, "n_open": found.n_open, "by_model": found.by_model}
        show_json({"written": str(found.orders)} | counts)
    else:
        show(
            f"{found.n} refused images written as orders in {found.orders}; {found.n_accepted} were accepted, "
            f"{found.n_open} have no image or no decision: run with --set suite.path={found.orders}"
        )
    return 0


@revise.command("settle")
@click.argument("run_dir", metavar="RUN", type=RUN)
@click.argument("folder", type=RUN)
@click.argument("revised_dir", metavar="REVISED_RUN", type=RUN)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def settle(run_dir: Path, folder: Path, revised_dir: Path, as_json: bool) -> int:
    """Compare one revision of what was refused in RUN with its other ways of working.

    FOLDER is what `revise write` made, REVISED_RUN a run of its orders. Images, looks by a person, what is earned,
    and what the images cost: of the first attempts and of the revisions."""
    from local_bench.analysis.revisions import revised_ways
    from local_bench.runs.rundir import RunDir

    with RunDir.open(run_dir) as run, RunDir.open(revised_dir) as revised:
        found = revised_ways(run, folder, revised)
    if as_json:
        ways = [
            {
                "model": way.model,
                "way": way.worked.way,
                "n": way.worked.n_tasks,
                "n_passed": way.worked.n_passed,
                "n_passed_high": way.worked.n_passed_high,
                "n_images": way.worked.n_images,
                "n_reviews": way.worked.n_reviews,
                "revenue_usd": usd_number(way.revenue_micro_usd),
                "images_usd": None if way.images_usd is None else float(way.images_usd),
            }
            for way in found
        ]
        show_json({"ways": ways})
        return 0
    rows = [
        [
            *(way.model, way.worked.way, f"{way.worked.n_passed}/{way.worked.n_tasks}", str(way.worked.n_images)),
            *(str(way.worked.n_reviews), usd(way.revenue_micro_usd)),
            "-" if way.images_usd is None else f"${float(way.images_usd):.4f}",
        ]
        for way in found
    ]
    show(table(["model", "way", "passed", "images", "looks", "earned", "cost of images"], rows))
    return 0
