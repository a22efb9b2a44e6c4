"""Makes runs that were interrupted, resumed, grown, settled again and merged, and looks for false alarms of `verify`.

    python -m scripts.verify_clean --runs 20

Each run has models, tasks and attempts of its own; it is interrupted up to twice, each time at a random write of its
database, and continued. Every third run is grown from a smaller one, every fourth is merged from two shards, every
fifth is settled again under other thresholds. Exit 1 if `verify` has a finding. About ten seconds per run.
"""

import argparse
import random
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from local_bench.runs.config import RunConfig
from local_bench.runs.engine import run_stages
from local_bench.runs.merge import merge
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Store
from local_bench.runs.verify import Finding, verify

SMALL = {"height": 64, "width": 64, "num_inference_steps": 1}
CARDS = ("tiny-flux", "tiny-sd3", "tiny-qwen-image")


class Interrupt(KeyboardInterrupt):
    """Stands for a signal."""


@contextmanager
def interrupted(after: int) -> Iterator[None]:
    """Raise Interrupt at the write number `after` of the database."""
    real, n = Store.write_many, 0

    def write_many(self: Store, *arguments: Any) -> None:
        nonlocal n
        n += 1
        if n == after:
            raise Interrupt
        real(self, *arguments)

    Store.write_many = write_many  # type: ignore[method-assign]
    try:
        yield
    finally:
        Store.write_many = real  # type: ignore[method-assign]


def config(rng: random.Random, small: bool = False, **suite: Any) -> dict[str, Any]:
    cards = rng.sample(CARDS, 2)
    return {
        "name": "clean",
        "seed": rng.randrange(1000),
        "suite": {"name": "printshop", "limit": 2 if small else 3, **suite},
        "models": [{"card": card, "attempts": rng.choice((1, 2)), **SMALL} for card in cards],
        "metrics": ["entropy"],
        "judge": {"card": "mini-judge", "transport": "local", "canaries": False},
        "engine": {"device": "cpu"},
    }


def make(settings: dict[str, Any], path: Path, rng: random.Random) -> int:
    """Make a run; returns how often it was interrupted."""
    n = 0
    for _ in range(rng.choice((0, 1, 2))):
        try:
            with interrupted(rng.randrange(2, 12)):
                run_stages(RunConfig.model_validate(settings), path)
        except Interrupt:
            n += 1
    run_stages(RunConfig.model_validate(settings), path)
    return n


def clean_run(i: int, folder: Path, rng: random.Random) -> tuple[str, list[Finding]]:
    """How run `i` was made, and the findings of `verify`."""
    settings, path, how = config(rng), folder / f"run-{i}", []
    if i % 4 == 3:
        parts = [folder / f"part-{i}-{k}" for k in (1, 2)]
        n = sum(make({**settings, "suite": {**settings["suite"], "shard": f"{k}/2"}}, part, rng) for k, part in
                zip((1, 2), parts, strict=True))  # fmt: skip
        merge(path, parts)
        how += ["merged from 2 shards"]
    else:
        if i % 3 == 2:
            fewer = {**settings, "suite": {**settings["suite"], "limit": 1}, "models": settings["models"][:1]}
            make(fewer, path, rng)
            how += ["grown"]
        n = make(settings, path, rng)
    if i % 5 == 4:
        run_stages(RunConfig.model_validate({**settings, "acceptance": {"brf": 2}}), path, ("settle",))
        how += ["settled again"]
    with RunDir.open(path) as run:
        return ", ".join([f"interrupted {n} times", *how]), verify(run)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    rng, alarms = random.Random(given.seed), 0
    with tempfile.TemporaryDirectory() as folder:
        for i in range(given.runs):
            how, findings = clean_run(i, Path(folder), rng)
            alarms += bool(findings)
            print(f"{i + 1}: {how}: {len(findings)} findings", flush=True)
            for finding in findings[:3]:
                print(f"   {finding.check}: {finding.subject} {finding.fault}")
    print(f"{alarms} of {given.runs} runs have findings")
    return int(alarms > 0)


if __name__ == "__main__":
    sys.exit(main())
