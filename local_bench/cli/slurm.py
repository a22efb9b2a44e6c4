"""`local-bench slurm`."""

from pathlib import Path

import click

from local_bench.cli.options import CONFIG, JSON, PATH, SETTING, examples
from local_bench.cli.output import show, show_json


@click.command(
    epilog=examples(
        "local-bench slurm my.yaml --nodes 4 --gpus-per-node 8",
        "local-bench slurm my.yaml --nodes 4 --gpus-per-node 8 --submit",
    )
)
@CONFIG
@click.option("--nodes", type=click.IntRange(1, 1000), required=True, help="Number of shards, one node each.")
@click.option("--gpus-per-node", type=click.IntRange(1, 64), default=1, show_default=True, help="GPUs of each node.")
@click.option("--run-dir", type=PATH, help="Folder of the shards and of the merged run [default: runs/NAME].")
@click.option("--submit", is_flag=True, help="Also submit the scripts with sbatch.")
@SETTING
@JSON
def slurm(
    config: Path,
    nodes: int,
    gpus_per_node: int,
    run_dir: Path | None,
    submit: bool,
    settings: tuple[str, ...],
    as_json: bool,
) -> int:
    """Write Slurm scripts that run CONFIG in shards and merge them.

    An array job runs one shard per node, each in a run directory of its own; a second job merges them. A job that is
    killed, preempted or requeued continues where it stopped. Settings of the cluster (partition, account, modules) come
    from slurm.yaml in ./local-bench/ or --config-dir."""
    from local_bench.core.paths import runs_dir
    from local_bench.runs import slurm as scripts
    from local_bench.runs.config import load_config

    loaded = load_config(config, settings)
    job = scripts.SlurmJob(config, run_dir or runs_dir() / loaded.name, nodes, gpus_per_node, settings)
    paths = scripts.write_scripts(loaded, job)
    ids = scripts.submit(*paths) if submit else None
    if as_json:
        show_json({"scripts": [str(path) for path in paths], "jobs": None if ids is None else list(ids)})
    elif ids:
        show(f"submitted job {ids[0]} ({nodes} shards) and job {ids[1]}, which merges them into {job.run_dir}/merged")
    else:
        first, second = paths
        show(
            f"wrote {first} and {second}\nsubmit them with\n  id=$(sbatch --parsable {first})\n"
            f'  sbatch --dependency=afterok:"${{id%%;*}}" {second}'
        )
    return 0
