"""Reads ServImage in its authors' layout: ServImage_Bench/C-Digital/Digital.json and so on, with the images.

A task's images are inputs/task_N/1.png … (the source, then further inputs) and refs/task_N/1.jpg …, where N is the
number at the end of its id, with or without leading zeros. Only unambiguous hard rules are used: file types, aspect
ratios and orientations, resolutions, minimum sides, and dimensions with a unit. Dimensions without a unit (pixels in
some tasks, mm in others) give an aspect ratio if none is stated and there is no depth; a note of the task names those
that contradict the stated one. Our own task files (task_files.py) are read too.

A deliverable's prompt has the parts of the paper's cases (appendix C): the requested image, the task, its
requirements, all its images, its evaluation points.
"""

import re
from collections.abc import Iterator
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field, model_validator

from local_bench.core.errors import TaskFileError, UserError, kind, short
from local_bench.core.files import IMAGE_SUFFIXES, safe_join
from local_bench.core.hardrules import aspect_of, published_rules, stated_aspect, stated_size
from local_bench.core.images import load_image
from local_bench.core.money import nearest_micro_usd
from local_bench.core.types import Deliverable, Question, Task
from local_bench.core.yamlfile import check
from local_bench.suites.task_files import (
    KeepImage,
    Loose,
    Refuse,
    Text,
    line_of,
    omit,
    read_json,
    read_task_file,
    task_id,
)

_CONTRADICTION = 0.02
"""From which difference on two aspect ratios contradict each other: the published files round to three digits."""


class _Original(Loose):
    task_name_original: Text
    requirements_original: str = Field(max_length=20_000)
    """Empty in three of the published tasks, whose title is sufficient."""
    price_usd: Decimal | int = Field(ge=0, le=10**9)


class _Deliverable(Loose):
    subtask: Text
    rules: dict[str, Any] = Field(default={})


class _HardRules(Loose):
    deliverables: list[_Deliverable] = Field(min_length=1, max_length=100)


class _Point(Loose):
    point_requirement: Text

    @model_validator(mode="before")
    @classmethod
    def _damaged_key(cls, point: Any) -> Any:
        """Three points of the published Product.json have a damaged key (another character for its underscore): the
        only key besides point_id that begins with "point" is used instead."""
        if not isinstance(point, dict) or "point_requirement" in point:
            return point
        others = [key for key in point if key.startswith("point") and key != "point_id"]
        return point | {"point_requirement": point[others[0]]} if len(others) == 1 else point


class _SoftRules(Loose):
    points: list[_Point] = Field(default=[], max_length=200)


class PublishedTask(Loose):
    """One entry of Digital.json, Portrait.json or Product.json; other keys are ignored."""

    task_id: Annotated[str, AfterValidator(task_id)]
    task_category: str = Field(min_length=1, max_length=100)
    subcategory: str = ""
    original_task_data: _Original
    hard_rules: _HardRules
    soft_rules: _SoftRules = _SoftRules()


def read_tasks(path: Path, keep: KeepImage, refuse: Refuse | None = None) -> list[Task]:
    """The tasks at `path`: the authors' folder (or one of its JSON files), or a task file with one object per line.

    A published task that cannot be read, or one of whose images cannot, is omitted, and `refuse` is called with a
    sentence; without `refuse`, and in a task file, it is a TaskFileError with file, line and reason, or an
    ImageError.
    """
    if not is_published(path):
        return read_task_file(path, keep)
    tasks: list[Task] = []
    reason = ""
    for entry, file, where in published_tasks(path, refuse):
        try:
            tasks.append(_task(entry, file, where, keep))
        except UserError as e:
            omit(path, f"task {short(entry.task_id)}", e, refuse)
            reason = reason or str(e)
    if not tasks:
        raise TaskFileError(f"{path}: no task can be read; the first: {reason}")
    return tasks


def is_published(path: Path) -> bool:
    """Whether `path` is the authors' folder or one of its JSON files, and not one of our own task files."""
    return path.is_dir() or path.suffix.lower() == ".json"


def published_tasks(path: Path, refuse: Refuse | None = None) -> list[tuple[PublishedTask, Path, str]]:
    """The tasks of the authors' folder (or of one of its JSON files), each with its file and its position in it, for
    messages. Images are not read. Raises as `read_tasks`."""
    files = [path]
    if path.is_dir():
        files = sorted(path.glob("*/*.json")) or sorted(path.glob("*.json"))
        if not files:
            raise TaskFileError(f"{path} contains no C-…/….json: give ServImage_Bench, or a task file")
        for file in files:
            safe_join(path, str(file.relative_to(path)))  # a link out of the folder is refused
    by_id: dict[str, tuple[PublishedTask, Path, str]] = {}
    reason = ""
    for file in files:
        entries, text = read_json(file, "file of ServImage's tasks", TaskFileError, list)
        for number, data in enumerate(entries, 1):
            given_id = data.get("task_id") if isinstance(data, dict) else None
            where = (
                f"{file}, line {line_of(text, [given_id])}" if isinstance(given_id, str) else f"{file}, entry {number}"
            )
            try:
                if not isinstance(data, dict):
                    raise TaskFileError(f"{where}: a task must be a JSON object, not {kind(data)}: correct the entry")
                task = check(data, PublishedTask, where, error=TaskFileError)
                if task.task_id in by_id:
                    raise TaskFileError(f"{where}: duplicate task {task.task_id!r}: give each its own id")
            except TaskFileError as e:
                omit(path, f"task {short(given_id) if isinstance(given_id, str) else number}", e, refuse)
                reason = reason or str(e)
                continue
            by_id[task.task_id] = (task, file, where)
    if not by_id and reason:
        raise TaskFileError(f"{path}: no task can be read; the first: {reason}")
    if not by_id:
        raise TaskFileError(f"{path} contains no tasks: give ServImage_Bench, or a task file")
    return list(by_id.values())


def deliverables(task: Task) -> list[Deliverable]:
    """The images that a task requests, each with its prompt."""
    return [
        Deliverable(task.task_id, i, _prompt(task, i), task.input_images, task.mask_sha256)
        for i in range(1, len(task.deliverables) + 1)
    ]


def enrichment_question(task: Task) -> Question | None:
    """The question that requests the evaluation points of a task that has none."""
    slots = (("title", task.title), ("brief", task.brief))
    return None if task.evaluation_points else Question("evaluation_points", 0, (), slots)


def rules_question(task: Task) -> Question | None:
    """The question that requests the images and hard rules of a task without rules."""
    return None if task.rules else Question("deliverables", 0, (), (("title", task.title), ("brief", task.brief)))


def _prompt(task: Task, number: int) -> str:
    what, n = task.deliverables[number - 1], len(task.deliverables)
    requirements = [f"Requirements: {task.brief}"] if task.brief else []
    if n == 1:
        parts = [f"{task.title}: {what}", *requirements]
    else:
        images = "\n".join(f"{i}. {name}" for i, name in enumerate(task.deliverables, 1))
        parts = [
            f"Make image {number} of the {n} that this order asks for: {what}",
            "\n".join([f"Order: {task.title}", *requirements]),
            f"Its images:\n{images}",
        ]
    if task.evaluation_points:
        parts.append(
            "\n".join(["It must meet, as far as this image goes:", *(f"- {p}" for p in task.evaluation_points)])
        )
    return "\n\n".join(parts)


def _task(entry: PublishedTask, file: Path, where: str, keep: KeepImage) -> Task:
    try:
        inputs = [keep(load_image(p)) for p in _input_images(file.parent, "inputs", entry.task_id)]
        refs = [keep(load_image(p)) for p in _input_images(file.parent, "refs", entry.task_id)]
    except UserError as e:
        raise type(e)(f"{where}: {e}") from e
    rules = [published_rules(deliverable.rules) for deliverable in entry.hard_rules.deliverables]
    return Task(
        task_id=entry.task_id,
        category=entry.task_category,
        price_micro_usd=nearest_micro_usd(entry.original_task_data.price_usd),
        title=entry.original_task_data.task_name_original,
        brief=entry.original_task_data.requirements_original,
        deliverables=tuple(deliverable.subtask for deliverable in entry.hard_rules.deliverables),
        evaluation_points=tuple(point.point_requirement for point in entry.soft_rules.points),
        source_sha256=inputs[0] if inputs else None,
        reference_sha256=(*inputs[1:], *refs),
        rules=tuple(rules) if any(rules) else (),
        notes=tuple(_contradictions(entry.hard_rules.deliverables)),
        own={"parts": [entry.subcategory]} if entry.subcategory else {},
    )


def _input_images(root: Path, kind: str, given_id: str) -> list[Path]:
    """The images in `root/kind`/task_N, sorted by the number in their name. UserError for a link out of `root`."""
    folder = root / kind
    number = re.search(r"([0-9]+)$", given_id)
    if number is None or not folder.is_dir():
        return []
    folders = [d for d in sorted(folder.iterdir()) if d.name.removeprefix("task_").lstrip("0") == number[1].lstrip("0")]
    files_of_task = [f for d in folders[:1] if d.is_dir() for f in d.iterdir() if f.suffix.lower() in IMAGE_SUFFIXES]
    for file in files_of_task:
        safe_join(root, str(file.relative_to(root)))
    return sorted(files_of_task, key=lambda file: (int(file.stem) if file.stem.isdecimal() else 10**9, file.name))


def _contradictions(deliverables: list[_Deliverable]) -> Iterator[str]:
    """One sentence for every image whose stated aspect ratio is not that of its stated size."""
    for number, deliverable in enumerate(deliverables, 1):
        raw = deliverable.rules.get("visual_specs")
        sides = raw.get("dimensions") if isinstance(raw, dict) else None
        if not isinstance(raw, dict) or not isinstance(sides, dict) or sides.get("depth"):
            continue
        stated, size = stated_aspect(raw), stated_size(sides)
        if stated is None or size is None:
            continue
        ratio = size[0] / size[1]
        fits = (
            (ratio - 1) * (aspect_of(stated) - 1) > 0
            if stated in ("portrait", "landscape")
            else abs(aspect_of(stated) / ratio - 1) <= _CONTRADICTION
        )
        if not fits:
            rule = "both are rules" if sides.get("unit") else "the size has no unit and is not used"
            yield f"Image {number}: the aspect ratio {stated} contradicts the size {size[0]:g} x {size[1]:g}; {rule}."
