"""The orders of a small print shop (`printshop`), and what is true of the pictures that answer them.

`orders.jsonl` is an order file like any other. What is wanted is read off its own words: a deliverable is a caption, or
an instruction about the order's source picture, whose scene stands in `sources.json`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from local_bench.core import strictjson
from local_bench.core.errors import TaskFileError
from local_bench.core.types import Task
from local_bench.suites.printshop.checker import Seen
from local_bench.suites.printshop.edits import Edit, read_instruction
from local_bench.suites.printshop.points import holds, read_point
from local_bench.suites.printshop.scene import Scene, scene_from
from local_bench.suites.printshop.wording import read_caption

FOLDER = Path(__file__).parent
ORDERS = FOLDER / "orders.jsonl"
SOURCES = FOLDER / "sources.json"


@dataclass(frozen=True)
class Wanted:
    """What one deliverable is to show; for an edit, of what source."""

    scene: Scene
    edit: Edit | None = None


def wanted(task: Task) -> list[Wanted]:
    """Of each deliverable of an order, in their order. TaskFileError where its words are not the miniature's."""
    source = sources().get(task.task_id)
    found = []
    for words in task.deliverables:
        edit = None if source is None else read_instruction(words, source)
        scene = read_caption(words) if source is None else None if edit is None else edit.target
        if scene is None:
            raise TaskFileError(
                f"{task.task_id}: {words!r} is not in the miniature's words: name figures and a background"
            )
        found.append(Wanted(scene, edit))
    return found


def truth(task: Task) -> list[Scene]:
    """The scene that each deliverable of an order is to show."""
    return [each.scene for each in wanted(task)]


def points_met(task: Task, pictures: Sequence[Seen]) -> list[bool | None]:
    """Of each evaluation point, whether any of the pictures meets it; None where that could not be told.

    TaskFileError where a point's words are not the miniature's.
    """
    met = []
    for words in task.evaluation_points:
        point = read_point(words)
        if point is None:
            raise TaskFileError(f"{task.task_id}: the point {words!r} is not in the miniature's words")
        each = [holds(point, seen) for seen in pictures]
        met.append(True if True in each else None if None in each else False)
    return met


@cache
def sources() -> dict[str, Scene]:
    """The scene of each source picture, by the order it belongs to."""
    return {task_id: scene_from(scene) for task_id, scene in strictjson.loads(SOURCES.read_text("utf-8")).items()}
