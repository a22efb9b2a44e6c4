"""Runs a small benchmark on a Ray cluster of this machine whose nodes are killed at random, and compares digests.

    python -m scripts.lose_nodes --rounds 20

Each round runs a small benchmark, kills a random node at a random moment (another joins before or after it), and prints
the moment, what the run said about losses, and whether candidates, verdicts, scores and settlement have the digests of
the run that was made without a cluster. Exit 1 if one differs. About a minute per round on two cores.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from local_bench.analysis.digest import digests
from local_bench.runs.rundir import RunDir
from scripts.local_nodes import LocalNodes

SMALL = {"height": 64, "width": 64, "num_inference_steps": 2}
LOSS = ("was lost", "stopped responding", "has left the cluster", "could not be")


def config(address: str | None) -> dict[str, Any]:
    return {
        "name": "lose-nodes",
        "suite": {"name": "printshop", "limit": 4},
        "models": [{"card": "tiny-flux", "attempts": 4, **SMALL}, {"card": "tiny-sd3", **SMALL}],
        "metrics": ["piqe", "entropy"],
        "judge": {"card": "mini-judge", "transport": "local"},
        "engine": {"device": "cpu", "executor": "ray" if address else "local", "ray": {"address": address}},
    }


def start(folder: Path, name: str, address: str | None) -> "subprocess.Popen[str]":
    """Start `local-bench run` in `folder/name`."""
    file = folder / f"{name}.yaml"
    file.write_text(json.dumps(config(address)))
    command = [str(Path(sys.executable).parent / "local-bench"), "run", str(file), "--run-dir", str(folder / name)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def digests_of(folder: Path) -> dict[str, str]:
    with RunDir.open(folder) as run:
        return digests(run)


def lose_one(nodes: LocalNodes, rng: random.Random) -> None:
    """Kill a random node; another joins before or after."""
    joins_first = rng.random() < 0.5
    if joins_first:
        nodes.add()
    nodes.kill(rng.randrange(nodes.n))
    if not joins_first:
        nodes.add()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, n_equal = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory() as name, LocalNodes(Path(name), 2) as nodes:
        folder = Path(name)
        whole = start(folder, "whole", None)
        whole.communicate()
        begun = time.monotonic()
        start(folder, "undisturbed", nodes.address).communicate()
        took_s = time.monotonic() - begun
        expected = digests_of(folder / "whole")
        print(f"a run without losses takes {took_s:.0f} s; equal: {digests_of(folder / 'undisturbed') == expected}")
        for i in range(given.rounds):
            after_s = rng.uniform(1, took_s)
            run = start(folder, f"round-{i}", nodes.address)
            try:
                said, _ = run.communicate(timeout=after_s)
            except subprocess.TimeoutExpired:
                lose_one(nodes, rng)
                said, _ = run.communicate()
            losses = [line for line in said.splitlines() if any(word in line for word in LOSS)]
            equal = run.returncode == 0 and digests_of(folder / f"round-{i}") == expected
            n_equal += equal
            print(f"{i + 1}: a node killed after {after_s:.1f} s; exit {run.returncode}; equal: {equal}", flush=True)
            for line in losses if equal else said.splitlines()[-5:]:
                print(f"   {line}", flush=True)
    print(f"{n_equal} of {given.rounds} runs equal the run made without a cluster")
    return int(n_equal < given.rounds)


if __name__ == "__main__":
    sys.exit(main())
