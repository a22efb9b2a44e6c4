"""Slurm scripts: valid shell, the right shards, and a run that continues after SIGTERM and requeueing."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from local_bench.cli.main import main
from local_bench.core.errors import ConfigError, UserError
from local_bench.runs.config import load_config
from local_bench.runs.rundir import RunDir
from local_bench.runs.slurm import MERGE, RAY, SHARDS, SlurmJob, write_scripts

from . import slurm_stand_ins

CONFIG = "name: wide\nsuite: {name: studio}\nmodels: [{card: tiny-flux}]\nmetrics: []\n"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("my.yaml").write_text(CONFIG)
    return tmp_path


def program(folder, name, text):
    path = folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/bin/bash\n{text}\n")
    path.chmod(0o755)


def write(folder, run_dir="out", nodes=1, config="my.yaml", settings=()):
    write_scripts(load_config(Path("my.yaml")), SlurmJob(Path(config), folder / run_dir, nodes, 1, settings))


def slurm_command(*arguments, run_dir="out"):
    return main(["slurm", "my.yaml", "--run-dir", run_dir, *arguments])


def test_the_scripts_are_valid_shell_and_have_the_settings_of_the_cluster(folder, capsys):
    Path("local-bench").mkdir()
    Path("local-bench/slurm.yaml").write_text(
        "gpus: '--gres=gpu:a100:{n}'\ntime: '2:00:00'\n"
        "options: [--partition=gpu, --account=lab]\nsetup: [module load x]\n"
    )
    assert slurm_command("--nodes", "3", "--gpus-per-node", "4", "--set", "seed=1", run_dir="a b") == 0
    assert "sbatch --parsable" in capsys.readouterr().out
    for name in (SHARDS, MERGE):
        subprocess.run(["bash", "-n", f"a b/{name}"], check=True)
    job = {"job-name": "local-bench-wide", "nodes": "1", "ntasks": "1", "cpus-per-task": "32", "mem": "256G"}
    job |= {"gres": "gpu:a100:4", "time": "2:00:00", "partition": "gpu", "account": "lab", "array": "1-3"}
    job |= {"requeue": "", "open-mode": "append", "signal": "B:TERM@120", "output": f"{folder}/a b/slurm-%A-%a.log"}
    assert slurm_stand_ins.options(Path(f"a b/{SHARDS}")) == job
    text = Path(f"a b/{SHARDS}").read_text()
    assert 'cpus="${SLURM_CPUS_PER_TASK:-32}"' in text
    assert 'srun --cpus-per-task="$cpus" --kill-on-bad-exit=1' in text
    assert f"local-bench run {folder}/my.yaml --set seed=1 --shard" in text
    assert "module load x" in text
    merging = Path(f"a b/{MERGE}").read_text()
    assert "gres" not in merging
    assert f"local-bench merge '{folder}/a b/merged' '{folder}/a b/shard-1'" in merging


@pytest.fixture
def allocation(folder):
    """Programs of a Slurm allocation: steps run on this machine; the head node's port is open while `ray` runs."""
    program(folder, "scontrol", "echo node1; echo node2")
    program(folder, "hostname", "echo 127.0.0.1 ::1")
    program(folder, "srun", f'echo "srun $@" >> {folder}/calls; while [ "$1" != bash ]; do shift; done; exec "$@"')
    program(
        folder,
        "ray",
        f'echo "ray $@ $(stat -c %a "$RAY_AUTH_TOKEN_PATH") $RAY_AUTH_MODE" >> {folder}/calls\n'
        "exec python3 -c 'import signal, socket, sys\n"
        "s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
        'if "--head" in sys.argv: s.bind(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1]))); s.listen()\n'
        'signal.pause()\' "$@"',
    )
    path = {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
    return os.environ | path | {"SLURM_JOB_ID": "4242", "SLURM_JOB_NODELIST": "node[1-2]"}


def test_one_job_starts_ray_on_all_nodes_and_runs_on_the_first(folder, allocation, capsys):
    Path("out").mkdir()
    assert slurm_command("--nodes", "2", "--gpus-per-node", "4", "--ray") == 0
    assert f"sbatch out/{RAY}" in capsys.readouterr().out
    program(folder, "local-bench", f'sleep 1; echo "local-bench $@" >> {folder}/calls; exit 3')
    done = subprocess.run(["bash", f"out/{RAY}"], env=allocation, check=False, timeout=60)
    assert done.returncode == 3  # the exit status of the run
    calls = (folder / "calls").read_text().splitlines()
    other, head = sorted((call for call in calls if call.startswith("ray ")), key=lambda call: "--head" in call)
    assert "start --head --port 24242 --include-dashboard=false --block" in head
    assert "start --address 127.0.0.1:24242 --block" in other
    assert head.endswith("--node-ip-address 127.0.0.1 600 token")
    assert any("--nodes=1 --nodelist=node1" in call for call in calls)
    assert all("--cpus-per-task=32" in call for call in calls if call.startswith("srun "))
    assert any("--nodes=1 --exclude=node1" in call for call in calls)
    assert calls[-1] == (
        f"local-bench run {folder}/my.yaml --set engine.executor=ray --set engine.ray.address=127.0.0.1:24242 "
        f"--set engine.device=cuda --run-dir {folder}/out"
    )
    assert [path.name for path in Path("out").iterdir()] == [RAY]  # the token is removed
    assert "#SBATCH --ntasks-per-node=1" in Path(f"out/{RAY}").read_text()


def test_a_run_starts_in_the_folder_of_its_ray_job(folder):
    assert slurm_command("--nodes", "2", "--ray") == 0
    for name in ("slurm-4242.log", ".ray-4242.token"):  # there before the run starts
        Path("out", name).touch()
    with RunDir.begin(folder / "out", load_config(Path("my.yaml"))) as run:
        assert not run.store.planned
    Path("out/run.yaml").unlink()
    Path("out/notes.txt").touch()
    with pytest.raises(UserError, match="not empty"):
        RunDir.begin(folder / "out", load_config(Path("my.yaml")))


@pytest.mark.parametrize(
    ("by_name", "all_of_it", "expected"),
    [
        ("10.0.0.7", "10.1.0.7", "10.0.0.7"),
        ("127.0.1.1", "10.1.0.7 fd00::7", "10.1.0.7"),  # Debian's /etc/hosts
        ("fe80::1%eth0 10.0.0.7", "", "10.0.0.7"),
        ("127.0.0.1", "", "127.0.0.1"),
        ("10.0.0.7", "10.1.0.7 " * 9000, "10.0.0.7"),  # more than a pipe holds
    ],
)
def test_the_first_node_s_address_is_one_that_other_nodes_reach(folder, by_name, all_of_it, expected):
    assert slurm_command("--nodes", "2", "--ray") == 0
    program(folder, "hostname", f'[ "$1" = -I ] && echo "{all_of_it}" || echo "{by_name}"')
    lines = [line for line in Path(f"out/{RAY}").read_text().splitlines() if line.startswith("address")]
    env = os.environ | {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", "\n".join([*lines, "address"])], env=env, capture_output=True, check=True
    )
    assert done.stdout.decode() == f"{expected}\n"


def test_the_exit_status_and_sigterm_are_passed_on(folder):
    write(folder)
    program(folder, "srun", 'shift 2; exec "$@"')
    env = os.environ | {"PATH": f"{folder}/bin:{os.environ['PATH']}", "SLURM_ARRAY_TASK_ID": "1"}
    program(folder, "local-bench", "exit 3")
    assert subprocess.run(["bash", f"out/{SHARDS}"], env=env, check=False).returncode == 3
    program(folder, "local-bench", f"trap 'echo stopped > {folder}/stopped; exit 130' TERM\ntouch {folder}/up\n"
                                   "while true; do sleep 0.05; done")  # fmt: skip
    process = subprocess.Popen(["bash", f"out/{SHARDS}"], env=env)
    while not (folder / "up").exists():
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(20) == 130
    assert (folder / "stopped").exists()


def test_what_no_script_can_say_is_refused(folder, capsys):
    assert slurm_command("--nodes", "2", "--submit") == 1
    assert "sbatch is not on this machine" in capsys.readouterr().err
    for name in ("two\nlines", "back\\slash", "bell\a"):
        with pytest.raises(ConfigError, match="cannot be in a script: rename what has a line break or a backslash"):
            write(folder, name)
        assert not (folder / name).exists()
    Path("local-bench").mkdir()
    Path("local-bench/slurm.yaml").write_text('options: ["--partition=gpu\\nrm -rf /"]\n')
    with pytest.raises(ConfigError, match="has more than one line"):
        write(folder)


# ---- the written scripts, run by stand-ins for Slurm's versions

VERSIONS = ["21.08", "22.05", "23.02", "23.11", "24.05"]
FOLDERS = ["it's", 'the "wide" one', "$HOME and `id`", "100% done #2", "naïve;rm -rf x", "-n"]


@pytest.fixture
def slurm(folder, monkeypatch):
    """Slurm of a version; `local-bench` writes its arguments and CPUs to `calls`, as JSON."""

    def slurm_of(version, tres=None, does=""):
        for name in ("sbatch", "srun", "scontrol"):
            (folder / "bin" / "of-python").mkdir(parents=True, exist_ok=True)
            script = shutil.copy(slurm_stand_ins.__file__, folder / "bin" / "of-python" / name)
            program(
                folder, name, f'exec "{sys.executable}" "{script}" "$@"'
            )  # no first line can name a path with spaces
        program(
            folder, "local-bench",
            f"'{sys.executable}' -c 'import json, os, sys\n"
            f'with open("{folder}/calls", "a") as file:\n'
            '    print(json.dumps([os.environ.get("STEP_CPUS"), *sys.argv[1:]]), file=file)'
            f"' \"$@\"\n{does}",
        )  # fmt: skip
        monkeypatch.setenv("PATH", f"{folder}/bin:{os.environ['PATH']}")
        monkeypatch.setenv("STAND_IN_STATE", str(folder / "jobs.json"))
        monkeypatch.setenv("STAND_IN_VERSION", version)
        monkeypatch.setenv("STAND_IN_TRES", tres) if tres else monkeypatch.delenv("STAND_IN_TRES", raising=False)

    return slurm_of


def calls(folder):
    return [json.loads(line) for line in (folder / "calls").read_text().splitlines()]


def jobs(folder):
    return list(json.loads((folder / "jobs.json").read_text()).values())


@pytest.mark.parametrize("version", VERSIONS)
def test_every_shard_has_its_jobs_cpus_in_all_versions_of_slurm(folder, slurm, version):
    slurm(version)
    assert slurm_command("--nodes", "3", "--gpus-per-node", "4", "--submit") == 0
    shards, rest = calls(folder)[:3], calls(folder)[3:]
    assert [(call[0], call[-3]) for call in shards] == [("32", f"{i}/3") for i in (1, 2, 3)]
    assert [call[1] for call in rest] == ["merge", "settle", "report", "verify"]
    assert jobs(folder) == [0, 0]
    assert sorted(path.name for path in Path("out").glob("*.log")) == [
        "slurm-41-1.log", "slurm-41-2.log", "slurm-41-3.log", "slurm-merge-42.log",
    ]  # fmt: skip


def test_a_cluster_that_grants_other_cpus_than_the_job_asked_for(folder, slurm):
    """Slurm 24.05 ends a step that inherits two numbers (memory that is billed as CPUs)."""
    slurm("24.05", tres="cpu=48")
    assert slurm_command("--nodes", "1", "--gpus-per-node", "1", "--submit") == 0
    assert jobs(folder) == [0, 0]
    assert calls(folder)[0][0] == "8"


@pytest.mark.parametrize(
    ("version", "environment", "cpus"),
    [
        ("21.08", {"SLURM_CPUS_PER_TASK": "8"}, "8"),
        ("22.05", {"SLURM_CPUS_PER_TASK": "8"}, "1"),
        ("22.05", {"SLURM_CPUS_PER_TASK": "8", "SRUN_CPUS_PER_TASK": "8"}, "8"),
        ("23.11", {"SLURM_CPUS_PER_TASK": "8"}, "8"),
        ("24.05", {"SLURM_CPUS_PER_TASK": "8", "SLURM_TRES_PER_TASK": "cpu=4"}, "fatal"),
    ],
)
def test_the_stand_ins_differ_as_the_versions_do(slurm, folder, version, environment, cpus):
    slurm(version)
    step = ["srun", "--kill-on-bad-exit=1", "sh", "-c", 'echo "$STEP_CPUS"']
    done = subprocess.run(step, env=os.environ | environment, capture_output=True, text=True, check=False)
    assert cpus in done.stdout + done.stderr


@pytest.mark.parametrize("name", FOLDERS)
def test_any_folder_can_be_that_of_a_run(folder, slurm, capsys, name):
    slurm("22.05")
    Path("my configs' $x").mkdir()
    shutil.copy("my.yaml", "my configs' $x/my.yaml")
    write(folder, name, 2, "my configs' $x/my.yaml", ("suite.part=a 'b' $c",))
    subprocess.run(["sbatch", "--parsable", folder / name / SHARDS], check=True, capture_output=True)
    assert calls(folder) == [
        [
            "8", "run", f"{folder}/my configs' $x/my.yaml", "--set", "suite.part=a 'b' $c", "--shard", f"{i}/2",
            "--run-dir", f"{folder}/{name}/shard-{i}",
        ]
        for i in (1, 2)
    ]  # fmt: skip
    assert {path.name for path in (folder / name).iterdir()} == {SHARDS, MERGE, "slurm-41-1.log", "slurm-41-2.log"}
    subprocess.run(["sbatch", "--dependency=afterok:41", folder / name / MERGE], check=True, capture_output=True)
    merged = [f"{folder}/{name}/{part}" for part in ("merged", "shard-1", "shard-2")]
    assert calls(folder)[2] == [None, "merge", *merged]


def test_the_printed_commands_submit_scripts_in_any_folder(folder, slurm, capsys):
    slurm("24.05")
    for extra in ([], ["--ray"]):
        assert slurm_command("--nodes", "1", *extra, run_dir="a 'b' $c") == 0
        printed = capsys.readouterr().out.partition("with\n")[2]
        if extra:
            program(folder, "sbatch", f'echo "$@" > {folder}/submitted')
        subprocess.run(["bash", "-eu", "-c", printed], check=True, stdout=subprocess.DEVNULL)
    assert jobs(folder) == [0, 0]
    assert (folder / "submitted").read_text() == f"a 'b' $c/{RAY}\n"


def test_a_script_finds_the_folders_of_config_dir(folder, monkeypatch):
    """Also one that is submitted again by hand."""
    monkeypatch.setenv("LOCAL_BENCH_CONFIG_DIRS", "")  # to which the option adds
    Path("our 'own'").mkdir()
    for extra, scripts in (((), (SHARDS, MERGE)), (("--ray",), (RAY,))):
        command = ["slurm", "my.yaml", "--nodes", "2", "--run-dir", "out", *extra]
        assert main(["--config-dir", "our 'own'", *command]) == 0
        for script in scripts:
            (line,) = (line for line in Path("out", script).read_text().splitlines() if "CONFIG_DIRS" in line)
            said = subprocess.check_output(["bash", "-c", f"{line}\nprintenv LOCAL_BENCH_CONFIG_DIRS"], text=True)
            assert str(folder / "our 'own'") in said


def test_shards_are_not_merged_if_one_of_them_failed(folder, slurm, capsys):
    slurm("24.05", does='case "$*" in *" 2/3 "*) exit 1;; esac')
    assert slurm_command("--nodes", "3", "--submit") == 0
    assert [call[1] for call in calls(folder)] == ["run"] * 3
    assert jobs(folder) == [1, "DependencyNeverSatisfied"]


@pytest.mark.parametrize(("phase", "n"), [("merge", 1), ("settle", 4), ("report", 4), ("verify", 4)])
def test_a_phase_that_fails_after_the_shards_is_the_job_s_exit_status(folder, slurm, phase, n):
    slurm("24.05", does=f'[ "$1" != {phase} ] || exit 3')
    assert slurm_command("--nodes", "2", "--submit") == 0
    assert [call[1] for call in calls(folder)] == ["run", "run", "merge", "settle", "report", "verify"][: 2 + n]
    assert jobs(folder) == [0, 3]


def test_a_requeued_shard_continues_with_the_same_command(folder, slurm):
    """A job that is preempted ends by SIGTERM and starts again with its job id; its log goes on."""
    slurm("24.05", does='echo "start $SLURM_RESTART_COUNT"; [ "$SLURM_RESTART_COUNT" -gt 0 ] || kill -TERM $$')
    assert slurm_command("--nodes", "2", "--submit") == 0
    shards = [call for call in calls(folder) if call[1] == "run"]
    assert shards[0] == shards[1] != shards[2] == shards[3]
    assert jobs(folder) == [0, 0]
    assert Path("out/slurm-41-1.log").read_text().splitlines() == ["start 0", "start 1"]
