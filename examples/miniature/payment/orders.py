"""Simulated orders of the print shop with candidate images, a zero-shot judge's answers and a simulated client.

An order is one figure, two figures, an edit or a set of three. Each of two simulated models delivers it with random
errors (a wrong attribute, a blurred or noisy image). The client accepts an image if it meets every requirement, or all
but one with a clean image, keeps what an edit should keep, agrees with its set, and is not badly damaged; a tenth of
the decisions is reversed.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from examples.miniature.printshop.damage import KINDS, damage
from examples.miniature.printshop.orderbook import frame
from examples.miniature.printshop.sampling import (
    choose,
    draw_edit,
    sample_caption,
    sample_edit,
    sample_instruction,
    sample_scene,
    sample_variation,
)
from examples.miniature.printshop.sets import sample_set
from examples.miniature.printshop.wording import points_of, write_point
from local_bench.core.images import pixel_digest
from local_bench.core.types import Question, Task, Verdict
from local_bench.judges.payment.data import Example
from local_bench.judges.vlm.judge import JudgeSpec, answers
from local_bench.judges.vlm.local import Local
from local_bench.judges.vlm.protocols import prepare
from local_bench.judges.vlm.rubrics import DEFAULT, RubricSet
from local_bench.models.cards import card
from local_bench.models.weights import resolve
from local_bench.runs.payment import example
from local_bench.suites.printshop.checker import detect
from local_bench.suites.printshop.matching import edit_score, facts, holds, set_scores, style_of
from local_bench.suites.printshop.scene import BACKGROUNDS, COLOURS, SHAPES, SIZES, Pixels, Scene, draw
from local_bench.suites.servimage import questions as servimage

MODELS = 2
NOISE = 0.1
_KINDS = ("one", "two", "edit", "set")


@dataclass
class Order:
    """An order with the images of one model."""

    task: Task
    model: int
    images: dict[int, str]
    """Pixel digest by deliverable."""
    true: dict[int, tuple[float, float, float]]
    """Fraction of the points met, damage strength, consistency 1 to 5 (5 if not applicable)."""
    verdicts: dict[tuple[int, str, int, int], Verdict]


@dataclass
class Shop:
    """All orders and images."""

    orders: list[Order]
    images: dict[str, Image.Image]

    def load(self, sha: str) -> Image.Image:
        return self.images[sha]


def make(count: int, seed: int) -> Shop:
    """`count` orders, each delivered by MODELS models."""
    shop = Shop([], {})
    for number in range(count):
        rng = np.random.default_rng([seed, number])
        task, scenes, draw_all = _order(number, rng, shop)
        for model in range(MODELS):
            shop.orders.append(_delivered(task, model, scenes, draw_all, rng, shop))
    return shop


def _order(number: int, rng: np.random.Generator, shop: Shop) -> tuple[Task, list[Scene], Any]:
    kind = _KINDS[number % len(_KINDS)]
    title, brief = frame({"one": "alone", "two": "alone"}.get(kind, kind), "en", rng)
    common: dict[str, Any] = {"category": "Digital", "price_micro_usd": 10_000_000, "title": title, "brief": brief}
    if kind == "edit":
        edit = sample_edit(rng)
        source, _ = draw_edit(edit, rng)
        points = points_of(edit.target)
        task = Task(
            task_id=f"sim-{number:05}",
            deliverables=(sample_instruction(edit, rng, "en"),),
            evaluation_points=tuple(write_point(point, "en") for point in points),
            source_sha256=_keep(shop, source),
            **common,
        )
        return task, [edit.target], (edit, points)
    scenes = list(sample_set(rng, 3).scenes) if kind == "set" else [sample_scene(rng, 1 if kind == "one" else 2)]
    points = list(dict.fromkeys(point for scene in scenes for point in points_of(scene)))
    task = Task(
        task_id=f"sim-{number:05}",
        deliverables=tuple(sample_caption(scene, rng, "en") for scene in scenes),
        evaluation_points=tuple(write_point(point, "en") for point in points),
        **common,
    )
    return task, scenes, (None, points)


def _delivered(task: Task, model: int, scenes: list[Scene], of: Any, rng: np.random.Generator, shop: Shop) -> Order:
    edit, points = of
    drawn, strengths = [], []
    for scene in scenes:
        wrong = scene
        for _ in range(int(rng.choice(3, p=(0.45, 0.35, 0.2)))):
            wrong = _mistaken(wrong, rng)
        strength = int(rng.choice(5, p=(0.5, 0.14, 0.14, 0.12, 0.1)))
        pixels = draw(wrong, sample_variation(rng, len(wrong.figures)))
        drawn.append(damage(pixels, choose(rng, KINDS), strength, rng) if strength else pixels)
        strengths.append(strength)
    seen = [detect(pixels) for pixels in drawn]
    styles = set_scores([style_of(one) for one in seen]) if len(seen) > 1 else [5]
    true = {}
    for i, one in enumerate(seen):
        mine = points if len(seen) == 1 else points_of(scenes[i])
        met = [holds(point, one) is True for point in mine]
        consistent = edit_score(facts(one), edit) if edit is not None else styles[i]
        true[i + 1] = (sum(met) / len(met), float(strengths[i]), float(consistent))
    return Order(task, model, {i: _keep(shop, pixels) for i, pixels in enumerate(drawn, 1)}, true, {})


def _mistaken(scene: Scene, rng: np.random.Generator) -> Scene:
    """The scene with one wrong attribute."""
    what = choose(rng, ("background", "colour", "size", "shape"))
    if what == "background":
        return replace(scene, background=choose(rng, BACKGROUNDS, (scene.background,)))
    i = int(rng.integers(len(scene.figures)))
    figure = scene.figures[i]
    taken = tuple(other.shape for other in scene.figures)
    options = {"colour": (COLOURS, (figure.colour,)), "size": (SIZES, (figure.size,)), "shape": (SHAPES, taken)}
    values, but = options[what]
    figures = list(scene.figures)
    figures[i] = replace(figure, **{what: choose(rng, values, but)})
    return replace(scene, figures=tuple(figures))


def _keep(shop: Shop, pixels: Pixels) -> str:
    image = Image.fromarray(pixels)
    sha = pixel_digest(image)
    shop.images[sha] = image
    return sha


def judge(shop: Shop, kept: Path) -> None:
    """The zero-shot judge's answers, from the file `kept` if it is there."""
    if not kept.is_file():
        found = {f"{i}": v for i, v in _judged(shop)}
        kept.write_text(json.dumps(found))
    for text, verdicts in json.loads(kept.read_text()).items():
        for key, answer, labels in verdicts:
            shop.orders[int(text)].verdicts[tuple(key)] = Verdict(answer, None, "", labels)


def _judged(shop: Shop) -> Iterator[tuple[int, list[Any]]]:
    described = card("mini-judge", "judge")
    spec = JudgeSpec(
        described.name, "", "float32", described.judge_max_pixels, described.patch, 0, "logit",
        rubrics=RubricSet(described.rubrics or DEFAULT),
    )  # fmt: skip
    load = lambda shown: prepare(shown, shop.load, described.patch)  # noqa: E731
    with Local(resolve(described), load, "cpu", "float32") as local:
        for i, order in enumerate(shop.orders):
            questions: list[tuple[Any, Question]] = list(servimage.questions(order.task, order.images))
            verdicts = [[list(key), v.answer, v.labels] for key, v in answers(local, spec, questions)]
            yield i, verdicts
            if i % 100 == 0:
                print(f"judged {i} of {len(shop.orders)}", flush=True)


def clients(shop: Shop, seed: int) -> dict[tuple[str, int], tuple[bool, bool]]:
    """(image's work id) -> what the client decides, and the decision without noise."""
    rng = np.random.default_rng([seed, 1])
    found = {}
    for order in shop.orders:
        for i, (met, strength, consistent) in order.true.items():
            pays = (met == 1 or (met >= 0.74 and strength == 0)) and strength <= 2 and consistent >= 4
            found[f"{order.task.task_id}/{order.model}", i] = (pays != (rng.random() < NOISE), pays)
    return found


def examples(shop: Shop, seed: int) -> list[Example]:
    """With the client's decisions and the judge's scores; the split is by order."""
    decided = clients(shop, seed)
    found = []
    for order in shop.orders:
        scores = servimage.scores(order.task, order.verdicts)
        for i in order.images:
            by_name = {score.name: score for score in scores[i]}
            work = f"{order.task.task_id}/{order.model}"
            found.append(
                example(
                    order.task, f"{work}/{i}", i, order.images, by_name, order.verdicts,
                    float(decided[work, i][0]), seed,
                )
            )  # fmt: skip
    return found
