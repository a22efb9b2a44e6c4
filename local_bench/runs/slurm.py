"""Slurm scripts for a run: one array task per shard, and a job that merges the shards."""

import shlex
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from local_bench.core.errors import ConfigError, LocalBenchError
from local_bench.core.paths import config_files, is_safe_id
from local_bench.core.storage import write_atomic
from local_bench.core.yamlfile import Strict, load_yaml
from local_bench.runs.config import RunConfig

SHARDS, MERGE = "shards.sbatch", "merge.sbatch"
_GRACE_S = 120
"""Time between SIGTERM and the end of a job: a run stops between two commits, which takes seconds."""


class Cluster(Strict):
    """Settings of a cluster, from `slurm.yaml` in a config folder (`./local-bench/`, `--config-dir`)."""

    gpus: str = "--gpus-per-node={n}"
    """The option that requests `{n}` GPUs; `--gres=gpu:a100:{n}` where GPU types differ. Shards must run on one
    type."""
    cpus_per_gpu: int = Field(8, ge=1)
    mem_per_gpu_gb: int = Field(64, ge=1)
    time: str = "24:00:00"
    """Time limit of a job. A job that reaches it is requeued, or is continued by submitting the scripts again."""
    options: list[str] = Field(default=[])
    """More options of sbatch, such as `--partition=gpu` or `--account=lab`."""
    setup: list[str] = Field(default=[])
    """Shell lines before local-bench starts, such as `module load cuda` or `source .venv/bin/activate`."""


@dataclass(frozen=True)
class SlurmJob:
    """What to run where."""

    config: Path
    run_dir: Path
    nodes: int
    gpus_per_node: int
    settings: tuple[str, ...] = ()
    """`key.sub=value` settings for every shard."""


def cluster() -> Cluster:
    """The first `slurm.yaml` of the config folders; the defaults if there is none."""
    files = config_files("slurm.yaml")
    return load_yaml(files[0], Cluster) if files else Cluster()


def shards_script(job: SlurmJob, name: str, settings: Cluster) -> str:
    """An array job with one task, and one node, per shard. Each task has a run directory of its own."""
    n = job.nodes
    command = [
        *("local-bench", "run", str(job.config.resolve())),
        *(part for setting in job.settings for part in ("--set", setting)),
    ]
    return "\n".join(
        [
            *_head(job, name, settings, job.gpus_per_node),
            f"#SBATCH --array=1-{n}",
            f"#SBATCH --output={job.run_dir.resolve()}/slurm-%A-%a.log",
            *_body(settings),
            f'shard="$SLURM_ARRAY_TASK_ID/{n}"',
            f'run_dir={shlex.quote(str(job.run_dir.resolve()))}"/shard-$SLURM_ARRAY_TASK_ID"',
            # The shell forwards SIGTERM, so that the run stops between two commits before the job ends.
            "trap 'kill -TERM \"$run\" 2>/dev/null' TERM",
            f'srun --kill-on-bad-exit=1 {shlex.join(command)} --shard "$shard" --run-dir "$run_dir" &',
            "run=$!",
            'wait "$run" && exit 0',
            'wait "$run"',
            "",
        ]
    )


def merge_script(job: SlurmJob, name: str, settings: Cluster) -> str:
    """A job without GPUs that merges the shards and writes the report."""
    run_dir = job.run_dir.resolve()
    parts = [str(run_dir / f"shard-{i}") for i in range(1, job.nodes + 1)]
    return "\n".join(
        [
            *_head(job, f"{name}-merge", settings, 0),
            f"#SBATCH --output={run_dir}/slurm-merge-%j.log",
            *_body(settings),
            shlex.join(["local-bench", "merge", str(run_dir / "merged"), *parts]),
            shlex.join(["local-bench", "settle", str(run_dir / "merged")]),
            shlex.join(["local-bench", "verify", str(run_dir / "merged")]),
            "",
        ]
    )


def _head(job: SlurmJob, name: str, settings: Cluster, gpus: int) -> list[str]:
    per_gpu = max(1, gpus)
    return [
        "#!/bin/bash",
        f"#SBATCH --job-name={name}",
        "#SBATCH --nodes=1",
        "#SBATCH --ntasks=1",
        *([f"#SBATCH {settings.gpus.format(n=gpus)}"] if gpus else []),
        f"#SBATCH --cpus-per-task={settings.cpus_per_gpu * per_gpu}",
        f"#SBATCH --mem={settings.mem_per_gpu_gb * per_gpu}G",
        f"#SBATCH --time={settings.time}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:TERM@{_GRACE_S}",
        *(f"#SBATCH {option}" for option in settings.options),
    ]


def _body(settings: Cluster) -> list[str]:
    return ["set -uo pipefail", "export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1", *settings.setup]


def write_scripts(config: RunConfig, job: SlurmJob) -> tuple[Path, Path]:
    """Write both scripts into the run directory. ConfigError for settings that cannot be in a script."""
    if not is_safe_id(config.name):
        raise ConfigError(f"name: {config.name!r} cannot name a job: use letters, digits, '.', '_' and '-'")
    settings = cluster()
    for line in (*settings.options, settings.gpus, settings.time):
        if "\n" in line:
            raise ConfigError(f"slurm.yaml: {line!r} has more than one line: give one option per entry")
    paths = job.run_dir / SHARDS, job.run_dir / MERGE
    name = f"local-bench-{config.name}"
    for path, text in zip(paths, (shards_script(job, name, settings), merge_script(job, name, settings)), strict=True):
        write_atomic(path, text.encode())
    return paths


def submit(shards: Path, merging: Path) -> tuple[str, str]:
    """Submit both scripts, the second to start when all shards are done; return the job ids."""
    first = _sbatch("--parsable", str(shards))
    return first, _sbatch("--parsable", f"--dependency=afterok:{first}", str(merging))


def _sbatch(*arguments: str) -> str:
    program = shutil.which("sbatch")
    if program is None:
        raise LocalBenchError("sbatch is not on this machine: submit the scripts on a login node of the cluster")
    done = subprocess.run([program, *arguments], capture_output=True, text=True, timeout=120, check=False)
    if done.returncode:
        raise LocalBenchError(f"sbatch refused {arguments[-1]}: {done.stderr.strip()[:300]}")
    return done.stdout.strip().partition(";")[0]
