"""Slurm scripts for a run: shards in an array job and their merge, or one job whose nodes share the run with Ray."""

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import Field

from local_bench.core.errors import ConfigError, LocalBenchError
from local_bench.core.files import CONFIG_DIRS, config_files, is_safe_id, write_atomic
from local_bench.core.yamlfile import Strict, load_yaml
from local_bench.runs.config import RunConfig

SHARDS, MERGE, RAY = "shards.sbatch", "merge.sbatch", "ray.sbatch"
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
    """Time limit of a job. Slurm does not requeue a job that reaches it: submit the scripts again to continue it."""
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
    """`key.sub=value` settings of the run."""
    ray: bool = False
    """One job whose nodes share the run, instead of one job per shard."""


def shards_script(job: SlurmJob, name: str, settings: Cluster) -> str:
    """An array job with one task, and one node, per shard. Each task has a run directory of its own."""
    n = job.nodes
    return "\n".join(
        [
            *_head(job, name, settings, "slurm-%A-%a.log", job.gpus_per_node, more=[f"#SBATCH --array=1-{n}"]),
            f'shard="$SLURM_ARRAY_TASK_ID/{n}"',
            f'run_dir={shlex.quote(str(job.run_dir.resolve()))}"/shard-$SLURM_ARRAY_TASK_ID"',
            # The shell forwards SIGTERM, so that the run stops between two commits before the job ends.
            "trap 'kill -TERM \"$run\" 2>/dev/null' TERM",
            'srun --cpus-per-task="$cpus" --kill-on-bad-exit=1 '
            f'{_command(job)} --shard "$shard" --run-dir "$run_dir" &',
            "run=$!",
            'wait "$run" && exit 0',
            'wait "$run"',
            "",
        ]
    )


def merge_script(job: SlurmJob, name: str, settings: Cluster) -> str:
    """A job without GPUs that merges the shards and writes the report."""
    folders = ("merged", *(f"shard-{i}" for i in range(1, job.nodes + 1)))
    merged, *parts = (str(job.run_dir.resolve() / folder) for folder in folders)
    after = [shlex.join(["local-bench", phase, merged]) + " || status=$?" for phase in ("settle", "report", "verify")]
    return "\n".join(
        [
            *_head(job, f"{name}-merge", settings, "slurm-merge-%j.log", gpus=0),
            shlex.join(["local-bench", "merge", merged, *parts]) + " || exit",
            *("status=0", *after, 'exit "$status"', ""),
        ]
    )


_RAY_JOB = """\
# Ray's ports run any code: a token that only this user can read, and a folder of Ray's own for each job.
export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0
run_dir={run_dir}
export RAY_AUTH_TOKEN_PATH="$run_dir/.ray-$SLURM_JOB_ID.token" RAY_TMPDIR="/tmp/lb-ray-$SLURM_JOB_ID"
(umask 077 && head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \\n' > "$RAY_AUTH_TOKEN_PATH")
first=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | sed -n 1p)
# not the address 127.0.1.1 that some systems give a machine's own name, nor one of IPv6
addresses() {{ printf '%s\\n' $(hostname --ip-address; hostname -I) | grep -v -e '^127\\.' -e : || echo 127.0.0.1; }}
address() {{ addresses | sed -n 1p; }} # head, or grep -m, would end the pipe before all is written, which is a failure
export -f addresses address
ip=$(address)
port=$((20000 + SLURM_JOB_ID % 20000))
start='mkdir -m 700 -p "$RAY_TMPDIR" && exec ray start "$@" --block --disable-usage-stats --temp-dir "$RAY_TMPDIR" \
  --node-ip-address "$(address)"'
step="srun --cpus-per-task=$cpus --overlap --kill-on-bad-exit=0 --ntasks-per-node=1"
$step --nodes=1 --nodelist="$first" bash -c "$start" ray --head --port "$port" --include-dashboard=false &
head=$!
until (exec 3<>"/dev/tcp/$ip/$port") 2>/dev/null; do
  kill -0 "$head" 2>/dev/null || {{ echo 'Ray did not start on the first node' >&2; exit 1; }}
  sleep 1
done
{others}trap 'kill -TERM "$run" 2>/dev/null' TERM
{command} --set engine.executor=ray --set engine.ray.address="$ip:$port" --set engine.device=cuda --run-dir "$run_dir" &
run=$!
wait "$run"
wait "$run"
status=$?
kill $(jobs -p) 2>/dev/null
rm -rf "$RAY_AUTH_TOKEN_PATH" "$RAY_TMPDIR"
exit "$status"
"""
_OTHERS = '$step --nodes={n} --exclude="$first" bash -c "$start" ray --address "$ip:$port" &\n'


def ray_script(job: SlurmJob, name: str, settings: Cluster) -> str:
    """One job: Ray on every node, and the run on the first. A node that is lost is left out."""
    body = _RAY_JOB.format(
        run_dir=shlex.quote(str(job.run_dir.resolve())),
        others=_OTHERS.format(n=job.nodes - 1) if job.nodes > 1 else "",
        command=_command(job),
    )
    return "\n".join([*_head(job, name, settings, "slurm-%j.log", job.gpus_per_node, job.nodes), body])


def _command(job: SlurmJob) -> str:
    settings = (part for setting in job.settings for part in ("--set", setting))
    return shlex.join(["local-bench", "run", str(job.config.resolve()), *settings])


def _head(
    job: SlurmJob, name: str, settings: Cluster, log: str, gpus: int, nodes: int = 1, more: Sequence[str] = ()
) -> list[str]:
    """The options of sbatch, `more` of them included, and the lines before local-bench starts."""
    per_gpu = max(1, gpus)
    # sbatch reads quotes and backslashes in a line, and expands % in a file name
    folder = str(job.run_dir.resolve()).replace("%", "%%").replace('"', '\\"')
    return [
        "#!/bin/bash",
        f"#SBATCH --job-name={name}",
        f"#SBATCH --nodes={nodes}",
        "#SBATCH --ntasks=1" if nodes == 1 else "#SBATCH --ntasks-per-node=1",
        *([f"#SBATCH {settings.gpus.format(n=gpus)}"] if gpus else []),
        f"#SBATCH --cpus-per-task={settings.cpus_per_gpu * per_gpu}",
        f"#SBATCH --mem={settings.mem_per_gpu_gb * per_gpu}G",
        f"#SBATCH --time={settings.time}",
        "#SBATCH --requeue",
        "#SBATCH --open-mode=append",
        f"#SBATCH --signal=B:TERM@{_GRACE_S}",
        *(f"#SBATCH {option}" for option in settings.options),
        *more,
        f'#SBATCH --output="{folder}/{log}"',
        "set -uo pipefail",
        "export HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1",
        *([f"export {CONFIG_DIRS}={shlex.quote(folders)}"] if (folders := os.environ.get(CONFIG_DIRS)) else []),
        # srun is given them by option: 22.05 to 23.02 do not inherit them, and later ones end where a cluster's own
        # settings contradict the job's.
        f'cpus="${{SLURM_CPUS_PER_TASK:-{settings.cpus_per_gpu * per_gpu}}}"',
        *settings.setup,
    ]


def write_scripts(config: RunConfig, job: SlurmJob) -> list[Path]:
    """Write the scripts into the run directory, in the order in which they run. ConfigError for settings that cannot be
    in a script."""
    if not is_safe_id(config.name):
        raise ConfigError(f"name: {config.name!r} cannot name a job: use at most 128 letters, digits, '.', '_' and '-'")
    for path in (job.config.resolve(), job.run_dir.resolve()):
        if not str(path).isprintable() or "\\" in str(path):
            raise ConfigError(f"{str(path)!r} cannot be in a script: rename what has a line break or a backslash")
    files = config_files("slurm.yaml")
    settings = load_yaml(files[0], Cluster) if files else Cluster()
    for line in (*settings.options, settings.gpus, settings.time):
        if "\n" in line:
            raise ConfigError(f"slurm.yaml: {line!r} has more than one line: give one option per entry")
    name = f"local-bench-{config.name}"
    if job.ray:
        scripts = {RAY: ray_script(job, name, settings)}
    else:
        scripts = {SHARDS: shards_script(job, name, settings), MERGE: merge_script(job, name, settings)}
    for file, text in scripts.items():
        write_atomic(job.run_dir / file, text.encode())
    return [job.run_dir / file for file in scripts]


def submit(scripts: Sequence[Path]) -> list[str]:
    """Submit the scripts, each to start when the one before it is done; return the job ids."""
    program = shutil.which("sbatch")
    if program is None:
        raise LocalBenchError("sbatch is not on this machine: submit the scripts on a login node of the cluster")
    ids: list[str] = []
    for script in scripts:
        command = [program, "--parsable", *[f"--dependency=afterok:{before}" for before in ids[-1:]], str(script)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise LocalBenchError(f"sbatch refused {script}: {done.stderr.strip()[:300]}")
        ids.append(done.stdout.strip().partition(";")[0])
    return ids
