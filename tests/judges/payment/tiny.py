"""Small examples and settings: the client accepts red images and rejects blue ones."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

from PIL import Image

from local_bench.core.types import digest
from local_bench.judges.payment.data import Example, Lora, PaymentConfig, Prompt, Split, Stage, TrainingSet

SIDE = 32
NAN = math.nan


def load(sha: str) -> Image.Image:
    """Red if the digest begins with a digit below 8, else blue; the shade varies."""
    shade = 150 + int(sha[2:4], 16) // 4
    return Image.new("RGB", (SIDE, SIDE), (shade, 20, 20) if int(sha[0], 16) < 8 else (20, 20, shade))


def example(number: int, split: Split) -> Example:
    sha = digest(["image", number])
    accepted = float(int(sha[0], 16) < 8)
    return Example(
        work_id=f"work-{split}-{number}",
        task_id=f"task-{split}-{number // 2}",
        split=split,
        image=sha,
        title="A poster",
        brief="red",
        deliverable="the poster",
        points=("it is red",),
        price_micro_usd=10_000_000,
        concepts=(5 * accepted, 3.0, 1.0 + number % 5, 2.5, NAN, NAN, 4.0 if number % 2 else NAN),
        accepted=accepted,
        source=digest(["source", number]) if number % 3 == 0 else None,
        siblings=(digest(["other", number]), sha) if number % 2 else (),
        measured=(accepted, NAN),
    )


def data(train: int = 12, validation: int = 4, test: int = 4) -> TrainingSet:
    sizes: list[tuple[Split, int]] = [("train", train), ("validation", validation), ("test", test)]
    return TrainingSet(tuple(example(i, split) for split, n in sizes for i in range(n)), ("said", "unknown"))


def config(**changes: Any) -> PaymentConfig:
    """Six steps in each stage, a checkpoint after every one."""
    settings: dict[str, Any] = {
        "card": "tiny-qwen3-vl",
        "precision": "float32",
        "lora": Lora(rank=2, alpha=2, decision_rank=2, dropout=0.1),
        "width": 8,
        "max_tokens": 1024,
        "stage1": Stage(epochs=1, effective_batch=2, learning_rate=1e-3),
        "stage2": Stage(epochs=2, batch_size=2, effective_batch=4, learning_rate=1e-3),
        "prompt": Prompt(system="Judge.", text="{brief} {deliverable}"),
        "evaluate_every": 4,
        "save_every": 1,
    }
    return PaymentConfig(**settings | changes)


def shuffled(data_set: TrainingSet) -> TrainingSet:
    """The labels of the training and validation tasks in another order."""
    moved = [labelled for labelled in data_set.examples if labelled.split != "test"]
    order = sorted(range(len(moved)), key=lambda i: digest(["order", i]))
    labels = [moved[i].accepted for i in order]
    free = [replace(labelled, accepted=label) for labelled, label in zip(moved, labels, strict=True)]
    return TrainingSet((*free, *data_set.of("test")), data_set.measured_names)


def files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}
