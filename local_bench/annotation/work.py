"""What annotators of runs are shown: items for a protocol, from one run or several.

Images with equal pixels of the same task are one item, whichever model or attempt made them.
"""

import itertools
import random
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from local_bench.annotation.protocol import OVERALL, Item, ItemImage, Protocol, TaskView
from local_bench.annotation.ratings import image_lines
from local_bench.core import strictjson
from local_bench.core.errors import UserError
from local_bench.core.images import png_bytes
from local_bench.core.types import LEAST_PROBABILITY, digest, seed_of
from local_bench.core.yamlfile import Strict, check
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import Candidate
from local_bench.suites.registry import suite

Images = tuple[ItemImage, ...]
ImageKey = tuple[str, str, int, int]
"""(model, task, deliverable, attempt)"""


class QuestionLine(Strict):
    """A line of `settle --plan-labels --questions FILE`."""

    model: str
    task_id: str
    deliverable: int = Field(ge=1)
    attempt: int = Field(1, ge=1)
    probability: float = Field(ge=LEAST_PROBABILITY, le=1)
    overall: bool | None


@dataclass(frozen=True)
class AnnotationWork:
    """The items of a session and their tasks."""

    items: list[Item]
    tasks: dict[str, TaskView]
    n_missing: int
    """Images that the protocol would show, and that do not exist."""
    planned: Mapping[tuple[str, str, ItemImage], float]
    """(task, model, image) -> probability in the file of questions, which has the images that are annotated too."""


def annotation_work(
    runs: Sequence[RunDir], protocol: Protocol, questions: Path | Sequence[Item] = (), gold: Path | None = None
) -> AnnotationWork:
    """The items of `protocol` for the images of `runs`; with `questions` only of the images in that file, or of those
    that were sampled for these items.

    `gold` is a file of annotations with known answers. UserError if there is nothing to annotate, if the same task
    differs between runs, or for an invalid file.
    """
    tasks = _tasks(runs)
    attempts = [
        [row for row in run.store.candidates() if protocol.attempts != "first" or row.attempt == 1] for run in runs
    ]
    by_run = [[row for row in rows if row.image] for rows in attempts]  # a model can be in several runs
    with_image = [row for rows in by_run for row in rows]
    planned = _planned(questions, with_image) if isinstance(questions, Path) else {}
    open_images = {key: p for key, (p, annotated) in planned.items() if not annotated}
    sample = open_images if isinstance(questions, Path) else _sampled(questions, with_image)
    gold_answers = {} if gold is None else _gold(gold, protocol, runs[0], with_image)
    if protocol.points:
        without = next((row.task_id for row in with_image if not tasks[row.task_id].points), None)
        if without is not None:
            raise UserError(f"protocol {protocol.id}: the task {without!r} has no evaluation points: use another one")
    if protocol.shows == "pair":
        if sample is not None:
            raise UserError(f"protocol {protocol.id} compares pairs, and --questions lists single images: leave it out")
        items = _pairs(protocol, by_run, runs[0].config.seed)
    else:
        items = _single(protocol, by_run, sample, gold_answers)
    if not items:
        paths, pairs = ", ".join(str(run.path) for run in runs), protocol.shows == "pair" and with_image
        why = "it needs images of two models" if pairs else "no image has been generated"
        raise UserError(f"{paths}: there is nothing to annotate with protocol {protocol.id}: {why}")
    images = [(row, ItemImage(row.deliverable, str(row.image))) for row in with_image if row.key in planned]
    probabilities = {(row.task_id, row.model, image): planned[row.key][0] for row, image in images}
    return AnnotationWork(items, tasks, sum(map(len, attempts)) - len(with_image), probabilities)


def _tasks(runs: Sequence[RunDir]) -> dict[str, TaskView]:
    views: dict[str, TaskView] = {}
    for run in runs:
        for task in run.store.tasks():
            view = TaskView(
                task.task_id, task.category, task.title, task.brief, task.deliverables,
                suite(run.config.suite.name).points_for_people(task),
                task.source_sha256, task.reference_sha256, task.mask_sha256,
            )  # fmt: skip
            if views.setdefault(task.task_id, view) != view:
                raise UserError(
                    f"the task {task.task_id!r} of {run.path} differs from that of another run: annotate them apart"
                )
    return views


def _sets(by_run: Sequence[Sequence[Candidate]], apart: bool = False) -> Iterator[tuple[str, int, list[Candidate]]]:
    """(task, attempt, images) of each model's sets in each run; with `apart` every image is a set of its own."""
    for with_image in by_run:
        by_set: dict[tuple[str, str, int, int], list[Candidate]] = defaultdict(list)
        for row in with_image:
            by_set[row.model, row.task_id, row.attempt, row.deliverable if apart else 0].append(row)
        yield from ((task_id, attempt, rows) for (_, task_id, attempt, _), rows in by_set.items())


def _images(rows: Iterable[Candidate]) -> Images:
    return tuple(sorted(ItemImage(row.deliverable, str(row.image)) for row in rows))


def _single(
    protocol: Protocol,
    by_run: Sequence[Sequence[Candidate]],
    sample: Mapping[ImageKey, float] | None,
    gold_answers: Mapping[ImageKey, Mapping[str, Any]],
) -> list[Item]:
    by_id: dict[str, Item] = {}
    for task_id, _, rows in _sets(by_run, protocol.shows == "image"):
        chosen = rows if sample is None else [row for row in rows if row.key in sample]
        if not chosen:
            continue
        sampled = [] if sample is None else [(row.model, row.deliverable, sample[row.key]) for row in chosen]
        shown = rows if protocol.whole_set else chosen
        gold = {str(row.deliverable): gold_answers[row.key] for row in chosen if row.key in gold_answers}
        item = Item(protocol.id, task_id, _images(shown), (), tuple(sampled), gold or None)
        before = by_id.get(item.item_id)
        if before is not None:
            item = replace(item, sampled=(*before.sampled, *sampled), gold={**(before.gold or {}), **gold} or None)
        by_id[item.item_id] = item
    return [by_id[item_id] for item_id in sorted(by_id)]


def _pairs(protocol: Protocol, by_run: Sequence[Sequence[Candidate]], seed: int) -> list[Item]:
    by_task: dict[str, set[Images]] = defaultdict(set)
    for task_id, attempt, rows in _sets(by_run):
        if attempt == 1:
            by_task[task_id].add(_images(rows))
    items: list[Item] = []
    for task_id, of_task in by_task.items():
        different = sorted(of_task)
        pairs = [
            (a, b)
            for a, b in itertools.combinations(different, 2)
            if [image.deliverable for image in a] == [image.deliverable for image in b]
        ]
        if protocol.pairs_per_task is not None and len(pairs) > protocol.pairs_per_task:
            rng = random.Random(seed_of(digest({"pairs": task_id, "seed": seed})))  # noqa: S311
            pairs = rng.sample(pairs, protocol.pairs_per_task)
        items += [Item(protocol.id, task_id, a, b) for a, b in pairs]
    return sorted(items, key=lambda item: item.item_id)


def _planned(path: Path, with_image: Sequence[Candidate]) -> dict[ImageKey, tuple[float, bool]]:
    """Image -> probability and whether it is annotated, from a file of `settle --plan-labels`."""
    keys = {row.key for row in with_image}
    planned: dict[ImageKey, tuple[float, bool]] = {}
    lines = strictjson.objects(
        path, UserError, "an image", missing="check the path", unreadable="give a JSON Lines file"
    )
    for _, where, data in lines:
        line = check(data, QuestionLine, where, error=UserError)
        key = (line.model, line.task_id, line.deliverable, line.attempt)
        if key not in keys:
            raise UserError(f"{where}: the run has no such image: plan the annotations again")
        planned[key] = line.probability, line.overall is not None
    if all(annotated for _, annotated in planned.values()):
        raise UserError(f"{path} has no image without an answer: there is nothing to annotate")
    return planned


def _sampled(items: Sequence[Item], with_image: Sequence[Candidate]) -> dict[ImageKey, float] | None:
    """Images of which these items are a sample -> probability; None if they are not a sample."""
    of_image = {
        (item.task_id, image.deliverable, image.pixels_sha256, model): probability
        for item in items
        for image in item.images
        for model, deliverable, probability in item.sampled
        if deliverable == image.deliverable
    }
    probabilities = {
        row.key: of_image.get((row.task_id, row.deliverable, str(row.image), row.model)) for row in with_image
    }
    return {key: p for key, p in probabilities.items() if p is not None} if of_image else None


def _gold(
    path: Path, protocol: Protocol, run: RunDir, with_image: Sequence[Candidate]
) -> dict[ImageKey, dict[str, Any]]:
    """Known answers by image: the protocol's fields, or `overall`."""
    if protocol.points or protocol.shows == "pair":
        raise UserError(f"protocol {protocol.id} has no answers about single images: leave --gold out")
    questions = [field.name for field in protocol.fields]
    names = {*questions} | ({OVERALL} if protocol.overall != "none" else set())
    answers: dict[ImageKey, dict[str, Any]] = {}
    for _, where, line, scores in image_lines(path, run, {row.key for row in with_image}, questions):
        values = {name: value for name, value in scores.items() if name in names}
        bad = next((name for name, value in values.items() if not isinstance(value, bool | int | float)), None)
        if bad is not None or not values:
            raise UserError(f"{where}: give true, false or a number for one of {', '.join(sorted(names))}")
        answers[line.image] = values
    return answers


def png_of(runs: Sequence[RunDir], sha: str) -> bytes:
    """The PNG of an image of any of the runs, without metadata. ImageError if it is missing, damaged or altered."""
    holding = next((run for run in runs if run.image_store.exists(sha)), runs[0])
    return png_bytes(holding.image_store.load_any(sha))
