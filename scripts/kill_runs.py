"""Kills runs at random moments until each is finished, and checks that nothing is lost, doubled or left over.

    python scripts/kill_runs.py --kills 200 --out benchmarks/kill-runs.json

Runs of several kinds (this process, two workers, a judge in vLLM in a child process, a judge server, a Ray cluster) get
SIGKILL at a random moment and are started again with the same command; with --all-signals also SIGTERM, SIGINT, SIGHUP
and SIGQUIT, once or several at once. Compared with a run that was not killed: digests and the numbers of committed
items. Also counted: processes left five seconds after a signal (all descendants of the killed process: this script is
their subreaper, so that none escapes), and temporary files left when the run has finished. Exit 1 if any is found.
"""

import argparse
import ctypes
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import local_bench.generators.flux  # noqa: E402 - imported once, before processes are forked
import local_bench.generators.sd3  # noqa: E402
import local_bench.judges.metrics.entropy  # noqa: E402
import local_bench.judges.vlm.local  # noqa: E402
import local_bench.report.exports  # noqa: E402
import local_bench.report.site.build  # noqa: E402, F401
from local_bench.analysis.digest import digests  # noqa: E402
from local_bench.cli.main import main as command_line  # noqa: E402
from local_bench.runs.rundir import RunDir  # noqa: E402
from scripts.local_nodes import LocalNodes  # noqa: E402

_PR_SET_CHILD_SUBREAPER = 36
_LEFT_AFTER_S = 5.0
_TRIES = 8
"""Starts of one run; the last one is not killed."""
TINY = {"height": 64, "width": 64, "num_inference_steps": 2}
BASE: dict[str, Any] = {
    "name": "killed",
    "suite": {"name": "printshop", "limit": 2},
    "models": [{"card": "tiny-flux", "attempts": 2, **TINY}, {"card": "tiny-sd3", **TINY}],
    "judge": {"card": "mini-judge", "transport": "local"},
    "metrics": ["entropy", "colorfulness"],
    "acceptance": {"brf": 4.5},
    "engine": {"device": "cpu"},
}
ENGINE = {"card": "tiny-qwen3-vl"}
KINDS: dict[str, tuple[int, dict[str, Any]]] = {
    "local": (10, {}),
    "workers": (4, {"engine": {"device": "cpu", "workers": 2}}),
    "embedded": (2, {"judge": {**ENGINE, "transport": "embedded"}, "acceptance": {}}),
    "served": (2, {"judge": {**ENGINE, "transport": "served"}, "acceptance": {}}),
    "ray": (2, {"engine": {"device": "cpu", "executor": "ray"}}),
}
"""Kind -> its share of the kills, and what differs from BASE."""
OTHER_SIGNALS = [signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]


@dataclass
class Found:
    """Counts and faults of one kind of run."""

    kills: int = 0
    runs: int = 0
    phases: Counter[str] = field(default_factory=Counter)
    """What the killed process printed last."""
    lost_or_doubled: int = 0
    processes_left: int = 0
    temporary_files: int = 0
    wrong_exits: int = 0


def processes() -> Iterator[tuple[int, int, str]]:
    """(process, parent, command line) of every process that has not ended."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                text = (entry / "stat").read_text("utf-8", "replace").rpartition(")")[2].split()
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
            except OSError:
                continue
            if text[0] not in "ZX":
                yield int(entry.name), int(text[1]), command


def descendants() -> dict[int, str]:
    """The processes below this one, except idle processes and services of a Ray cluster."""
    table = {pid: (parent, command) for pid, parent, command in processes()}
    found = {}
    for pid, (parent, command) in table.items():
        at = parent
        while at in table and at != os.getpid():
            at = table[at][0]
        of_ray = "ray/core/src" in command or "site-packages/ray/" in command or command.startswith("ray::IDLE")
        if at == os.getpid() and not of_ray:
            found[pid] = command[:100]
    return found


class Started:
    """A started run, which is a child of this process."""

    def __init__(self, pid: int) -> None:
        self.pid = pid

    def wait(self, timeout_s: float = 600.0) -> int | None:
        """The exit status (negative: the signal); None after `timeout_s`."""
        until = time.monotonic() + timeout_s
        while time.monotonic() < until:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status)
            time.sleep(0.02)
        return None


class Trial:
    """Runs of one kind in one folder."""

    def __init__(self, folder: Path, kind: str, address: str | None) -> None:
        self.folder, self.temporary, self.found = folder, folder / "tmp", Found()
        self.forked = kind not in ("workers", "ray")  # these start Python again, from the command line's module
        self.temporary.mkdir(parents=True)
        config = {**BASE, **KINDS[kind][1]}
        if address is not None:
            config["engine"] = {**config["engine"], "ray": {"address": address, "wait_s": 60}}
        (folder / "run.yaml").write_text(json.dumps(config))
        began = time.monotonic()
        if self.start("whole").wait() != 0:
            raise SystemExit(self.log()[-2000:])
        self.length_s, self.whole = time.monotonic() - began, self.state("whole")

    def start(self, name: str) -> "Started":
        argv = ["run", "run.yaml", "--run-dir", name]
        environment = {"PYTHONPATH": str(ROOT), "TMPDIR": str(self.temporary)}
        with (self.folder / "log").open("wb") as log:
            if not self.forked:
                command = [sys.executable, "-m", "local_bench", *argv]
                process = subprocess.Popen(
                    command, cwd=self.folder, env=os.environ | environment, stdin=subprocess.DEVNULL, stdout=log,
                    stderr=log, start_new_session=True,
                )  # fmt: skip
                return Started(process.pid)
            pid = os.fork()
            if pid:
                return Started(pid)
            status = 99
            try:
                os.setsid()
                os.chdir(self.folder)
                os.environ.update(environment)
                os.dup2(log.fileno(), 1)
                os.dup2(log.fileno(), 2)
                status = command_line(argv)
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)

    def log(self) -> str:
        return (self.folder / "log").read_text("utf-8", "replace")

    def state(self, name: str) -> tuple[object, ...]:
        with RunDir.open(self.folder / name) as run:
            return digests(run), tuple(run.store.committed())

    def say(self, kind: str, what: str) -> None:
        print(f"{kind}: {what}", flush=True)

    def once(self, kind: str, random_numbers: random.Random, signals: list[signal.Signals]) -> None:
        """One run, killed until it finishes."""
        shutil.rmtree(self.folder / "run", ignore_errors=True)
        self.found.runs += 1
        for attempt in range(_TRIES):
            before = descendants()
            process = self.start("run")
            last = attempt == _TRIES - 1
            status = process.wait(600.0 if last else random_numbers.expovariate(4 / self.length_s))
            if status is None and not last:
                self.kill(kind, process, random_numbers, signals, before)
                continue
            if status:
                self.found.wrong_exits += 1
                self.say(kind, f"exit {status}: {self.log()[-500:]}")
            break
        if self.state("run") != self.whole:
            self.found.lost_or_doubled += 1
            self.say(kind, f"{self.state('run')} is not {self.whole}")
        left = [path for path in (self.folder / "run").rglob(".*") if path.name != ".lock"]
        left += [path for path in self.temporary.iterdir() if not path.name.startswith(("torchinductor", "ray"))]
        if left:
            self.found.temporary_files += len(left)
            self.say(kind, f"left over: {[str(path) for path in left[:5]]}")
            for path in left:
                shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)

    def kill(
        self,
        kind: str,
        process: Started,
        random_numbers: random.Random,
        signals: list[signal.Signals],
        before: dict[int, str],
    ) -> None:
        sent = random_numbers.choice(signals)
        self.found.kills += 1
        lines = self.log().replace("\r", "\n").strip().splitlines()
        self.found.phases[lines[-1].split(":")[0].split(" ")[0][:30] if lines else "start"] += 1
        for _ in range(random_numbers.choice([1, 1, 2, 20])):
            os.kill(process.pid, sent)
        status = process.wait(60.0)
        if status not in (130, -sent, 0):
            self.found.wrong_exits += 1
            self.say(kind, f"{sent.name}: exit {status}: {self.log()[-300:]}")
        ended = time.monotonic()
        while (left := descendants().keys() - before.keys()) and time.monotonic() < ended + _LEFT_AFTER_S:
            time.sleep(0.1)
        if left:
            self.found.processes_left += len(left)
            self.say(kind, f"{sent.name}: left after {_LEFT_AFTER_S:.0f} s: {[descendants().get(p) for p in left]}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", default=",".join(KINDS), help="kinds of runs [default: all]")
    parser.add_argument("--all-signals", action="store_true", help="also signals that end a run in order")
    parser.add_argument("--out", type=Path, help="write the counts to this JSON file")
    options = parser.parse_args()
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    signals = [signal.SIGKILL] + (OTHER_SIGNALS if options.all_signals else [])
    kinds = options.kinds.split(",")
    share = options.kills / sum(KINDS[kind][0] for kind in kinds)
    random_numbers = random.Random(options.seed)
    result = {}
    with tempfile.TemporaryDirectory(prefix="kill-runs-") as name, ExitStack() as stack:
        for kind in kinds:
            address = None
            if kind == "ray":
                (Path(name) / "cluster").mkdir()
                address = stack.enter_context(LocalNodes(Path(name) / "cluster", 1)).address
            trial = Trial(Path(name) / kind, kind, address)
            trial.say(kind, f"a run takes {trial.length_s:.1f} s: {trial.whole}")
            while trial.found.kills < round(share * KINDS[kind][0]):
                trial.once(kind, random_numbers, signals)
                trial.say(kind, str(vars(trial.found)))
            result[kind] = vars(trial.found)
    if options.out is not None:
        text = json.dumps({"signals": [one.name for one in signals], "kinds": result}, indent=2)
        options.out.write_text(text + "\n")
    faults = sum(
        found[name]
        for found in result.values()
        for name in ("lost_or_doubled", "processes_left", "temporary_files", "wrong_exits")
    )
    print(f"{sum(found['kills'] for found in result.values())} kills, {faults} faults")
    return int(faults > 0)


if __name__ == "__main__":
    sys.exit(main())
