"""Task files: one JSON object per line, for ServImage's tasks and our own `studio` suite."""

import math
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated

from PIL import Image
from pydantic import AfterValidator, Field, model_validator

from local_bench.core import strictjson
from local_bench.core.errors import TaskFileError, UserError
from local_bench.core.files import is_safe_id, safe_join
from local_bench.core.hardrules import HardRules
from local_bench.core.images import load_image, load_mask
from local_bench.core.money import micro_usd
from local_bench.core.types import Task
from local_bench.core.yamlfile import Strict, check

KeepImage = Callable[[Image.Image], str]
"""Stores canonical pixels and returns their digest."""
Refuse = Callable[[str], None]
"""Called with a message for each task that is skipped."""


def task_id(value: str) -> str:
    """`value`, if it is a valid task id; otherwise ValueError."""
    if not is_safe_id(value):
        raise ValueError("a task id must have only letters, digits, '.', '_' and '-', and start with a letter or digit")
    return value


def _price(value: Decimal | int) -> Decimal | int:
    if not math.isfinite(value) or value < 0:
        raise ValueError("a price must be a number of US dollars, 0 or more")
    micro_usd(value)
    return value


Text = Annotated[str, Field(min_length=1, max_length=20_000)]


class TaskLine(Strict):
    """One line of a task file. Prices in US dollars; image paths relative to the file's folder."""

    task_id: Annotated[str, AfterValidator(task_id)]
    category: Annotated[str, Field(min_length=1, max_length=100)]
    price_usd: Annotated[Decimal | int, AfterValidator(_price)]
    title: Text
    brief: Text
    deliverables: list[Text] = Field(min_length=1, max_length=100)
    evaluation_points: list[Text] | None = Field(None, max_length=200)
    """Omitted, null or empty if they have not been extracted: BRF is then unscored."""
    source_image: Text | None = None
    mask_image: Text | None = None
    """White where the source image is to be changed; for models with a mask input."""
    reference_images: list[Text] = Field(default=[])
    rules: list[HardRules] = Field(default=[])
    """Hard rules of each deliverable, in their order; none if omitted."""

    @model_validator(mode="after")
    def _rules_of_each(self) -> "TaskLine":
        if self.rules and len(self.rules) != len(self.deliverables):
            raise ValueError(f"{len(self.deliverables)} deliverables, but rules for {len(self.rules)}")
        if self.mask_image is not None and self.source_image is None:
            raise ValueError("mask_image marks a part of source_image, which is missing")
        return self


def read_task_file(path: Path, keep: KeepImage) -> list[Task]:
    """Read the tasks at `path` in the file's order.

    A missing reference image is noted and otherwise ignored; a missing source image or mask makes the task unscored.
    TaskFileError names the file, the line and the reason; ImageError an existing image that cannot be read.
    """
    tasks: dict[str, Task] = {}
    first_line: dict[str, int] = {}
    for number, line in _lines(path):
        if line.task_id in tasks:
            raise TaskFileError(
                f"{path}, line {number}: duplicate task id {line.task_id!r}, "
                f"first on line {first_line[line.task_id]}: give each task its own"
            )
        first_line[line.task_id] = number
        try:
            tasks[line.task_id] = _task(line, path.parent, keep)
        except UserError as e:
            raise type(e)(f"{path}, line {number}: {e}") from e
    if not tasks:
        raise TaskFileError(f"{path} contains no tasks: give a file with one JSON object per line")
    return list(tasks.values())


def _lines(path: Path) -> Iterator[tuple[int, TaskLine]]:
    remedy = "set suite.path to the task file"
    lines = strictjson.objects(path, TaskFileError, "a task", missing=remedy, unreadable=remedy, parse_float=Decimal)
    for number, where, data in lines:
        yield number, check(data, TaskLine, where, error=TaskFileError)


def _task(line: TaskLine, folder: Path, keep: KeepImage) -> Task:
    notes = []
    references = []
    for relative in line.reference_images:
        path = safe_join(folder, relative)
        if path.exists():
            references.append(keep(load_image(path)))
        else:
            notes.append(f"The reference image {relative} is not there; the order goes on without it.")
    unscored = None
    by_role: dict[str, str] = {}
    for role, file, is_what in (
        ("mask", line.mask_image, "mask {}, which marks what the order asks to edit"),
        ("source", line.source_image, "source image {}, which the order asks to edit"),
    ):
        if file is None:
            continue
        path = safe_join(folder, file)
        if path.exists():
            by_role[role] = keep((load_mask if role == "mask" else load_image)(path))
        else:
            unscored = f"The {is_what.format(file)}, is not there."
    return Task(
        task_id=line.task_id,
        category=line.category,
        price_micro_usd=micro_usd(line.price_usd),
        title=line.title,
        brief=line.brief,
        deliverables=tuple(line.deliverables),
        evaluation_points=tuple(line.evaluation_points or ()),
        source_sha256=by_role.get("source"),
        mask_sha256=by_role.get("mask"),
        reference_sha256=tuple(references),
        rules=tuple(rules.model_dump(exclude_defaults=True) for rules in line.rules),
        notes=tuple(notes),
        unscored=unscored,
    )
