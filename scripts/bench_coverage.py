"""How often the 95 % intervals cover the truth, in simulated worlds of the users' shape.

    .venv/bin/python -m scripts.bench_coverage [--replicates 1000] [--only NAME] [--out benchmarks/coverage.json]

Prices, images per order and correlations are those of ServImage's published orders (standard deviation of the logarithm
of the price 1.2; 1.8 as the heavier case); attempts, cases and items those of the other three benchmarks. Every row of
the output has the world, its size, the interval, the number of replicates, the covered share and the median width; an
interval that is not shown is left out, and counted in `n_without`. The percentile bootstrap, which these intervals
replaced, is measured beside them for shares.
"""

import argparse
import json
import os
import sys
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from fractions import Fraction
from functools import cache, partial
from itertools import product
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from local_bench.settle import paired
from local_bench.settle.agreement import agreement_rate, cohen_kappa
from local_bench.settle.attempts import count_attempts, intervals
from local_bench.settle.intervals import mean_interval, percentile, rate_interval, share_interval, stratified_interval
from local_bench.settle.paired import Statistics, differences
from local_bench.settle.ppi import inclusion, plan_labels, prediction_powered, systematic
from local_bench.suites.ice_bench.scoring import TASKS, composite, item_scores, needed
from local_bench.suites.idea_bench.published import CATEGORIES, NO, YES, interval, subtask

Floats = NDArray[np.float64]
Ends = tuple[float | None, float | None] | None
Found = dict[str, tuple[Ends, float]]
"""Interval's name -> (its ends, the truth); an upper end of None is open."""
WEIGHTS = np.array([271, 450, 349]) / 1070
"""Shares of ServImage's three categories."""
MEANS = np.array([56.41, 326.65, 380.40])
"""Their mean prices in US dollars."""
SPREAD = 1.2


# ---- ServImage


@dataclass(frozen=True)
class Orders:
    """One model's outcomes on orders, (tasks,) each."""

    price: Floats
    images: NDArray[np.int64]
    accepted: NDArray[np.int64]
    true_share: float
    true_rate: float


def rates(rate: float) -> Floats:
    """Acceptance in each category, around the one of the middle category."""
    relative = np.array([1.4, 1.0, 0.8])
    return np.clip(rate * relative if rate <= 0.6 else 1 - (1 - rate) * np.array([0.6, 1, 1.2]), 0, 1)


def orders(
    rng: np.random.Generator, n_tasks: int, rate: float, spread: float = SPREAD, correlation: float = 0.5
) -> Orders:
    """Orders of one to twelve images, whose acceptance is beta-binomial within an order."""
    category = rng.choice(3, size=n_tasks, p=WEIGHTS)
    price = np.exp(rng.normal(0, spread, n_tasks) - spread**2 / 2) * MEANS[category]
    images = np.where(rng.random(n_tasks) < 0.779, 1, 2 + np.minimum(10, rng.geometric(1 / 4.1, n_tasks) - 1))
    by_category = rates(rate)
    k = (1 - correlation) / correlation
    mean = np.clip(by_category[category], 1e-6, 1 - 1e-6)
    accepted = rng.binomial(images, rng.beta(mean * k, (1 - mean) * k))
    true_share = float((WEIGHTS * MEANS * by_category).sum() / (WEIGHTS * MEANS).sum())
    return Orders(price, images, accepted, true_share, float((WEIGHTS * by_category).sum()))


def shares(rng: np.random.Generator, n_tasks: int, rate: float, spread: float, old: bool) -> Found:
    """Shares of value by the closed interval and, with `old`, by the percentile bootstrap."""
    world = orders(rng, n_tasks, rate, spread)
    earned = world.price * world.accepted / world.images
    found: Found = {"share of value": (share_interval(earned, world.price), world.true_share)}
    if old:
        ends = percentile(np.stack([earned, world.price], axis=1), lambda sums: sums[..., 0] / sums[..., 1])
        found["percentile bootstrap"] = (ends, world.true_share)
    return found


def image_rates(rng: np.random.Generator, n_tasks: int, rate: float, correlation: float) -> Found:
    world = orders(rng, n_tasks, rate, correlation=correlation)
    return {"images accepted": (rate_interval(world.accepted, world.images), world.true_rate)}


def score_means(rng: np.random.Generator, n_tasks: int, mean: float) -> Found:
    """Scores of 0 to 5, of which half of the variance is that of the orders."""
    images = orders(rng, n_tasks, 0.5).images
    of_task = rng.beta(6 * mean, 6 * (1 - mean), n_tasks)
    sums = [
        5 * float(rng.beta(6 * p + 0.01, 6 * (1 - p) + 0.01, n).sum()) for p, n in zip(of_task, images, strict=True)
    ]
    return {"mean score": (mean_interval(sums, images, (0, 5)), 5 * (6 * mean + 0.01) / 6.02)}


def differing(rng: np.random.Generator, n_tasks: int, better: float, than: float = 0.4) -> Found:
    """The difference in share of two models, of which one is better on every order by the same chance."""
    price = orders(rng, n_tasks, 0.4).price
    return _difference(rng, price, np.full(n_tasks, than + better), np.full(n_tasks, than), better)


PIVOT = 1000.0
"""Price in US dollars at which the first model of `crossing` is halfway from its lowest to its highest acceptance."""


def crossing(rng: np.random.Generator, n_tasks: int) -> Found:
    """Two models with the same expected share, of which the first accepts more of expensive orders: an order's
    difference is then not symmetric, which sign flips assume."""
    same = _same_share()
    price = orders(rng, n_tasks, 0.5).price
    return _difference(rng, price, _by_price(price), np.full(n_tasks, same), 0.0)


@cache
def _same_share() -> float:
    many = orders(np.random.default_rng(0), 2_000_000, 0.5).price
    return float((many * _by_price(many)).sum() / many.sum())


def _by_price(price: Floats) -> Floats:
    return np.asarray(0.2 + 0.6 / (1 + (price / PIVOT) ** -2))


def _difference(rng: np.random.Generator, price: Floats, first: Floats, second: Floats, truth: float) -> Found:
    both = np.stack([price * (rng.random(len(price)) < chance) for chance in (first, second)], axis=1)
    ((found,),) = differences([Statistics(["a", "b"], both, np.repeat(price[:, None], 2, axis=1))])
    return {"difference in share": ((found.low, found.high), truth)}


def agreements(rng: np.random.Generator, n_tasks: int, error: float, accepted: float) -> Found:
    """Judge and people on four models' single images of each order; errors are correlated within an order."""
    k = 1.0  # correlation 0.5
    wrong = rng.random((n_tasks, 4)) < rng.beta(error * k, (1 - error) * k, n_tasks)[:, None]
    people = rng.random((n_tasks, 4)) < accepted
    judge = people ^ wrong
    tasks = np.repeat(np.arange(n_tasks), 4).tolist()
    both = judge.ravel().tolist(), people.ravel().tolist()
    rate, kappa = agreement_rate(*both, tasks), cohen_kappa(*both, tasks)
    said = accepted * (1 - error) + (1 - accepted) * error
    by_chance = said * accepted + (1 - said) * (1 - accepted)
    return {
        "agreement": ((rate.low, rate.high), 1 - error),
        "kappa": ((kappa.low, kappa.high), (1 - error - by_chance) / (1 - by_chance)),
    }


# ---- labels for some images

MARGINS = {
    "97 % right": (-0.2, (2.0, -2.0), (0.97, 0.03)),
    "90 % right": (-0.2, (1.5, -2.0), (0.90, 0.10)),
    "lenient": (-0.8, (1.5, -2.0), (0.55, 0.03)),
    "useless": (0.0, (1.0, -1.0), (0.5, 0.5)),
}
"""Judge -> the limit of its score, its margins above and below it, people's acceptance above and below it."""
JUDGES = ("calibrated", *MARGINS)
DESIGNS = ("plan 0.1", "plan 0.2", "rounds 0.1", "rounds 0.2", "uniform 10 %", "uniform 20 %", "price 20 %")
"""Samples of images to annotate: planned for a width, planned in rounds until it is reached, uniform, by price."""


def _labelled(rng: np.random.Generator, n_orders: int, judge: str) -> tuple[NDArray[np.int64], Floats, Floats, Floats]:
    """(images,): order, price, the judge's probability, people's decision."""
    world = orders(rng, n_orders, 0.5)
    order = np.repeat(np.arange(n_orders), world.images)
    score = (rng.normal(size=n_orders)[order] + rng.normal(size=len(order))) / np.sqrt(2)
    if judge == "calibrated":
        margin = np.round(np.clip(1.2 * score, -3, 2) * 2) / 2
        margin = np.where(margin == 0, 0.25, margin)
        chance = ndtr(margin)
    else:
        limit, margins, chances = MARGINS[judge]
        margin, chance = np.where(score > limit, *margins), np.where(score > limit, *chances)
    people = (rng.random(len(order)) < chance).astype(float)
    return order, np.repeat(world.price / world.images, world.images), ndtr(margin), people


def labels(rng: np.random.Generator, n_tasks: int, judge: str, design: str) -> Found:
    """People's share of the value of these orders from the judge and a sample of labels."""
    order, price, likely, people = _labelled(rng, n_tasks, judge)
    n, kind, given = len(price), design.split(maxsplit=1)[0], np.full(len(price), np.nan)
    size = float(design.split()[1]) / (100 if "%" in design else 1)
    found = None
    while kind in ("plan", "rounds") and (found is None or (kind == "rounds" and (found.width or 1) > size)):
        plan = plan_labels(likely, size, weights=price, labels=given, seed=int(rng.integers(1 << 31)))
        given[plan.images] = people[plan.images]
        found = prediction_powered(order, likely, given, weights=price, probabilities=plan.probabilities)
    if found is None:
        few = max(3, round(size * n))
        chances = np.full(n, few / n) if kind == "uniform" else inclusion(price, few)
        chosen = (
            rng.choice(n, few, replace=False) if kind == "uniform" else systematic(chances, int(rng.integers(1 << 31)))
        )
        given[chosen] = people[chosen]
        found = prediction_powered(order, likely, given, weights=price, probabilities=chances)
    return {"people's share from labels": ((found.low, found.high), float(people @ price / price.sum()))}


# ---- the other benchmarks


def _powers(a: float, b: float, k: int) -> float:
    """The mean of x^k of a Beta(a, b)."""
    return float(np.prod([(a + i) / (a + b + i) for i in range(k)]))


HYPE = {
    "25 % zeros, 20 % ones": (0.25, 0.2, (0.5, 0.5)),
    "Beta(0.3, 0.5)": (0.0, 0.0, (0.3, 0.5)),
    "70 % zeros": (0.7, 0.0, (0.5, 2.0)),
    "94 % zeros": (0.94, 0.0, (0.5, 2.0)),
    "Beta(5, 2)": (0.0, 0.0, (5.0, 2.0)),
}
"""Distributions of a task's pass rate: share of zeros, of ones, Beta of the others."""
USD = Fraction("0.3178")


def hype(rng: np.random.Generator, n_tasks: int, kind: str, attempts: int = 10) -> Found:
    """HYPE-EDIT-1's figures for tasks like these."""
    zeros, ones, (a, b) = HYPE[kind]
    u = rng.random(n_tasks)
    p = np.where(u < zeros, 0, np.where(u < zeros + ones, 1, rng.beta(a, b, n_tasks)))
    outcomes = (rng.random((n_tasks, attempts)) < p[:, None]).astype(np.int8)

    def fails(k: int) -> float:
        """Mean of (1 - p)^k over tasks."""
        return zeros + (1 - zeros - ones) * _powers(b, a, k)

    tries, within = 1 + fails(1) + fails(2) + fails(3), 1 - fails(4)
    truth = {"pass_rate": 1 - fails(1), "pass_at_4": within, "pass_at_10": 1 - fails(10), "expected_attempts": tries}
    truth |= {"effective_cost_usd": float(USD) * tries / within, "hype_gap": fails(1) - fails(attempts)}
    found = intervals(count_attempts(outcomes).shown, USD)
    return {f"HYPE-EDIT-1 {name}": (found[name], value) for name, value in truth.items()}


def idea(rng: np.random.Generator, n_tasks: int, mean: float) -> Found:
    """IDEA-Bench's overall score for other cases of the same tasks: 100 of 2 or 3 cases, or 16 of 3 or 4."""
    sizes = [3] * 75 + [2] * 25 if n_tasks == 100 else [4] * 3 + [3] * 13
    of_task = [(4 * x, 4 * (1 - x)) for x in np.clip(rng.beta(3 * mean, 3 * (1 - mean), len(sizes)), 0.005, 0.995)]
    score = [100 / 6 * 2 * sum(_powers(a, b, k) for k in (1, 3, 5)) for a, b in of_task]
    n = len(CATEGORIES)
    truth = float(np.mean([np.mean(score[i::n]) for i in range(n)]))
    subtasks = [
        subtask(np.where(rng.random((size, 3, 6)) < rng.beta(a, b, size)[:, None, None], YES, NO).astype(np.int8))
        for (a, b), size in zip(of_task, sizes, strict=True)
    ]
    return {"IDEA-Bench overall": (interval([subtasks[i::n] for i in range(n)], n), truth)}


_ICE_RANGES = {"aes_v2.5": (4.0, 6.0, 0.8), "musiq_koniq": (50.0, 75.0, 10.0)}


def ice(rng: np.random.Generator, n_tasks: int) -> Found:
    """ICE-Bench's overall score for other items of its 31 tasks of 4 to 220 items; `n_tasks` is 31."""
    sizes = np.geomspace(4, 220, len(TASKS)).round().astype(int)
    means = {t: {m: float(rng.uniform(*_ICE_RANGES.get(m, (0.2, 0.9))[:2])) for m in needed(t)} for t in TASKS}
    truth = float(np.mean([composite(task, of) for task, of in means.items()]))
    strata = []
    for (task, of), size in zip(means.items(), sizes, strict=True):
        common, items = rng.normal(size=size), [dict[str, float]() for _ in range(size)]
        for name, mean in of.items():
            if name in _ICE_RANGES:
                values = mean + _ICE_RANGES[name][2] * (0.6 * common + 0.8 * rng.normal(size=size))
            elif name == "vllmqa":
                values = (rng.random(size) < mean).astype(float)
            else:
                values = rng.beta(4 * mean, 4 * (1 - mean), size)
            for item, value in zip(items, values.tolist(), strict=True):
                item[name] = value
        strata.append((1 / len(TASKS), item_scores(task, items)))
    return {"ICE-Bench overall": (stratified_interval(strata), truth)}


# ---- the measurement

World = Callable[[np.random.Generator, int], Found]


def worlds() -> Iterator[tuple[str, int, World]]:
    """(description, tasks, world) of every row of the tables in benchmarks/coverage.md."""
    for n, spread, rate in product((10, 48, 90, 1070), (1.2, 1.8), (0.05, 0.3, 0.6, 0.95)):
        of = partial(shares, rate=rate, spread=spread, old=n <= 90)
        yield f"acceptance {rate}, spread of prices {spread}", n, of
    for n, correlation, rate in product((10, 48, 90, 1070), (0.2, 0.8), (0.02, 0.1, 0.5, 0.9, 0.98)):
        of = partial(image_rates, rate=rate, correlation=correlation)
        yield f"acceptance {rate}, correlation within orders {correlation}", n, of
    for n, mean in product((10, 48, 90), (0.5, 0.9)):
        yield f"mean score {5 * mean} of 5", n, partial(score_means, mean=mean)
    for n, (error, accepted) in product((10, 48, 90), ((0.02, 0.5), (0.05, 0.9), (0.15, 0.5))):
        yield f"judge wrong in {error}, acceptance {accepted}", n, partial(agreements, error=error, accepted=accepted)
    for n, better in product((12, 48, 90), (0.0, 0.15)):
        yield f"two models, {better} apart", n, partial(differing, better=better)
    for n, (first, second) in product((12, 48, 90), ((0.98, 0.95), (0.98, 0.9), (0.95, 0.05), (0.05, 0.02))):
        yield f"two models, accepted {first} and {second}", n, partial(differing, better=first - second, than=second)
    yield from (("equal shares, one model better at expensive orders", n, crossing) for n in (12, 48, 90))
    for n, kind in product((50, 100), HYPE):
        yield f"pass rates {kind}", n, partial(hype, kind=kind)
    for n, mean in product((16, 100), (0.03, 0.15, 0.5, 0.85)):
        yield f"mean answer {mean}", n, partial(idea, mean=mean)
    yield "4 to 220 items per task", len(TASKS), ice
    for n, judge, design in product((48, 90), JUDGES, DESIGNS):
        yield f"judge {judge}, labels {design}", n, partial(labels, judge=judge, design=design)


def measured(describe: str, n_tasks: int, world: World, replicates: int) -> list[dict[str, Any]]:
    """One row per interval of the world. The seed follows from the description."""
    rng = np.random.default_rng(zlib.crc32(f"{describe} {n_tasks}".encode()))
    hits: dict[str, list[bool]] = {}
    widths: dict[str, list[float]] = {}
    without: dict[str, int] = {}
    for _ in range(replicates):
        for name, (ends, truth) in world(rng, n_tasks).items():
            hits.setdefault(name, [])
            if ends is None or ends[0] is None:
                without[name] = without.get(name, 0) + 1
                continue
            low, high = ends[0], np.inf if ends[1] is None else ends[1]
            hits[name].append(low <= truth <= high)
            widths.setdefault(name, []).append(high - low)
    return [
        {
            "interval": name,
            "world": describe,
            "tasks": n_tasks,
            "nominal": 0.95,
            "covered": round(float(np.mean(of)), 4) if of else None,
            "median_width": round(float(np.median(widths[name])), 4)
            if of and np.isfinite(np.median(widths[name]))
            else None,
            "n": len(of),
            "n_without": without.get(name, 0),
        }
        for name, of in hits.items()
    ]


def within(ends: Ends, truth: float) -> bool:
    """Whether an interval covers the truth; one that is not shown covers nothing."""
    return ends is not None and None not in ends and ends[0] <= truth <= ends[1]  # type: ignore[operator]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--only", default="", help="Worlds whose description contains this.")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/coverage.json"))
    given = parser.parse_args()
    paired.FLIPS = 4_999  # in place of 99,999: p has a standard error of 0.003 at 0.05
    rows: list[dict[str, Any]] = []
    for describe, n_tasks, world in worlds():
        for row in measured(describe, n_tasks, world, given.replicates) if given.only in describe else ():
            rows.append(row)
            print(f"{row['interval']}, {describe}, {n_tasks} tasks: {row['covered']}", file=sys.stderr, flush=True)
    lowest = min(
        (row["covered"] for row in rows if row["interval"] != "percentile bootstrap" and row["n"]), default=None
    )
    given.out.write_text(json.dumps({"lowest": lowest, "rows": rows}, indent=1) + "\n", encoding="utf-8")
    print(f"lowest coverage: {lowest}; written to {given.out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
