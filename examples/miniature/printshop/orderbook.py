"""Generates the printshop tasks from one seed; `scripts/make_printshop.py` writes the files."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from examples.miniature.printshop.sampling import (
    Split,
    choose,
    draw_edit,
    sample_caption,
    sample_edit,
    sample_instruction,
    sample_scene,
)
from examples.miniature.printshop.sets import sample_set
from examples.miniature.printshop.wording import points_of, write_point
from local_bench.core.files import write_atomic
from local_bench.core.images import png_bytes
from local_bench.suites.printshop.matching import Point
from local_bench.suites.printshop.phrases import KINDS, Edit, Language, language_words
from local_bench.suites.printshop.scene import Pixels, Scene

SEED = 48
_CATEGORIES = ("Portrait", "Product", "Digital")
_MATTERS = ("one", "edit", "set", "two") * 12
"""The type of each task: one figure, an edit, a set, two figures."""
_ENGLISH_FIRST: tuple[Language, ...] = ("en", "en", "en", "zh")


@dataclass(frozen=True)
class Order:
    """One line of the task file, and its source image if it has one."""

    line: dict[str, Any]
    source: Scene | None = None
    image: Pixels | None = None


def orders(seed: int = SEED) -> list[Order]:
    """All tasks for a seed. Every second pair is held out from training, and so is the second half of the edits except
    moves."""
    made = []
    for number, matter in enumerate(_MATTERS):
        rng = np.random.default_rng([seed, number])
        language = _ENGLISH_FIRST[number // 4 % 4]
        category = _CATEGORIES[number // 4 % 3]
        split: Split = "held_out" if number // 4 % 2 else "train"
        line = {"task_id": f"print-{number + 1:02}", "category": category}
        match matter:
            case "edit":
                kind = KINDS[number // 4 % len(KINDS)]
                held = number // 4 >= len(KINDS) and kind != "move"
                made.append(_edit(line, sample_edit(rng, kind, "held_out" if held else "train"), language, rng))
            case "set":
                scenes = list(sample_set(rng, int(rng.integers(2, 5))).scenes)
                made.append(_drawn(line, scenes, "set", language, rng))
            case _:
                count = 1 if matter == "one" else 2
                scene = sample_scene(rng, count, split if count == 2 else "any")
                made.append(_drawn(line, [scene], "alone", language, rng))
    return made


def write(folder: Path) -> None:
    """Write `orders.jsonl`, `sources.json` and the source images to `folder`."""
    book = orders()
    lines = (json.dumps(order.line, ensure_ascii=False) + "\n" for order in book)
    write_atomic(folder / "orders.jsonl", "".join(lines).encode())
    sources = {order.line["task_id"]: asdict(order.source) for order in book if order.source is not None}
    write_atomic(folder / "sources.json", (json.dumps(sources, indent=1) + "\n").encode())
    for order in book:
        if order.image is not None:
            write_atomic(folder / order.line["source_image"], png_bytes(Image.fromarray(order.image)))


def frame(matter: str, language: Language, rng: np.random.Generator, category: str | None = None) -> tuple[str, str]:
    """A random title and brief for a task of type `alone`, `edit` or `set`."""
    words = language_words(language)
    items = words.shop.items[category or choose(rng, _CATEGORIES)]
    briefs: list[str] = getattr(words.shop, matter)
    return words.join(choose(rng, items)), words.join(choose(rng, briefs))


def _drawn(
    line: dict[str, Any], scenes: list[Scene], matter: str, language: Language, rng: np.random.Generator
) -> Order:
    points = list(dict.fromkeys(point for scene in scenes for point in points_of(scene)))
    captions = [sample_caption(scene, rng, language) for scene in scenes]
    price = sum(_price(rng, 6 + 4 * len(scene.figures)) for scene in scenes)
    return Order(_line(line, matter, language, rng, price, captions, points))


def _edit(line: dict[str, Any], edit: Edit, language: Language, rng: np.random.Generator) -> Order:
    source, _ = draw_edit(edit, rng)
    points = [*_absent(edit), *points_of(edit.target)]
    whole = _line(line, "edit", language, rng, _price(rng, 5), [sample_instruction(edit, rng, language)], points)
    return Order({**whole, "source_image": f"pictures/{line['task_id']}.png"}, edit.source, source)


def _absent(edit: Edit) -> list[Point]:
    shapes = {figure.shape for figure in edit.target.figures}
    return [Point(shape=f.shape, absent=True) for f in edit.source.figures if f.shape not in shapes]


def _line(
    line: dict[str, Any],
    matter: str,
    language: Language,
    rng: np.random.Generator,
    price_usd: float,
    deliverables: list[str],
    points: list[Point],
) -> dict[str, Any]:
    title, brief = frame(matter, language, rng, line["category"])
    return {
        **line,
        "price_usd": price_usd,
        "title": title,
        "brief": brief,
        "deliverables": deliverables,
        "evaluation_points": [write_point(point, language) for point in points],
    }


def _price(rng: np.random.Generator, least_usd: int) -> float:
    """A random price in steps of 0.50 USD, up to twice the minimum."""
    return least_usd + int(rng.integers(0, 2 * least_usd + 1)) / 2
