"""Orders of ServImage's form, images of noise for them, and a progress that records what it is told."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from local_bench.runs.progress import Quiet


def order(task_id: str, deliverables: Iterable[str] = ("an image",), **more: Any) -> dict[str, Any]:
    fields = {"category": "Product", "price_usd": 10, "title": f"Order {task_id}", "brief": "Make it red."}
    return {"task_id": task_id, "deliverables": [*deliverables], "evaluation_points": ["It is red"]} | fields | more


def write_orders(path: Path, orders: Iterable[dict[str, Any]]) -> None:
    path.write_text("\n".join(map(json.dumps, orders)))


def noise(path: Path, seed: int, size: tuple[int, int] = (32, 32)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path)


class Recorded(Quiet):
    def __init__(self) -> None:
        self.notes: list[str] = []
        self.begun: list[tuple[str, int]] = []
        self.done = 0
        """Of the phase that was begun last."""

    def note(self, message: str) -> None:
        self.notes.append(message)

    def begin(self, phase: str, total: int) -> None:
        self.begun.append((phase, total))
        self.done = 0

    def advance(self, n: int = 1) -> None:
        self.done += n
