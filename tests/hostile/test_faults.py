"""A failure at each storage operation of a small run: the same command then completes it to the same digests, with
nothing lost, doubled, or left over. CI takes every 40th operation, `HOSTILE_FAULTS_EVERY=1` each of the first 500."""

import os
import shutil
import sys
from pathlib import Path

import pytest

from local_bench.analysis.digest import digests
from local_bench.cli.main import main
from local_bench.runs.rundir import RunDir
from tests.hostile import child
from tests.hostile.inputs import CONFIG, write
from tests.orders import order, write_orders
from tests.suites.benchmarks import layouts

EVERY = int(os.environ.get("HOSTILE_FAULTS_EVERY", "40"))
FIRST = 500
HOWS = {"kill": (0, (-9,)), "full": (3, (0, 1, 2)), "io": (6, (0, 1, 2)), "interrupt": (9, (130,))}
"""The first operation, so that the kinds of faults meet different ones, and the exit statuses that are right."""
COMMANDS = [["generate", "run.yaml", "--run-dir", "run"], ["measure", "run"], ["settle", "run"]]
MODEL = {"card": "imported", "name": "api", "imported": {"images": "made", "cost_usd_per_image": "0.04"}}


def prepare() -> None:
    write_orders(Path("tasks.jsonl"), (order(f"t{i}") for i in range(3)))
    for i in range(3):
        layouts.write_image(Path(f"made/t{i}.png"), i)
    suite = {"suite": {"name": "servimage", "path": "tasks.jsonl"}, "models": [MODEL], "metrics": ["entropy"]}
    write("run.yaml", {"name": "t", "engine": CONFIG["engine"]} | suite)


def in_child(how: str, at: int) -> tuple[int, int]:
    """(exit status, operations) of the command in a forked process, so that nothing is imported again."""
    read, write_end = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            null = os.open("out.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(null, 1)
            os.dup2(null, 2)
            sys.stdout, sys.stderr = (os.fdopen(n, "w", buffering=1, closefd=False) for n in (1, 2))
            status, n = child.run(how, at, COMMANDS)
            os.write(write_end, f"{n}".encode())
            os._exit(status)
        except BaseException as e:  # noqa: BLE001
            os.write(2, f"left main: {e!r}\n".encode())
            os._exit(99)
    os.close(write_end)
    with os.fdopen(read, "rb") as file:
        n = int(file.read() or b"0")
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return status, n


def state() -> dict[str, object]:
    """What the run holds, without clocks."""
    with RunDir.open(Path("run")) as run:
        committed = run.store.committed()
        images = sorted(path.name for path in Path("run/images").rglob("*") if path.is_file())
        return {"digests": digests(run), "committed": tuple(committed), "images": images}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """In a working folder of its own; the number of its storage operations, and its results."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(tmp_path_factory.mktemp("faults"))
        prepare()
        for command in COMMANDS:  # imports everything once, before processes are forked
            assert main(command) == 0
        shutil.rmtree("run")
        status, n = in_child("count", 0)
        assert status == 0, Path("out.txt").read_text()
        yield n, state()


@pytest.mark.parametrize("how", HOWS)
def test_a_fault_at_every_storage_operation(how, finished):
    n, complete = finished
    (first, allowed), faults = HOWS[how], []
    for at in range(1 + first, min(n, FIRST) + 1, EVERY):
        shutil.rmtree("run")
        Path("out.txt").unlink()
        status, _ = in_child(how, at)
        output = Path("out.txt").read_text()
        if status not in allowed or "Traceback" in output or "left main" in output:
            faults.append(f"{how} at {at}: exit {status}: {output[-400:]}")
        again, _ = in_child("count", 0)
        if again or state() != complete:
            faults.append(f"{how} at {at}: then exit {again}: {Path('out.txt').read_text()[-400:]}")
        left = [str(p) for p in Path("run").rglob(".*") if p.name not in (".lock",)]
        if left:
            faults.append(f"{how} at {at}: left over {left}")
    assert not faults, f"{len(faults)} faults; the first:\n" + "\n".join(faults[:5])
