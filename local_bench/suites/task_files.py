"""Files of benchmarks with line numbers in error messages: JSON files, and one JSON object per line for ServImage's
tasks, our own `studio` suite, and the data extracted before a run.

`local-bench extract` writes evaluation points, checklists, prompts and hard rules, one line per task, and
`suite.written` names that file. Its content is part of the run's identity, regardless of who wrote it.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any

from PIL import Image
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from local_bench.core import strictjson
from local_bench.core.errors import ResultFileError, TaskFileError, UserError, count, kind
from local_bench.core.files import is_safe_id, read_text, safe_join
from local_bench.core.hardrules import HardRules
from local_bench.core.images import load_image, load_task_mask
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
        raise ValueError(
            "a task id must be of at most 128 letters, digits, '.', '_' and '-', the first a letter or digit"
        )
    return value


def _price(value: Decimal | int) -> Decimal | int:
    if not math.isfinite(value) or value < 0:
        raise ValueError("a price must be a number of US dollars, 0 or more")
    micro_usd(value)
    return value


Text = Annotated[str, Field(min_length=1, max_length=20_000)]


class Loose(BaseModel):
    """Base class of the authors' files: as `Strict`, but unknown keys are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)


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
            raise ValueError(f"{count(len(self.deliverables), 'deliverables')}, but rules for {len(self.rules)}")
        if self.mask_image is not None and self.source_image is None:
            raise ValueError("mask_image marks a part of source_image, which is missing")
        return self


def read_task_file(path: Path, keep: KeepImage) -> list[Task]:
    """Read the tasks at `path` in the file's order.

    A missing reference image is noted and otherwise ignored; a missing source image or mask makes the task unscored.
    TaskFileError names the file, the line and the reason; ImageError an existing image that cannot be read.
    """
    tasks: dict[str, Task] = {}
    first: dict[str, int] = {}
    remedy = "correct suite.path, or `tasks` in the suite's own file"
    lines = strictjson.objects(path, TaskFileError, "a task", missing=remedy, parse_float=Decimal)
    for number, where, data in lines:
        line = check(data, TaskLine, where, error=TaskFileError)
        if line.task_id in tasks:
            duplicate = f"duplicate task id {line.task_id!r}, first on line {first[line.task_id]}"
            raise TaskFileError(f"{where}: {duplicate}: give each task its own")
        first[line.task_id] = number
        try:
            tasks[line.task_id] = _task(line, path.parent, keep)
        except UserError as e:
            raise type(e)(f"{where}: {e}") from e
    if not tasks:
        raise TaskFileError(f"{path} contains no tasks: give a file with one JSON object per line")
    return list(tasks.values())


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
            by_role[role] = keep((load_task_mask if role == "mask" else load_image)(path))
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


def omit(path: Path, what: str, error: UserError, refuse: Refuse | None) -> None:
    """Call `refuse` with the reason why a task below `path` is omitted, or raise `error` without it."""
    if refuse is None:
        raise error
    reason = str(error).replace(f"{path}/", "")  # a run's provenance has no paths of this machine
    refuse(f"{what} is omitted: {reason}")


MAX_BYTES = 500_000_000


def read_json(
    path: Path, what: str, error: type[UserError] = ResultFileError, wanted: type = object
) -> tuple[Any, str]:
    """(the contents of the file, its text), with decimal numbers as Decimal. Raises `error` if it is not valid JSON, or
    not of the type `wanted` (dict or list)."""
    text = read_text(path, error, missing=f"give the {what}", max_bytes=MAX_BYTES)
    try:
        data = strictjson.loads(text, parse_float=Decimal)
    except json.JSONDecodeError as e:
        raise error(f"{path}, line {e.lineno}: invalid JSON ({e.msg}): correct the line") from None
    except (ValueError, RecursionError) as e:
        raise error(f"{path}: invalid JSON ({e}): correct the file") from None
    if not isinstance(data, wanted):
        form = "array" if wanted is list else "object"
        raise error(f"{path}: a {what} must be a JSON {form}, not {kind(data)}: give a file with one JSON {form}")
    return data, text


def line_of(text: str, keys: Sequence[str]) -> int:
    """The line (from 1) of the last of nested `keys`, as far as a text search can determine it."""
    at = 0
    for key in keys:
        forms = (f"{json.dumps(key)}", f"{json.dumps(key, ensure_ascii=False)}")
        positions = [i for i in (text.find(form, at) for form in forms) if i >= 0]
        at = min(positions, default=at)
    return text.count("\n", 0, at) + 1


def read_costs(path: Path) -> dict[str, Decimal]:
    """{model: US dollars per image}. ResultFileError names the file, the line and the reason."""
    data, text = read_json(path, "file of costs", wanted=dict)
    costs = {}
    for model, amount in data.items():
        if isinstance(amount, bool) or not isinstance(amount, int | Decimal) or not is_amount(Decimal(amount)):
            where = f"{path}, line {line_of(text, [model])}"
            raise ResultFileError(f"{where}: the cost of {model!r} in US dollars per image must be {AMOUNTS}")
        costs[model] = Decimal(amount)
    return costs


AMOUNTS = "0 or a number from 1e-30 to 1,000,000,000"


def is_amount(amount: Decimal) -> bool:
    """Whether it is one of `AMOUNTS`, whose fractions have few digits."""
    return amount.is_finite() and 0 <= amount <= 10**9 and amount.adjusted() >= -30


_Lines = Annotated[list[Text], Field(max_length=200)]
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
    for _, where, data in strictjson.objects(path, TaskFileError, "a line", missing=remedy):
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
    requested = f"{path}: {task.task_id!r} requests {count(len(task.deliverables), 'images')}"
    if line.prompts and len(line.prompts) != len(task.deliverables):
        raise TaskFileError(f"{requested}, but has {count(len(line.prompts), 'prompts')}")
    if line.rules and len(line.rules) != len(task.deliverables):
        raise TaskFileError(f"{requested}, but has rules for {len(line.rules)}")
    rules = tuple(rule.model_dump(exclude_defaults=True) for rule in line.rules)
    fields = {name: getattr(line, name) for name in ("changes", "preservations", "prompts") if getattr(line, name)}
    return replace(
        task,
        evaluation_points=tuple(line.points) or task.evaluation_points,
        rules=rules if any(rules) else task.rules,
        own=task.own | fields,
    )
