"""`local-bench revise`: tasks for an editing model from refused images, and the value of a revision."""

from pathlib import Path

import click

from local_bench.cli.options import JSON, PATH, RUN, Commands, examples, runs_completed
from local_bench.cli.output import quoted, say_notes, show_result
from local_bench.core.errors import count
from local_bench.core.money import usd_number
from local_bench.report.render import columns_text


@click.group(cls=Commands)
def revise() -> None:
    """Revise refused images with an editing model, based on the judges' reasons."""


@revise.command("write", epilog=examples("local-bench revise write runs/studio --out revisions"))
@RUN
@click.option("--out", required=True, type=PATH, help="A new folder for the tasks and their images.")
@click.option("--model", "models", multiple=True, metavar="LABEL", help="Only this model's images; repeatable.")
@JSON
def write(run_dir: Path, out: Path, models: tuple[str, ...], as_json: bool) -> int:
    """Write a task for every refused first attempt in RUN.

    The source image is the refused image; the brief is the judges' reasons. Run the tasks with editing models
    (suite.name=servimage, suite.path=OUT/tasks.jsonl), then `revise settle RUN OUT REVISED_RUN`."""
    from local_bench.analysis.revisions import write_revisions
    from local_bench.runs.rundir import RunDir

    with RunDir.open(run_dir) as run:
        result = write_revisions(run, out, models)
    values = {"written": str(result.tasks)} | {name: n for name, n in vars(result).items() if name != "tasks"}
    text = (
        f"{count(result.n, 'refused images')} written as tasks to {result.tasks}; {result.n_accepted} accepted, "
        f"{result.n_open} without image or decision: `local-bench run CONFIG --set suite.name=servimage "
        f"--set suite.path={quoted(result.tasks)}` revises them with the models of CONFIG"
    )
    return show_result(values, text, as_json)


@revise.command("settle", epilog=examples("local-bench revise settle runs/studio revisions runs/revised"))
@RUN
@click.argument("folder", type=PATH)
@click.argument("revised_dir", metavar="REVISED_RUN", type=PATH, shell_complete=runs_completed)
@JSON
def settle(run_dir: Path, folder: Path, revised_dir: Path, as_json: bool) -> int:
    """Compare one revision of refused images with one attempt, retries and best of N.

    FOLDER was written by `revise write`; REVISED_RUN is a run of its tasks. Reports the number of images and human
    reviews, the revenue and the cost of images, including revisions."""
    from local_bench.analysis.comparability import JUDGED, comparable
    from local_bench.analysis.revisions import revised_workflows
    from local_bench.analysis.unseen_inputs import unseen_inputs
    from local_bench.report.sections import workflow_table
    from local_bench.runs.rundir import RunDir

    with RunDir.open(run_dir) as run, RunDir.open(revised_dir) as revised:
        workflows = revised_workflows(run, folder, revised)
        # not the tasks, which differ, nor the rubrics, which may
        _, differences = comparable([run, revised], [JUDGED[0], JUDGED[2]])
        blind, n_made = unseen_inputs(revised).n_images, revised.store.n_candidates(made=True)
    notes = [f"{note}: revisions pass by another measure than first attempts" for note in differences]
    notes += [
        f"{model} made {n} of {count(n_made[model], 'revisions')} without all of their input images (refused image, "
        "references)"
        for model, n in blind.items()
    ]
    say_notes(*notes)
    ways = [
        {
            "model": way.model,
            "way": way.result.way,
            "n": way.result.n_tasks,
            **{name: getattr(way.result, name) for name in ("n_passed", "n_passed_high", "n_images", "n_reviews")},
            "revenue_usd": usd_number(way.revenue_micro_usd),
            "images_usd": None if way.images_usd is None else float(way.images_usd),
        }
        for way in workflows
    ]
    return show_result({"ways": ways, "notes": notes}, columns_text(workflow_table(workflows)), as_json)
