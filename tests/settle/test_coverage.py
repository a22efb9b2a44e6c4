"""The intervals cover the truth in worlds of the users' shape: a small version of `scripts/bench_coverage`, with the
percentile bootstrap, which fails, as negative control."""

from functools import partial
from math import sqrt

import pytest

from scripts import bench_coverage as bench

REPLICATES = 300
LEAST = 0.95 - 3 * sqrt(0.95 * 0.05 / REPLICATES)
WORLDS = {
    "weak model, few orders": (10, partial(bench.shares, rate=0.05, spread=1.2, old=True)),
    "weak model": (48, partial(bench.shares, rate=0.05, spread=1.8, old=True)),
    "strong model": (48, partial(bench.shares, rate=0.95, spread=1.2, old=True)),
    "rare images": (48, partial(bench.image_rates, rate=0.1, correlation=0.8)),
    "scores near the top": (48, partial(bench.score_means, mean=0.9)),
    "good judge": (48, partial(bench.agreements, error=0.05, accepted=0.9)),
    "two models": (48, partial(bench.differing, better=0.15)),
    "two unlike models": (48, partial(bench.differing, better=0.9, than=0.05)),
    "hard edits": (50, partial(bench.hype, kind="94 % zeros")),
    "easy edits": (50, partial(bench.hype, kind="Beta(5, 2)")),
    "mini subset of IDEA-Bench": (16, partial(bench.idea, mean=0.15)),
}


@pytest.mark.parametrize("world", WORLDS)
def test_every_interval_covers_its_truth(world):
    n_tasks, draw = WORLDS[world]
    rows = {
        row["interval"]: row for row in bench.measured(world, n_tasks, draw, 100 if "models" in world else REPLICATES)
    }
    for name, row in rows.items():
        if name == "percentile bootstrap":
            assert row["covered"] < 0.8
        else:
            assert row["covered"] >= LEAST, name
            assert row["n_without"] == 0
