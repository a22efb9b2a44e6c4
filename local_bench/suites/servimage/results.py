"""ServImage's published result files: human decisions, the tasks' prices, the judge's scores; one JSON object per
line.

Annotations are read in both published forms: one line per model and task with `annotations: {"subtask_1": true, …}`,
as in the benchmark's README; one line per image with `subtask_name` and `label` 0 or 1, as in its published results.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from local_bench.core import strictjson
from local_bench.core.errors import ResultFileError, short
from local_bench.suites.servimage.tasks import is_published, published_tasks

SCORES = ("brf", "veq", "cns")
HIGHEST = 5
MAX_DELIVERABLES = 1000
_SUBTASK = re.compile(r"subtask_([1-9][0-9]{0,3})")


@dataclass(frozen=True)
class PaidTask:
    """The properties of a task that settlement needs."""

    task_id: str
    category: str
    price_usd: Decimal
    deliverables: int


@dataclass(frozen=True)
class Image:
    """One annotated image; `accepted` is None if the annotator did not decide."""

    model: str
    task_id: str
    deliverable: int
    """From 1."""
    accepted: bool | None
    where: str
    """File and line."""


@dataclass(frozen=True)
class Scores:
    """The judge's scores of one image, from 0 to 5; None if not applicable."""

    model: str
    task_id: str
    deliverable: int
    values: tuple[Decimal | None, ...]
    """In the order of `SCORES`."""
    where: str

    @property
    def total(self) -> Decimal:
        """The summed ServImageScore; scores that do not apply count as 0."""
        return sum((value for value in self.values if value is not None), Decimal(0))

    @property
    def lowest(self) -> Decimal | None:
        """The lowest applicable score; None if none applies."""
        return min((value for value in self.values if value is not None), default=None)


def read_paid_tasks(path: Path) -> list[PaidTask]:
    """Read the tasks of a tasks file. `deliverables` is their number, or the list of them as in our own task files.
    The authors' folder ServImage_Bench, or one of its JSON files, is read in its own format."""
    if is_published(path):
        return [
            PaidTask(
                task.task_id,
                task.task_category,
                Decimal(task.original_task_data.price_usd),
                len(task.hard_rules.deliverables),
            )
            for task, _, _ in published_tasks(path)
        ]
    tasks: dict[str, PaidTask] = {}
    for where, data in _lines([path], "a task"):
        task = PaidTask(
            _text(data, "task_id", where),
            _text(data, "category", where),
            _amount(data, "price_usd", where, 10**9),
            _how_many(data.get("deliverables"), where),
        )
        if task.task_id in tasks:
            raise ResultFileError(f"{where}: duplicate task {task.task_id!r}: keep one")
        tasks[task.task_id] = task
    if not tasks:
        raise ResultFileError(f"{path} contains no tasks: give a file with one JSON object per line")
    return list(tasks.values())


@dataclass(frozen=True)
class Annotations:
    """The contents of annotation files, in their order."""

    images: list[Image]
    models: list[str]
    """Every model in the files, including those that delivered no image."""


def read_annotations(paths: Sequence[Path]) -> Annotations:
    """The images of one or several annotation files."""
    images: list[Image] = []
    models: dict[str, None] = {}
    seen: dict[tuple[str, str, int], str] = {}
    for where, data in _lines(paths, "an annotation"):
        models[_text(data, "model", where)] = None
        for image in _images(data, where):
            _once(seen, (image.model, image.task_id, image.deliverable), where)
            images.append(image)
    if not models:
        raise ResultFileError(f"{', '.join(map(str, paths))} contains no annotations: give one JSON object per line")
    return Annotations(images, list(models))


def read_scores(path: Path) -> list[Scores]:
    """Read the scores file: one line per image."""
    rows: list[Scores] = []
    seen: dict[tuple[str, str, int], str] = {}
    for where, data in _lines([path], "an image's scores"):
        key = (_text(data, "model", where), _text(data, "task_id", where), _number(data.get("deliverable"), where))
        _once(seen, key, where)
        values = tuple(None if data.get(name) is None else _amount(data, name, where, HIGHEST) for name in SCORES)
        lacking = next((name for name in SCORES if name not in data), None)
        if lacking is not None:
            raise ResultFileError(f"{where}: {lacking!r} is missing: write null for what does not apply")
        rows.append(Scores(*key, values, where))
    return rows


def check_images(images: Sequence[Image | Scores], tasks: Sequence[PaidTask]) -> None:
    """ResultFileError for the first row that belongs to no task, or to an image that its task does not request."""
    n_deliverables = {task.task_id: task.deliverables for task in tasks}
    for image in images:
        if image.task_id not in n_deliverables:
            raise ResultFileError(f"{image.where}: the tasks file has no task {image.task_id!r}")
        if image.deliverable > n_deliverables[image.task_id]:
            number = n_deliverables[image.task_id]
            what = f"image {image.deliverable} of {image.task_id!r}, which requests {number}"
            raise ResultFileError(f"{image.where}: this is {what}: remove the row or correct the task")


def _lines(paths: Sequence[Path], what: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in paths:
        remedy = "give the benchmark's file"
        for _, where, data in strictjson.objects(
            path, ResultFileError, what, missing=remedy, unreadable=remedy, parse_float=Decimal
        ):
            yield where, data


def _images(data: dict[str, Any], where: str) -> Iterator[Image]:
    model, task_id = _text(data, "model", where), _text(data, "task_id", where)
    if "subtask_name" in data:
        label = data.get("label")
        if label is not None and (isinstance(label, Decimal | str) or label not in (0, 1)):
            raise ResultFileError(f"{where}: label must be 0, 1 or null, not {short(label)}")
        decided = None if label is None else bool(label)
        yield Image(model, task_id, _number(data["subtask_name"], where), decided, where)
        return
    decisions = data.get("annotations")
    if not isinstance(decisions, dict):
        raise ResultFileError(f"{where}: annotations must be an object with subtask_1, subtask_2 …: add it")
    for name, accepted in decisions.items():
        if accepted is not None and not isinstance(accepted, bool):
            raise ResultFileError(f"{where}: {name} must be true, false or null, not {short(accepted)}")
        yield Image(model, task_id, _number(name, where), accepted, where)


def _once(seen: dict[tuple[str, str, int], str], key: tuple[str, str, int], where: str) -> None:
    if key in seen:
        model, task_id, deliverable = key
        what = f"image {deliverable} of {task_id!r} by {model!r}"
        raise ResultFileError(f"{where}: duplicate {what}, first in {seen[key]}: keep one")
    seen[key] = where


def _text(data: dict[str, Any], name: str, where: str) -> str:
    value = data.get(name)
    if not isinstance(value, str) or not value:
        raise ResultFileError(f"{where}: {name} must be a non-empty string, not {short(value)}")
    return value


def _amount(data: dict[str, Any], name: str, where: str, most: int) -> Decimal:
    value = data.get(name)
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ResultFileError(f"{where}: {name} must be a number, not {short(value)}")
    amount = Decimal(value)
    if not amount.is_finite() or not 0 <= amount <= most or _places(amount) > 30:
        raise ResultFileError(f"{where}: {name} must be between 0 and {most:,}, with at most 30 decimals, not {value}")
    return amount


def _places(amount: Decimal) -> int:
    exponent = amount.as_tuple().exponent
    return -exponent if isinstance(exponent, int) else 0


def _how_many(value: Any, where: str) -> int:
    number = len(value) if isinstance(value, list) else value
    if isinstance(number, Decimal) and number == number.to_integral_value():
        number = int(number)
    if isinstance(number, bool) or not isinstance(number, int) or not 1 <= number <= MAX_DELIVERABLES:
        raise ResultFileError(
            f"{where}: deliverables must be the number of requested images, 1 to {MAX_DELIVERABLES}, not {short(value)}"
        )
    return number


def _number(value: Any, where: str) -> int:
    """The index of an image in its task: 1, 2 … or "subtask_1", "subtask_2" …"""
    if isinstance(value, str):
        named = _SUBTASK.fullmatch(value)
        value = int(named[1]) if named else value
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= MAX_DELIVERABLES:
        raise ResultFileError(
            f"{where}: {short(value)} is not an image of a task: expected subtask_1, subtask_2 and so on"
        )
    return value
