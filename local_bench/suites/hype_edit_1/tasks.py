"""HYPE-EDIT-1's task files.

The files (public.json, private.json) are one JSON array with one object per edit. The images of a task are in a folder
named after its id, next to the file or below `tasks` or `images`. The benchmark hosts them on its own server, so they
are not part of the file.
"""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from local_bench.core.errors import TaskFileError, UserError, kind
from local_bench.core.files import safe_join
from local_bench.core.images import load_image
from local_bench.core.types import Task
from local_bench.core.yamlfile import Strict, check
from local_bench.suites.task_files import KeepImage, Text, line_of, read_json, task_id

_FOLDERS = ("", "tasks/", "images/")


class EditTask(Strict):
    """One entry. Ids as in the file, image names relative to the task's folder."""

    task_id: Annotated[str, AfterValidator(task_id)]
    input_images: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(min_length=1, max_length=16)
    task_type: str | list[str]
    """One or several categories of work; a list in 4 of the 50 public tasks."""
    instruction: Text
    width: int = Field(ge=1, le=100_000)
    height: int = Field(ge=1, le=100_000)

    @property
    def types(self) -> list[str]:
        return [self.task_type] if isinstance(self.task_type, str) else self.task_type


def read_tasks(path: Path, keep: KeepImage, refuse: object = None) -> list[Task]:
    """Read the tasks in the file's order; a task without one of its images is unscored with a reason.

    TaskFileError names the file, the line and the reason; ImageError an existing image that cannot be read.
    """
    entries, text = read_json(path, "file of HYPE-EDIT-1's tasks", TaskFileError, list)
    tasks: dict[str, Task] = {}
    for number, data in enumerate(entries, 1):
        given_id = data.get("task_id") if isinstance(data, dict) else None
        where = f"{path}, line {line_of(text, [given_id])}" if isinstance(given_id, str) else f"{path}, entry {number}"
        if not isinstance(data, dict):
            raise TaskFileError(f"{where}: a task must be a JSON object, not {kind(data)}: correct the entry")
        entry = check(data, EditTask, where, error=TaskFileError)
        try:
            task = _task(entry, path, keep)
        except UserError as e:
            raise type(e)(f"{where}: {e}") from e
        if task.task_id in tasks:
            raise TaskFileError(f"{where}: duplicate task id {task.task_id!r}: give each task its own")
        tasks[task.task_id] = task
    if not tasks:
        raise TaskFileError(f"{path} contains no tasks: give public.json, or a file in its format")
    return list(tasks.values())


def _task(entry: EditTask, path: Path, keep: KeepImage) -> Task:
    images, absent = [], []
    for name in entry.input_images:
        candidates = [safe_join(path.parent, f"{folder}{entry.task_id}/{name}") for folder in _FOLDERS]
        file = next((candidate for candidate in candidates if candidate.exists()), None)
        if file is None:
            absent.append(name)
        else:
            images.append(keep(load_image(file)))
    unscored = f"Its picture {absent[0]} is not at {entry.task_id}/{absent[0]} beside {path.name}." if absent else None
    return Task(
        task_id=entry.task_id,
        category="+".join(entry.types),
        price_micro_usd=0,
        title=entry.task_id,
        brief=entry.instruction,
        deliverables=("The edited picture",),
        evaluation_points=(),
        source_sha256=None if absent else images[0],
        reference_sha256=() if absent else tuple(images[1:]),
        size=(entry.width, entry.height),
        unscored=unscored,
        own={"dataset": path.stem, "parts": [path.stem, *entry.types]},
    )
