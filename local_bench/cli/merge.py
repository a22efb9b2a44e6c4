"""`local-bench merge`."""

from pathlib import Path

import click

from local_bench.cli.options import JSON, PATH, examples, runs_completed
from local_bench.cli.output import progress, show, show_json


@click.command(
    epilog=examples(
        "local-bench merge runs/whole runs/part-1 runs/part-2",
    )
)
@click.argument("out", metavar="OUT", type=PATH)
@click.argument("parts", metavar="RUN...", type=PATH, nargs=-1, required=True, shell_complete=runs_completed)
@click.option("--partial", is_flag=True, help="Merge although shards are missing.")
@JSON
def merge(out: Path, parts: tuple[Path, ...], partial: bool, as_json: bool) -> int:
    """Merge run directories into OUT: the shards of a run, or runs of other models on the same tasks.

    A part is made by `run --shard 1/2 --run-dir runs/part-1`. Every part is verified first. The parts are not
    changed; merging again, in any order, gives the same run."""
    from local_bench.runs.merge import merge as merged

    with progress() as shown:
        result = merged(out, parts, partial, shown.note)
    if as_json:
        fields = {"n_parts": result.n_parts, "n_tasks": result.n_tasks, "n_candidates": result.n_candidates}
        show_json({"run_dir": str(result.path)} | fields | {"missing_shards": list(result.missing_shards)})
    else:
        show(f"{out}: {result.n_tasks:,} tasks and {result.n_candidates:,} candidates of {result.n_parts} runs")
    return 0
