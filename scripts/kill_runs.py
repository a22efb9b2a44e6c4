"""Kills a run at random moments until it is finished, again and again, and proves that nothing is lost.

    python scripts/kill_runs.py --kills 200

Each round starts the demo's models on a few tasks (or --config CONFIG), sends SIGKILL, SIGTERM, SIGINT, SIGHUP or
SIGQUIT (one, or several at once) after a random time, and starts the same command again. Reports: digests against a run
that was never killed, processes left after five seconds, temporary files left after the next start; exit 1 if any of
them is not as it must be.
"""

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CONFIG = """
name: killed
suite: {name: printshop, limit: 2}
models: [{card: mini-flux-early}]
judge: {card: mini-judge, transport: local}
metrics: [entropy, colorfulness]
acceptance: {brf: 4.5}
engine: {device: cpu}
"""
SIGNALS = [signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT]


def start(folder: Path, config: str, run: str) -> "subprocess.Popen[bytes]":
    log = (folder / "log").open("ab")
    return subprocess.Popen(
        [sys.executable, "-m", "local_bench", "run", config, "--run-dir", run],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": str(ROOT), "LOCAL_BENCH_MARK": folder.name},
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )


def left(mark: str) -> list[int]:
    """The processes that were started with this mark."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal():
            try:
                environment = (entry / "environ").read_bytes()
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if f"LOCAL_BENCH_MARK={mark}".encode() in environment and state != "Z":
                found.append(int(entry.name))
    return found


def digest(folder: Path, run: str) -> object:
    command = [sys.executable, "-m", "local_bench", "digest", run, "--json"]
    done = subprocess.run(
        command, cwd=folder, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, check=True
    )
    return {k: v for k, v in json.loads(done.stdout).items() if k in ("candidates", "verdicts", "scores", "settlement")}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--config", type=Path, help="a run config instead of the small one")
    options = parser.parse_args()
    numbers, faults, kills, rounds = random.Random(options.seed), [], 0, 0
    folder = Path(tempfile.mkdtemp(prefix="kill-runs-"))
    config = str(options.config.resolve()) if options.config else "run.yaml"
    (folder / "run.yaml").write_text(CONFIG)
    began = time.monotonic()
    if start(folder, config, "whole").wait():
        print((folder / "log").read_text()[-2000:])
        return 1
    whole, length_s = digest(folder, "whole"), time.monotonic() - began
    print(f"a whole run takes {length_s:.1f} s: {whole}", flush=True)
    while kills < options.kills:
        rounds += 1
        shutil.rmtree(folder / "run", ignore_errors=True)
        for attempt in range(8):
            process = start(folder, config, "run")
            try:
                process.wait(numbers.uniform(0.1, length_s) if attempt < 7 else None)
            except subprocess.TimeoutExpired:
                kills += 1
                sent = numbers.choice(SIGNALS)
                for _ in range(numbers.choice([1, 1, 2, 20])):
                    os.kill(process.pid, sent)
                status = process.wait(30)
                if status not in (130, -sent, 0):
                    faults.append(f"{sent.name}: exit {status}")
                ended = time.monotonic()
                while (rest := left(folder.name)) and time.monotonic() < ended + 5:
                    time.sleep(0.1)
                if rest:
                    faults.append(f"{sent.name}: {len(rest)} processes left after 5 s")
                continue
            if process.returncode:
                faults.append(f"exit {process.returncode}: {(folder / 'log').read_text()[-500:]}")
            break
        if digest(folder, "run") != whole:
            faults.append(f"round {rounds}: other digests")
        temporary = [str(p) for p in (folder / "run").rglob(".*") if p.name != ".lock"]
        temporary += [p.name for p in Path(tempfile.gettempdir()).glob(".local-bench-*")]
        if temporary:
            faults.append(f"round {rounds}: temporary files left: {temporary[:3]}")
        print(f"{kills} kills, {rounds} rounds, {len(faults)} faults", flush=True)
    print("\n".join(faults) or "nothing lost, nothing doubled, nothing left over")
    if not faults:
        shutil.rmtree(folder)
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
