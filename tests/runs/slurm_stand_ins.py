"""Stand-ins for Slurm's programs, as its documentation and source describe them.

`sbatch` reads the `#SBATCH` lines as src/sbatch/opt.c does (quotes group, a backslash escapes, # begins a comment),
expands the log's name, and runs the job at once: each task of an array, again with the same job id if it ends by a
signal (`--requeue`), and not at all if a job it depends on failed. `srun` gives a step the CPUs that a version gives:

- 21.08 reads SLURM_CPUS_PER_TASK.
- 22.05 to 23.02 do not, but read SRUN_CPUS_PER_TASK.
- 23.11 reads SLURM_CPUS_PER_TASK again; 24.05 ends if SLURM_TRES_PER_TASK contradicts it.

The option `--cpus-per-task` comes before all of them, and without any a step has one CPU.
"""

import json
import os
import re
import subprocess
import sys
from pathlib import Path

STATE = Path(os.environ.get("STAND_IN_STATE", "/nonexistent"))
VERSION = os.environ.get("STAND_IN_VERSION", "24.05")


def words(line):
    """`_get_argument`, until the line ends."""
    found, word, quote, escaped, started = [], "", "", False, False
    for c in line:
        if escaped:
            word, escaped, started = word + c, False, True
        elif c == "\\":
            escaped = True
        elif quote:
            word, quote = (word, "") if c == quote else (word + c, quote)
        elif c in "\"'":
            quote, started = c, True
        elif c == "#":
            break
        elif c.isspace():
            found += [word] if started else []
            word, started = "", False
        else:
            word, started = word + c, True
    if quote:
        sys.exit(f"sbatch: fatal: Unmatched `{quote}` in [{line}]")
    return found + ([word] if started else [])


def options(script):
    """The options of a batch script, which end at its first command."""
    found = {}
    for line in script.read_text().splitlines():
        if line.startswith("#SBATCH"):
            for word in words(line.removeprefix("#SBATCH")):
                if not word.startswith("--"):
                    sys.exit(f"sbatch: error: invalid argument {word!r}")
                name, _, value = word.removeprefix("--").partition("=")
                found[name] = value
        elif line.strip() and not line.lstrip().startswith("#"):
            break
    return found


def log_of(pattern, job, task):
    if "\\" in pattern:
        return Path(pattern)
    known = {"%": "%", "A": job, "a": task, "j": job}
    return Path(re.sub("%(.)", lambda match: str(known[match[1]]), pattern))


def sbatch():
    *given, script = sys.argv[1:]
    asked = options(Path(script)) | dict(arg.removeprefix("--").partition("=")[::2] for arg in given)
    jobs = json.loads(STATE.read_text()) if STATE.exists() else {}
    job = str(41 + len(jobs))
    kind, _, before = asked.get("dependency", "").partition(":")
    if kind not in ("", "afterok"):
        sys.exit(f"sbatch: error: dependency {kind}")
    if any(jobs[one] for one in before.split(":") if one):
        jobs[job] = "DependencyNeverSatisfied"
    else:
        first, _, last = asked.get("array", "0-0").partition("-")
        codes = [run(Path(script), asked, job, task) for task in range(int(first), int(last) + 1)]
        jobs[job] = next((code for code in codes if code), 0)
    STATE.write_text(json.dumps(jobs))
    print(f"{job};cluster" if "parsable" in asked else f"Submitted batch job {job}")


def run(script, asked, job, task):
    cpus = asked["cpus-per-task"]
    nodes = int(asked["nodes"])
    environment = os.environ | {
        "SLURM_JOB_ID": job, "SLURM_CPUS_PER_TASK": cpus, "SLURM_JOB_NODELIST": f"node[1-{nodes}]",
    }  # fmt: skip
    if "array" in asked:
        environment |= {"SLURM_ARRAY_JOB_ID": job, "SLURM_ARRAY_TASK_ID": str(task)}
    if VERSION >= "24.05":
        environment |= {"SLURM_TRES_PER_TASK": os.environ.get("STAND_IN_TRES", f"cpu={cpus}")}
    log = log_of(asked["output"], job, task)
    for restart in range(3):
        with log.open("a") as file:
            environment["SLURM_RESTART_COUNT"] = str(restart)
            done = subprocess.run(["bash", script], env=environment, stdout=file, stderr=file, check=False, timeout=60)
        if done.returncode < 128 or "requeue" not in asked:
            break
    return done.returncode


def srun():
    arguments, cpus = sys.argv[1:], None
    while arguments and arguments[0].startswith("-"):
        name, _, value = arguments.pop(0).partition("=")
        cpus = value if name in ("-c", "--cpus-per-task") else cpus
    if cpus is None:
        cpus = os.environ.get("SRUN_CPUS_PER_TASK" if "22.05" <= VERSION < "23.11" else "SLURM_CPUS_PER_TASK", "1")
        tres = os.environ.get("SLURM_TRES_PER_TASK", f"cpu={cpus}")
        if VERSION >= "24.05" and tres != f"cpu={cpus}":
            sys.exit(f"srun: fatal: cpus_per_task set by two different environment variables {cpus} != {tres}")
    os.environ["STEP_CPUS"] = cpus
    os.execvp(arguments[0], arguments)


def scontrol():
    assert sys.argv[1:3] == ["show", "hostnames"]
    print(*(f"node{i}" for i in range(1, int(re.fullmatch(r"node\[1-(\d+)\]", sys.argv[3])[1]) + 1)), sep="\n")


if __name__ == "__main__":
    {"sbatch": sbatch, "srun": srun, "scontrol": scontrol}[Path(sys.argv[0]).name]()
