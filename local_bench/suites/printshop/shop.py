"""The tasks of `printshop` and their requested scenes.

`orders.jsonl` is an ordinary task file. Requested scenes are parsed from its texts: a deliverable is a caption, or an
instruction for the task's source image, whose scene is in `sources.json`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from local_bench.core import strictjson
from local_bench.core.errors import TaskFileError
from local_bench.core.types import Task
from local_bench.suites.printshop.checker import DetectedScene
from local_bench.suites.printshop.edits import Edit, read_instruction
from local_bench.suites.printshop.points import holds, read_point
from local_bench.suites.printshop.scene import Scene, scene_from
from local_bench.suites.printshop.wording import read_caption

FOLDER = Path(__file__).parent
ORDERS = FOLDER / "orders.jsonl"
SOURCES = FOLDER / "sources.json"


@dataclass(frozen=True)
class RequestedImage:
    """The requested scene of a deliverable, and its edit if it is one."""

    scene: Scene
    edit: Edit | None = None


def requested(task: Task) -> list[RequestedImage]:
    """The requested image of each deliverable of a task. TaskFileError if a text cannot be parsed."""
    source = sources().get(task.task_id)
    found = []
    for text in task.deliverables:
        edit = None if source is None else read_instruction(text, source)
        scene = read_caption(text) if source is None else None if edit is None else edit.target
        if scene is None:
            raise TaskFileError(f"{task.task_id}: {text!r} cannot be parsed: describe figures and a background")
        found.append(RequestedImage(scene, edit))
    return found


def truth(task: Task) -> list[Scene]:
    """The requested scene of each deliverable of a task."""
    return [each.scene for each in requested(task)]


def points_met(task: Task, images: Sequence[DetectedScene]) -> list[bool | None]:
    """For each evaluation point, whether any of the images meets it; None if undetermined.

    TaskFileError if a point cannot be parsed.
    """
    met = []
    for text in task.evaluation_points:
        point = read_point(text)
        if point is None:
            raise TaskFileError(f"{task.task_id}: the evaluation point {text!r} cannot be parsed")
        each = [holds(point, seen) for seen in images]
        met.append(True if True in each else None if None in each else False)
    return met


@cache
def sources() -> dict[str, Scene]:
    """Task id -> scene of its source image."""
    return {task_id: scene_from(scene) for task_id, scene in strictjson.loads(SOURCES.read_text("utf-8")).items()}
