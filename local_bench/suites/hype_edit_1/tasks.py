"""HYPE-EDIT-1: reference-based marketing edits, pass or fail, ten attempts each (sec. 4): its task files and questions.

The files (public.json, private.json) are one JSON array with one object per edit. The images of a task are in a folder
named after its id, next to the file or below `tasks` or `images`. The benchmark hosts them on its own server, so they
are not part of the file.

An attempt passes if every required change is made and everything else is preserved; with `judge.hype_usable` (our
addition, off by default) only if it also has no defect for which a client would return it. The judge of the benchmark's
repository derives both lists itself. This implementation gives the judge the task's checklist, written by a person or
extracted by a judge with the rubric `hype_checklist`; without one, the instruction and "everything else".
"""

from collections.abc import Iterator, Mapping
from math import prod, sqrt
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field

from local_bench.core.errors import TaskFileError, UserError, kind
from local_bench.core.files import safe_join
from local_bench.core.images import load_image
from local_bench.core.types import UNSUPPORTED, Deliverable, Question, Score, Task, Verdict
from local_bench.core.yamlfile import Strict, check
from local_bench.models.cards import Takes
from local_bench.suites.base import QuestionKey as Key
from local_bench.suites.task_files import KeepImage, line_of, read_list, task_id

_FOLDERS = ("", "tasks/", "images/")


class EditTask(Strict):
    """One entry. Ids as in the file, image names relative to the task's folder."""

    task_id: Annotated[str, AfterValidator(task_id)]
    input_images: list[Annotated[str, Field(min_length=1, max_length=200)]] = Field(min_length=1, max_length=16)
    task_type: str | list[str]
    """One or several categories of work; a list in 4 of the 50 public tasks."""
    instruction: Annotated[str, Field(min_length=1, max_length=20_000)]
    width: int = Field(ge=1, le=100_000)
    height: int = Field(ge=1, le=100_000)

    @property
    def types(self) -> list[str]:
        return [self.task_type] if isinstance(self.task_type, str) else self.task_type


def read_tasks(path: Path, keep: KeepImage, refuse: object = None) -> list[Task]:
    """Read the tasks in the file's order; a task without one of its images is unscored with a reason.

    TaskFileError names the file, the line and the reason; ImageError an existing image that cannot be read.
    """
    entries, text = read_list(path, "file of HYPE-EDIT-1's tasks", TaskFileError)
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


PASS = "pass"  # noqa: S105
RATING = "rating"
PARTS = ("changes_made", "rest_preserved", "usable")
PASSED = "passed"
"""The field of the authors' prompt, which has one verdict for both parts."""
SCORES = (PASS, RATING, *PARTS)
THRESHOLDS = {PASS: 1.0}
LENT = {PASS: "hype_pass", RATING: "hype_rating"}
PASS_FAIL = (PASS,)
"""Scores that are one judge's pass/fail decision: a panel decides them by majority, independent of `panel_word`."""
ATTEMPTS = 10
_ALL_ELSE = "Everything that the instruction does not ask to change."


def deliverables(task: Task) -> list[Deliverable]:
    """The one requested image; the generator receives the instruction verbatim."""
    return [Deliverable(task.task_id, 1, task.brief, task.input_images)]


def fitted(task: Task, takes: Takes) -> list[Deliverable] | str:
    """The deliverables, or one sentence why the model does not support the task."""
    n = len(task.input_images)
    edits = takes.pictures and not takes.condition and "source" in takes.roles
    if n > takes.pictures or not edits:
        sees = f"{takes.pictures}" if edits else "no picture to edit"
        return f"{UNSUPPORTED}the edit is of {n} picture{'s' * (n > 1)}, and the model takes {sees}"
    return deliverables(task)


def enrichment_question(task: Task) -> Question | None:
    """The question that requests the instruction as a checklist."""
    return None if "changes" in task.own else Question("hype_checklist", 0, (), (("instruction", task.brief),))


def questions(task: Task, images: Mapping[int, str], order_swap: bool = False) -> Iterator[tuple[Key, Question]]:
    """The one question about an attempt: its input images, then the result."""
    inputs = task.input_images
    slots = (
        ("instruction", task.brief),
        ("changes", _listed(task.own.get("changes") or [task.brief])),
        ("preservations", _listed(task.own.get("preservations") or [_ALL_ELSE])),
    )
    for deliverable, pixels in sorted(images.items()):
        roles = (*("source",) * len(inputs), "result")
        yield (deliverable, "hype_edit", 0, 0), Question("hype_edit", 0, (*inputs, pixels), slots, roles)


def scores(task: Task, verdicts: Mapping[Key, Verdict]) -> dict[int, list[Score]]:
    """`pass`, 1 or 0; its parts, of which `usable` applies only if the rubric has that criterion; `rating`, the product
    of the parts' probabilities if the judge gives them, used to select the best of several attempts."""
    verdict = verdicts.get((1, "hype_edit", 0, 0))
    if verdict is None or verdict.answer is None:
        reason = "the judge was not reached" if verdict is None else verdict.unscored
        return {1: [Score(name, None, reason) for name in SCORES]}
    answer = verdict.answer
    values = {name: value for name in PARTS if (value := verdict.value(name)) is not None}
    passed = Score(PASS, float(answer[PASSED] if PASSED in answer else all(answer[name] for name in values)))
    parts = [
        Score(name, values[name], spread=None if (v := verdict.variance(name)) is None else sqrt(v))
        if name in values
        else Score(name, None, applies=False)
        for name in PARTS
    ]
    return {1: [passed, Score(RATING, prod(values.values()) if values else passed.value), *parts]}


def _listed(sentences: list[str]) -> str:
    return "\n".join(f"{i}. {text}" for i, text in enumerate(sentences, 1))
