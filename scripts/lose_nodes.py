"""Runs a small benchmark on a Ray cluster of this machine whose nodes are killed at random, and compares digests.

    python scripts/lose_nodes.py --rounds 20

Each round runs `--config`, kills a random node at a random moment (another joins before or after it), and prints the
moment, what the run said, and whether candidates, verdicts, scores and settlement have the digests of the run that was
made without a cluster. Exit 1 if one differs. About a minute per round on two cores.
"""

import argparse
import random
import sys
import tempfile
import threading
import time
from pathlib import Path

from local_bench.analysis.digest import digests
from local_bench.runs.config import RunConfig
from local_bench.runs.engine import run_stages
from local_bench.runs.progress import Quiet
from local_bench.runs.rundir import RunDir
from local_bench.testing.ray_nodes import LocalNodes


class Heard(Quiet):
    """Collects messages about losses."""

    def __init__(self) -> None:
        self.losses: list[str] = []

    def note(self, message: str) -> None:
        if any(word in message for word in ("lost", "stopped responding", "left the cluster", "could not be")):
            self.losses.append(message)


def config(address: str | None) -> RunConfig:
    small = {"height": 64, "width": 64, "num_inference_steps": 2}
    return RunConfig.model_validate(
        {
            "name": "lose-nodes",
            "suite": {"name": "printshop", "limit": 4},
            "models": [{"card": "tiny-flux", "attempts": 4, **small}, {"card": "tiny-sd3", **small}],
            "metrics": ["piqe", "entropy"],
            "judge": {"card": "mini-judge", "transport": "local"},
            "engine": {"device": "cpu", "executor": "ray" if address else "local", "ray": {"address": address}},
        }
    )


def digests_of(folder: Path) -> dict[str, str]:
    with RunDir.open(folder) as run:
        return digests(run)


def lose_one(nodes: LocalNodes, after_s: float, rng: random.Random, over: threading.Event) -> None:
    """Kill a node after `after_s`, unless the run is over; another joins."""
    if over.wait(after_s):
        return
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
    rng, different = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory() as folder, LocalNodes(Path(folder), 2) as nodes:
        whole = Path(folder) / "whole"
        run_stages(config(None), whole)
        expected, took_s = digests_of(whole), 30.0
        for i in range(given.rounds):
            run_dir, heard, over = Path(folder) / f"round-{i}", Heard(), threading.Event()
            after_s = rng.uniform(2, took_s)
            losing = threading.Thread(target=lose_one, args=(nodes, after_s, rng, over))
            begun = time.monotonic()
            losing.start()
            run_stages(config(nodes.address), run_dir, progress=heard)
            over.set()
            losing.join()
            took_s = min(took_s, time.monotonic() - begun)
            same = digests_of(run_dir) == expected
            different += not same
            print(
                f"{i + 1}: a node killed after {after_s:.1f} s; {len(heard.losses)} losses noted; equal: {same}",
                flush=True,
            )
    print(f"{given.rounds - different} of {given.rounds} runs equal the run made without a cluster")
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
