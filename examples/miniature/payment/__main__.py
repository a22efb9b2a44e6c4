"""Whether the two-stage payment model beats a frozen head and a tuned rule in the print shop's miniature.

    python -m examples.miniature.payment --out DIR [--orders 600] [--seed 7] [--tries full measured ...]

Simulated orders and clients (`orders`), judged zero-shot by mini-judge; half of the orders train, 15 % validate, the
rest test. Each try is one training on one CPU thread (about 40 minutes for all); finished ones are read
from DIR, so tries can be added. Writes DIR/results.json and prints a table: accuracy, AUC and Brier score on the test
images with 95 % intervals over orders, and the differences in accuracy from the tuned rule and from the frozen head.
"""

import argparse
import json
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from examples.miniature.payment import orders
from local_bench.core.types import Score, digest
from local_bench.judges.payment import artefact
from local_bench.judges.payment.data import Example, PaymentConfig, TrainingSet, load_payment_config, without_labels
from local_bench.judges.payment.training import train
from local_bench.runs.payment import MEASURED
from local_bench.settle.features import Features, feature_table
from local_bench.settle.predictors.evaluation import accuracy_difference, evaluate
from local_bench.settle.predictors.fitting import fit_calibration, fit_held_out, tune_rule

Floats = NDArray[np.float64]
CHANGES: dict[str, dict[str, Any]] = {
    "frozen": {"row": "frozen", "measured": False},
    "concepts": {"row": "concepts", "measured": False},
    "vision": {"row": "vision", "measured": False},
    "full": {"row": "full", "measured": False},
    "full, measured": {"row": "full"},
    "full, measured, more passes": {"row": "full", "epochs": (8, 12)},
    "frozen, measured": {"row": "frozen"},
    "frozen, measured, more passes": {"row": "frozen", "epochs": (1, 20)},
    "frozen, measured, wide head": {"row": "frozen", "epochs": (1, 20), "width": 256},
    "frozen, measured, regularised": {"row": "frozen", "epochs": (1, 20), "width": 8, "head_dropout": 0.8},
    "frozen, measured, fast head": {"row": "frozen", "epochs": (1, 20), "head_rate": 1e-2},
    "frozen, measured, fast regularised head": {
        "row": "frozen",
        "epochs": (1, 20),
        "head_rate": 1e-2,
        "width": 8,
        "head_dropout": 0.8,
    },
}
"""Try -> its changes of configs/payment/mini-judge.yaml."""
SCORES = ("brf", "veq", "cns")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--orders", type=int, default=600)
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--tries", nargs="*", default=list(CHANGES), choices=list(CHANGES))
    options = parser.parse_args()
    torch.set_num_threads(1)
    options.out.mkdir(parents=True, exist_ok=True)
    shop = orders.make(options.orders, options.seed)
    orders.judge(shop, options.out / f"judge-{options.orders}.json")
    examples = [replace(one, split=_split(one.task_id)) for one in orders.examples(shop, options.seed)]
    data = TrainingSet(tuple(examples), MEASURED)
    found = _simple(shop, examples, options.seed)
    for name in options.tries:
        found[name] = _try(name, data, shop, options.out)
    _report(found, examples, options)


def _split(task_id: str) -> Any:
    place = int(digest(["miniature", task_id])[:8], 16) / 2**32
    return "train" if place < 0.5 else "validation" if place < 0.65 else "test"


def _of(examples: list[Example], split: str) -> NDArray[np.bool_]:
    return np.array([one.split == split for one in examples])


def _simple(shop: orders.Shop, examples: list[Example], seed: int) -> dict[str, Floats]:
    """Probabilities of the test images by the client's rule, the majority, and predictors of the judge's scores."""
    labels = np.array([one.accepted for one in examples])
    train_mask, held, test = (_of(examples, split) for split in ("train", "validation", "test"))
    clean = orders.clients(shop, seed)
    pays = np.array([clean[one.work_id.rpartition("/")[0], int(one.work_id.rpartition("/")[2])][1] for one in examples])
    table = _table(examples, {name: _judged(shop, name) for name in SCORES})
    wide = _table(examples, {n: {e.work_id: e.measured[i] for e in examples} for i, n in enumerate(MEASURED)})
    rule = tune_rule(table.rows(train_mask), labels[train_mask], SCORES).decisions(table.rows(test))
    found = {
        "client without noise": np.where(pays[test], 1 - orders.NOISE, orders.NOISE),
        "majority": np.full(int(test.sum()), labels[train_mask].mean()),
        "tuned rule": rule.accepted.astype(np.float64),
    }
    for name, features in (("judge scores", table), ("judge scores and points", wide)):
        model = fit_held_out(
            features.rows(train_mask), labels[train_mask], features.rows(held), labels[held], seed=seed
        )
        found[f"logistic, {name}"] = model.probabilities(features.rows(test))
    return found


def _judged(shop: orders.Shop, name: str) -> dict[str, float]:
    found = {}
    for order in shop.orders:
        for i, scores in orders.servimage.scores(order.task, order.verdicts).items():
            value = next(score.value for score in scores if score.name == name)
            found[f"{order.task.task_id}/{order.model}/{i}"] = float("nan") if value is None else value
    return found


def _table(examples: list[Example], values: dict[str, dict[str, float]]) -> Features:
    def score(name: str, value: float) -> Score:
        return Score(name, None, applies=False) if np.isnan(value) else Score(name, value)

    rows = [[score(name, of[one.work_id]) for name, of in values.items()] for one in examples]
    n = len(examples)
    return feature_table(rows, ["Digital"] * n, [1] * n, [one.task_id for one in examples], tuple(values))


def config_of(name: str) -> PaymentConfig:
    """The settings of a try."""
    changes = dict(CHANGES[name])
    config = load_payment_config("mini-judge").row(changes.pop("row"))
    for stage, epochs in zip(("stage1", "stage2"), changes.pop("epochs", ()), strict=False):
        changes[stage] = getattr(config, stage).model_copy(update={"epochs": epochs})
    if (rate := changes.pop("head_rate", None)) is not None:
        changes["stage2"] = changes.get("stage2", config.stage2).model_copy(update={"head_learning_rate": rate})
    return config.model_copy(update=changes)


def _try(name: str, data: TrainingSet, shop: orders.Shop, out: Path) -> Floats:
    """Calibrated probabilities of the test images."""
    folder = out / name.replace(", ", "-").replace(" ", "-")
    began, cpu = time.perf_counter(), time.process_time()
    train(data, shop.load, config_of(name), folder, device="cpu", report=lambda text: print(f"  {text}", flush=True))
    print(f"{name}: {time.perf_counter() - began:.0f} s, {time.process_time() - cpu:.0f} s of CPU", flush=True)
    model = artefact.load(folder, device="cpu")
    odds = {}
    for split in ("validation", "test"):
        examples = data.of(split)  # type: ignore[arg-type]
        said = model.predict(without_labels(examples), shop.load)
        odds[split] = np.array([one.log_odds for one in said]), np.array([one.accepted for one in examples])
    calibration = fit_calibration(*odds["validation"])
    return np.asarray(calibration.calibration.probabilities(odds["test"][0]))


def _report(found: dict[str, Floats], examples: list[Example], options: argparse.Namespace) -> None:
    test = [one for one in examples if one.split == "test"]
    accepted = np.array([one.accepted == 1 for one in test])
    numbers = {task: i for i, task in enumerate(dict.fromkeys(one.task_id for one in test))}
    tasks = np.array([numbers[one.task_id] for one in test])
    results: dict[str, Any] = {}
    for name, values in found.items():
        row: dict[str, Any] = asdict(evaluate(values, accepted, tasks, ("Digital",) * len(test)))
        for other in ("tuned rule", "frozen"):
            if other in found and name != other:
                row[f"over {other}"] = asdict(accuracy_difference(values, found[other], accepted, tasks))
        results[name] = row
    print(f"{len(test)} test images of {len(numbers)} orders; {_of(examples, 'train').sum()} train")
    for name, row in results.items():
        cells = [f"{name:32}"]
        for metric in ("accuracy", "auc", "brier", "ece"):
            cells.append(f"{metric} {row[metric]['value']:.3f}")
        for other in ("over tuned rule", "over frozen"):
            if other in row:
                one = row[other]
                cells.append(f"{other} {100 * one['value']:+.1f} [{100 * one['low']:.1f}, {100 * one['high']:.1f}]")
        print("  ".join(cells))
    (options.out / "results.json").write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
