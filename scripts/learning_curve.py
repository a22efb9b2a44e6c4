"""What annotations add: accuracy of every kind of predictor trained on 50 to 5,000 annotations of simulated clients.

    .venv/bin/python -m scripts.learning_curve --out benchmarks/learning-curve.json

Orders, images, defects and ground truth are those of the print shop: four simulated models of different quality draw
each order, with wrong attributes and damage, and the checker reads from the pixels which evaluation points hold. The
judge is simulated too: it reads each point correctly with probability 0.82 (`brf`), rates quality with an error of 0.9
(`veq`), and there is no `cns`. Two clients decide from the ground truth, and 10 % of their decisions are random: the
`strict` client accepts only images above a threshold in both, which differs by category; the `weighing` client lets
quality make up for missed points. Test tasks are the same for all sizes; the annotations are random images of the other
tasks, and every row is the mean over repeated draws. Everything is seeded: the numbers are the same on every machine
with the same libraries, up to the last digits.
"""

import argparse
import json
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = os.environ["OPENBLAS_NUM_THREADS"] = "1"

import numpy as np

from examples.miniature.printshop.damage import KINDS as DAMAGE
from examples.miniature.printshop.damage import damage
from examples.miniature.printshop.sampling import choose, sample_scene, sample_variation
from examples.miniature.printshop.wording import points_of
from local_bench.analysis.predictors.card import Inputs, Kind
from local_bench.analysis.predictors.images import LabelledImages, table_of
from local_bench.analysis.predictors.predictions import outputs, train_on
from local_bench.core.files import write_atomic
from local_bench.core.types import Score, digest
from local_bench.settle.discrimination import quality
from local_bench.settle.predictors.models import Rule
from local_bench.suites.printshop.checker import detect
from local_bench.suites.printshop.matching import holds
from local_bench.suites.printshop.scene import draw

SIZES = (50, 100, 200, 500, 1000, 2000, 5000)
CATEGORIES = ("Portrait", "Product", "Digital")
MODELS = (0.75, 0.55, 0.35, 0.15)
"""How often each simulated model draws another scene than the requested one."""
NAMES = ("brf", "veq")
KINDS: tuple[Kind, ...] = ("rule", "logistic")  # those fitted to scores alone
RULE = Rule({"brf": 3.0, "veq": 3.0})
STRICT = {"Portrait": (5.0, 3.0), "Product": (4.0, 2.0), "Digital": (3.0, 1.0)}
"""Thresholds of the strict client: points and quality."""
READS_A_POINT, QUALITY_ERROR, NOISE = 0.82, 0.9, 0.1


@dataclass(frozen=True)
class Made:
    """One simulated image."""

    order: int
    category: str
    price_micro_usd: int
    points: float
    """Ground truth, 0 to 5."""
    quality: float
    """Ground truth, 0 to 5."""
    brf: float
    veq: float


def images(orders: int, seed: int = 0, perfect_judge: bool = False) -> list[Made]:
    """All images of all models; with `perfect_judge` the scores are the ground truth."""
    rng = np.random.default_rng(seed)
    found = []
    for order in range(orders):
        scene = sample_scene(rng)
        points = points_of(scene)
        category, price = choose(rng, CATEGORIES), int(rng.integers(10, 201)) * 1_000_000
        for wrong in MODELS:
            delivered = scene
            if rng.random() < wrong:
                other = sample_scene(rng, len(scene.figures))
                keep = rng.random() < 0.5
                delivered = replace(scene, figures=other.figures) if keep else other
            pixels = draw(delivered, sample_variation(rng, len(delivered.figures)))
            strength = int(rng.integers(0, 5))
            if strength:
                pixels = damage(pixels, choose(rng, DAMAGE), strength, rng)
            seen = detect(pixels)
            met = np.array([holds(point, seen) is True for point in points])
            read = np.where(rng.random(len(met)) < READS_A_POINT, met, ~met)
            good = 5.0 - strength
            veq = float(np.clip(good + rng.normal(0, QUALITY_ERROR), 0, 5))
            if perfect_judge:
                read, veq = met, good
            found.append(Made(order, category, price, 5 * float(met.mean()), good, 5 * float(read.mean()), veq))
    return found


def decisions(made: Sequence[Made], client: str, seed: int = 1) -> tuple[list[bool], list[bool]]:
    """The client's decisions, and those that it would make without noise."""
    rng = np.random.default_rng(seed)
    if client == "strict":
        clean = [x.points >= STRICT[x.category][0] and x.quality >= STRICT[x.category][1] for x in made]
    else:
        clean = [1.5 * x.points + x.quality >= 8.0 + CATEGORIES.index(x.category) / 2 for x in made]
    noisy = [bool(rng.random() < 0.5) if rng.random() < 2 * NOISE else one for one in clean]
    return noisy, clean


def labelled(made: Sequence[Made], accepted: Sequence[bool]) -> LabelledImages:
    images = []
    for i, (x, yes) in enumerate(zip(made, accepted, strict=True)):
        scores = [Score("brf", x.brf), Score("veq", x.veq)]
        images.append((f"{i}", None, digest(["order", x.order]), yes, x.category, x.price_micro_usd, scores))
    return table_of(images, NAMES, 0)


def measured(values: Any, test: LabelledImages, accepted: Any) -> dict[str, float]:
    found = quality(values, accepted, test.features.tasks)
    pays = test.features.price_micro_usd
    revenue, expected = float(pays[accepted].sum()), float((values * pays).sum())
    predicted = float(pays[values >= 0.5].sum())
    return {
        "accuracy": found.accuracy,
        "auc": found.auc or 0.5,
        "brier": found.brier,
        "ece": found.ece,
        "predicted_revenue_error": predicted / revenue - 1,
        "expected_revenue_error": expected / revenue - 1,
    }


def curve(made: Sequence[Made], client: str, repeats: int) -> dict[str, Any]:
    """Per number of annotations and kind: mean and standard deviation over the draws; the constant rows apart."""
    accepted, clean = decisions(made, client)
    every = labelled(made, accepted)
    at = np.flatnonzero(every.mask("test"))
    test = replace(every, features=every.features.rows(at), accepted=every.accepted[at])
    truth = test.accepted == 1
    others = np.flatnonzero(~every.mask("test"))
    rate = float(truth.mean())
    found: dict[str, Any] = {
        "test_images": len(at),
        "accepted": rate,
        "correlation_of_brf_with_the_points": float(np.corrcoef([(x.brf, x.points) for x in made], rowvar=False)[0, 1]),
        "majority": max(rate, 1 - rate),
        "client_without_noise": float((np.array(clean)[at] == truth).mean()),
        "untuned_rule": float((RULE.decisions(test.features).accepted == truth).mean()),
        "rows": [],
    }
    inputs = Inputs(scores=list(NAMES), judges=[], rubrics=[])
    for size in SIZES:
        draws: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
        for repeat in range(repeats):
            chosen = np.random.default_rng([size, repeat]).choice(others, size, replace=False)
            labels = np.full(len(made), np.nan)
            labels[chosen] = every.accepted[chosen]
            given = replace(every, accepted=labels)
            for kind in KINDS:
                card = train_on(given, inputs, ["simulated"], None, kind)
                values = outputs(card.predictor, test.features, [])[0]
                draws[kind].append(measured(values, test, truth))
        for kind, of in draws.items():
            row: dict[str, Any] = {"annotations": size, "kind": kind}
            for name in of[0]:
                values = [one[name] for one in of]
                row[name] = round(float(np.mean(values)), 4)
                row[f"{name}_sd"] = round(float(np.std(values, ddof=1)), 4) if len(values) > 1 else None
            found["rows"].append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--orders", type=int, default=2200)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--perfect-judge", action="store_true")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    started = time.perf_counter()
    made = images(given.orders, perfect_judge=given.perfect_judge)
    clients = {client: curve(made, client, given.repeats) for client in ("strict", "weighing")}
    print(f"{len(made)} images, {time.perf_counter() - started:.0f} s")
    for client, of in clients.items():
        print(client, {name: value for name, value in of.items() if name != "rows"})
        for row in of["rows"]:
            print(*(row[name] for name in ("annotations", "kind", "accuracy", "accuracy_sd", "auc", "ece")))
    if given.out:
        text = json.dumps({"orders": given.orders, "repeats": given.repeats, "clients": clients}, indent=1)
        write_atomic(given.out, (text + "\n").encode())


if __name__ == "__main__":
    main()
