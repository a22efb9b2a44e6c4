"""The tasks of `printshop`, their requested scenes, and the ground truth of their images: the checker's results in the
form of a judge's answers, for evaluation points (`brf`; undetermined points are not met, as in the rubric), the
consistency of an edit (`cns_edit`) and a set's style (`cns_set`), but not for visual quality.

`orders.jsonl` is an ordinary task file. Requested scenes are parsed from its texts: a deliverable is a caption, or an
instruction for the task's source image, whose scene is in `sources.json`.
"""

from collections.abc import Mapping
from functools import cache
from pathlib import Path

from local_bench.core import strictjson
from local_bench.core.errors import TaskFileError
from local_bench.core.types import GroundTruth, Task
from local_bench.suites.printshop.checker import detect
from local_bench.suites.printshop.matching import (
    edit_score,
    facts,
    holds,
    match,
    read_point,
    set_scores,
    style_of,
)
from local_bench.suites.printshop.phrases import Edit, read_caption, read_instruction
from local_bench.suites.printshop.scene import SIDE, Pixels, Scene, scene_from

FOLDER = Path(__file__).parent
SOURCES = FOLDER / "sources.json"


def requested(task: Task) -> list[tuple[Scene, Edit | None]]:
    """The requested scene of each deliverable of a task, and its edit if it is one. TaskFileError if a text cannot be
    parsed."""
    source = sources().get(task.task_id)
    images: list[tuple[Scene, Edit | None]] = []
    for text in task.deliverables:
        edit = None if source is None else read_instruction(text, source)
        scene = read_caption(text) if source is None else None if edit is None else edit.target
        if scene is None:
            raise TaskFileError(f"{task.task_id}: {text!r} cannot be parsed: describe figures and a background")
        images.append((scene, edit))
    return images


def truth(task: Task) -> list[Scene]:
    """The requested scene of each deliverable of a task."""
    return [scene for scene, _ in requested(task)]


@cache
def sources() -> dict[str, Scene]:
    """Task id -> scene of its source image."""
    return {task_id: scene_from(scene) for task_id, scene in strictjson.loads(SOURCES.read_text("utf-8")).items()}


SHAPE = (SIDE, SIDE, 3)
"""The array shape of images with ground truth."""


def truths(task: Task, images: Mapping[int, Pixels]) -> dict[int, GroundTruth]:
    """Ground truth of one model's images for a task: uint8 RGB by deliverable (from 1). Images of other sizes than
    64x64 are left out. TaskFileError if the task's text cannot be parsed."""
    seen = {i: detect(pixels) for i, pixels in sorted(images.items()) if pixels.shape == SHAPE}
    requested_images = dict(enumerate(requested(task), 1))
    points = [read_point(text) for text in task.evaluation_points]
    styles = dict(zip(seen, set_scores([style_of(image) for image in seen.values()]), strict=True))
    by_deliverable = {}
    for i, image in seen.items():
        answers: dict[tuple[str, int], dict[str, object] | None] = {
            ("brf", k): None if point is None else {"met": int(holds(point, image) is True)}
            for k, point in enumerate(points)
        }
        scene, edit = requested_images[i]
        if edit is not None:
            answers["cns_edit", 0] = {"score": edit_score(facts(image), edit), "flags": []}
        if len(task.deliverables) > 1:
            complete = len(seen) == len(task.deliverables)
            answers["cns_set", 0] = {"score": styles[i], "flags": []} if complete else None
        by_deliverable[i] = GroundTruth(answers, match(image, scene))
    return by_deliverable
