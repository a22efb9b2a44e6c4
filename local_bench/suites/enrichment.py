"""Task data extracted before the run: evaluation points, checklists, prompts and hard rules; one line per task.

`local-bench extract` writes such a file and `suite.written` names it. Its content is part of the run's identity,
regardless of who wrote it.
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

from pydantic import Field

from local_bench.core import strictjson
from local_bench.core.errors import TaskFileError
from local_bench.core.hardrules import HardRules
from local_bench.core.types import Task
from local_bench.core.yamlfile import Strict, check

_Lines = Annotated[list[Annotated[str, Field(min_length=1, max_length=20_000)]], Field(max_length=200)]
FIELDS = {
    "evaluation_points": ("points",),
    "hype_checklist": ("changes", "preservations"),
    "rephrase": ("prompts",),
    "deliverables": ("rules",),
}
"""Rubric -> the fields of a line that it fills."""


class WrittenLine(Strict):
    """The data of one task; omitted fields leave the task unchanged."""

    task_id: str
    points: _Lines = Field(default=[])
    """Evaluation points of the task."""
    changes: _Lines = Field(default=[])
    """Changes that the edit must make."""
    preservations: _Lines = Field(default=[])
    """Properties that the edit must preserve."""
    prompts: _Lines = Field(default=[])
    """One prompt per image, for models without image inputs."""
    rules: list[HardRules] = Field(default=[], max_length=100)
    """Hard rules of each image, in the order of the deliverables; `{}` for an image without rules."""
    judge: str | None = None
    """Name of the judge that generated the data."""


def read_written(path: Path) -> dict[str, WrittenLine]:
    """Read the lines by task id. TaskFileError names file, line and reason."""
    by_task: dict[str, WrittenLine] = {}
    remedy = "set suite.written to a file written by `local-bench extract`"
    for _, where, data in strictjson.objects(path, TaskFileError, "a line", missing=remedy, unreadable=remedy):
        line = check(data, WrittenLine, where, error=TaskFileError)
        if line.task_id in by_task:
            raise TaskFileError(f"{where}: duplicate task {line.task_id!r}: keep one line")
        by_task[line.task_id] = line
    return by_task


def with_written(tasks: Sequence[Task], path: Path) -> list[Task]:
    """The tasks with the data of the file. TaskFileError for an unknown task, and if the number of prompts or rules
    differs from the number of images."""
    lines = read_written(path)
    unknown = next((task_id for task_id in lines if task_id not in {task.task_id for task in tasks}), None)
    if unknown is not None:
        raise TaskFileError(f"{path}: the suite has no task {unknown!r}: remove the line")
    return [_with(task, lines[task.task_id], path) if task.task_id in lines else task for task in tasks]


def _with(task: Task, line: WrittenLine, path: Path) -> Task:
    if line.prompts and len(line.prompts) != len(task.deliverables):
        n = len(task.deliverables)
        raise TaskFileError(f"{path}: {task.task_id!r} requests {n} images, but has {len(line.prompts)} prompts")
    if line.rules and len(line.rules) != len(task.deliverables):
        n = len(task.deliverables)
        raise TaskFileError(f"{path}: {task.task_id!r} requests {n} images, but has rules for {len(line.rules)}")
    rules = tuple(rule.model_dump(exclude_defaults=True) for rule in line.rules)
    fields = {name: getattr(line, name) for name in ("changes", "preservations", "prompts") if getattr(line, name)}
    return replace(
        task,
        evaluation_points=tuple(line.points) or task.evaluation_points,
        rules=rules if any(rules) else task.rules,
        own=task.own | fields,
    )
