"""`local-bench slurm` and `merge`: a run in shards on the nodes of a cluster."""

import shlex
from contextlib import nullcontext
from pathlib import Path

import click

from local_bench.cli.options import CONFIG, JSON, PATH, SETTING, examples, runs_completed
from local_bench.cli.output import progress, show_result
from local_bench.core.errors import count


@click.command(
    epilog=examples(
        "local-bench slurm my.yaml --nodes 4 --gpus-per-node 8",
        "local-bench slurm my.yaml --nodes 4 --gpus-per-node 8 --submit",
        "local-bench slurm my.yaml --nodes 4 --gpus-per-node 8 --ray --submit",
    )
)
@CONFIG
@click.option("--nodes", type=click.IntRange(1, 1000), required=True, help="Number of nodes (and of shards).")
@click.option("--gpus-per-node", type=click.IntRange(1, 64), default=1, show_default=True, help="GPUs of each node.")
@click.option(
    "--array/--ray",
    default=True,
    show_default=True,
    help="One job per shard and their merge, or one job whose nodes share the run.",
)
@click.option("--run-dir", type=PATH, help="Run directory, or folder of the shards [default: runs/NAME].")
@click.option("--submit", is_flag=True, help="Also submit the scripts with sbatch.")
@SETTING
@JSON
def slurm(
    config: Path,
    nodes: int,
    gpus_per_node: int,
    array: bool,
    run_dir: Path | None,
    submit: bool,
    settings: tuple[str, ...],
    as_json: bool,
) -> int:
    """Write Slurm scripts that run CONFIG on several nodes.

    An array job runs one shard per node, each in a run directory of its own; a second job merges them. With --ray, one
    job starts a Ray cluster on its nodes, which share one run; it needs the extra `ray`. A job that is killed,
    preempted or requeued continues where it stopped. Settings of the cluster (partition, account, modules) come
    from slurm.yaml in ./local-bench/ or --config-dir."""
    from local_bench.core.files import runs_dir
    from local_bench.runs import slurm as scripts
    from local_bench.runs.config import load_config

    loaded = load_config(config, settings)
    job = scripts.SlurmJob(config, run_dir or runs_dir() / loaded.name, nodes, gpus_per_node, settings, not array)
    paths = scripts.write_scripts(loaded, job)
    ids = scripts.submit(paths) if submit else None
    if ids and array:
        text = f"submitted job {ids[0]} ({nodes} shards) and job {ids[1]}, which merges them into {job.run_dir}/merged"
    elif ids:
        text = f"submitted job {ids[0]} ({nodes} nodes), which writes {job.run_dir}"
    elif not array:
        text = f"wrote {paths[0]}\nsubmit it with\n  sbatch {shlex.quote(str(paths[0]))}"
    else:
        first, second = (shlex.quote(str(path)) for path in paths)
        text = (
            f"wrote {paths[0]} and {paths[1]}\nsubmit them with\n  id=$(sbatch --parsable {first})\n"
            f'  sbatch --dependency=afterok:"${{id%%;*}}" {second}'
        )
    return show_result({"scripts": [str(path) for path in paths], "jobs": ids}, text, as_json)


@click.command(epilog=examples("local-bench merge runs/whole runs/part-1 runs/part-2"))
@click.argument("out", metavar="OUT", type=PATH)
@click.argument("parts", metavar="RUN...", type=PATH, nargs=-1, required=True, shell_complete=runs_completed)
@click.option("--partial", is_flag=True, help="Merge although shards are missing.")
@JSON
def merge(out: Path, parts: tuple[Path, ...], partial: bool, as_json: bool) -> int:
    """Merge run directories into OUT: the shards of a run, or runs of other models on the same tasks.

    A part is made by `run --shard 1/2 --run-dir runs/part-1`. Every part is verified first. The parts are not
    changed; merging again, in any order, gives the same run."""
    from local_bench.annotation.database import merge_annotations
    from local_bench.annotation.serve import lock_annotations
    from local_bench.runs.merge import merge as merged

    with progress() as shown, lock_annotations(out) if (out / "run.yaml").is_file() else nullcontext():
        result = merged(out, parts, partial, shown.note, merge_annotations=merge_annotations)
    values = {"run_dir": str(result.path), "n_parts": result.n_parts, "n_tasks": result.n_tasks}
    values |= {"n_candidates": result.n_candidates, "missing_shards": list(result.missing_shards)}
    text = f"{out}: {count(result.n_tasks, 'tasks')} and {count(result.n_candidates, 'candidates')} of "
    text += count(result.n_parts, "runs")
    return show_result(values, text, as_json)
