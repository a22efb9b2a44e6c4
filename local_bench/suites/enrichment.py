"""What a judge or a person wrote about tasks before the run: points, checklists, prompts, hard rules; a task a line.

`local-bench extract` writes such a file and `suite.written` names it. It is part of what the run is: the same file
gives the same tasks, whoever wrote it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field, ValidationError

from local_bench.core import strictjson
from local_bench.core.errors import TaskFileError
from local_bench.core.hardrules import HardRules
from local_bench.core.types import Task
from local_bench.core.yamlfile import Strict, explain

_Lines = Annotated[list[Annotated[str, Field(min_length=1, max_length=20_000)]], Field(max_length=200)]
FIELDS = {
    "evaluation_points": ("points",),
    "hype_checklist": ("changes", "preservations"),
    "rephrase": ("prompts",),
    "deliverables": ("rules",),
}
"""Which of a line's fields a rubric fills."""


class WrittenLine(Strict):
    """One task; what is left out is as it was."""

    task_id: str
    points: _Lines = Field(default=[])
    """The order's evaluation points."""
    changes: _Lines = Field(default=[])
    """What an edit must do."""
    preservations: _Lines = Field(default=[])
    """What an edit must leave."""
    prompts: _Lines = Field(default=[])
    """One an image, for models that take words alone."""
    rules: list[HardRules] = Field(default=[], max_length=100)
    """The hard rules of each image, in the order's own order; `{}` for an image without any."""
    judge: str | None = None
    """Who wrote it."""


def read_written(path: Path) -> dict[str, WrittenLine]:
    """The lines by task. TaskFileError names file, line and reason."""
    found: dict[str, WrittenLine] = {}
    way_out = "set suite.written to a file that `local-bench extract` wrote"
    for _, where, data in strictjson.objects(path, TaskFileError, "a line", missing=way_out, unreadable=way_out):
        try:
            line = WrittenLine.model_validate(data)
        except ValidationError as e:
            raise TaskFileError(explain(e, WrittenLine, where, {})) from None
        if line.task_id in found:
            raise TaskFileError(f"{where}: the task {line.task_id!r} stands there twice: keep one line")
        found[line.task_id] = line
    return found


def with_written(tasks: Sequence[Task], path: Path) -> list[Task]:
    """The tasks with what the file says of them. TaskFileError for a task that there is not, and where prompts are not
    as many as images."""
    found = read_written(path)
    stray = next((task_id for task_id in found if task_id not in {task.task_id for task in tasks}), None)
    if stray is not None:
        raise TaskFileError(f"{path}: the suite has no task {stray!r}: take the line out")
    return [_with(task, found[task.task_id], path) if task.task_id in found else task for task in tasks]


def _with(task: Task, line: WrittenLine, path: Path) -> Task:
    if line.prompts and len(line.prompts) != len(task.deliverables):
        n = len(task.deliverables)
        raise TaskFileError(f"{path}: {task.task_id!r} asks for {n} images, and there are {len(line.prompts)} prompts")
    if line.rules and len(line.rules) != len(task.deliverables):
        n = len(task.deliverables)
        raise TaskFileError(f"{path}: {task.task_id!r} asks for {n} images, and there are rules for {len(line.rules)}")
    rules = tuple(of.model_dump(exclude_defaults=True) for of in line.rules)
    own = {name: getattr(line, name) for name in ("changes", "preservations", "prompts") if getattr(line, name)}
    return replace(
        task,
        evaluation_points=tuple(line.points) or task.evaluation_points,
        rules=rules if any(rules) else task.rules,
        own=task.own | own,
    )
