"""Reads IDEA-Bench's case folders: instruction.txt, meta.json, the input images and the six questions.

The questions are those for a judge (auto_eval.jsonl, in the mini subset), whose text includes the criteria for 0 and 1
point, or those for human raters (eval.json), whose 0-point and 1-point standards are appended to the question's text.
A case with both has those for a judge as evaluation points, and those for human raters in its own data.
Categories are derived from meta.json; task_split.json is not read.
"""

import re
from pathlib import Path
from typing import Any

from pydantic import Field

from local_bench.core import strictjson
from local_bench.core.errors import TaskFileError, UserError, short
from local_bench.core.files import IMAGE_SUFFIXES, is_safe_id, read_text, safe_join, text_name
from local_bench.core.images import load_image
from local_bench.core.types import Task
from local_bench.core.yamlfile import check
from local_bench.suites.idea_bench.results import QUESTIONS
from local_bench.suites.task_files import KeepImage, Loose, Refuse, Text, omit, read_json

COUNT_CARD = "Is the number in the image the digit"
"""Text in questions that are answered from an image of the number of outputs."""
_STANDARD = re.compile(
    r"(?:score[ _-]?)?([01])(?:[ _-]?points?)?(?:[ _-]?(?:standards?|criteri(?:on|a)))?", re.IGNORECASE
)
"""A key of a question in eval.json whose value says what scores 0 or 1, such as `0_point_standard`."""
FOR_PEOPLE = "questions_for_people"
"""Key of `Task.own`: the questions of eval.json, if the judge's are those of auto_eval.jsonl."""
MAX_OUTPUTS = 100


class Meta(Loose):
    """meta.json; other keys are ignored."""

    task_name: str
    uid: str = Field(pattern=r"^[0-9]{4}$")
    case_id: str = Field(pattern=r"^[0-9]{4}$")
    image_reference: bool
    multi_image_reference: bool
    multi_image_output: bool
    output_image_count: int = Field(1, ge=1, le=MAX_OUTPUTS)

    @property
    def category(self) -> str:
        code = "I(s)" if self.multi_image_output else "Is" if self.multi_image_reference else "I"
        some = self.image_reference or self.multi_image_reference
        return f"{code if some else 'T'}2I{'s' * self.multi_image_output}"


class AutoEval(Loose):
    """A line of auto_eval.jsonl: the images of a collage, and the question about it."""

    input_images: list[str] = Field(default=[], max_length=100)
    output_images: list[str] = Field(default=[], max_length=MAX_OUTPUTS)
    question: Text


def read_tasks(path: Path, keep: KeepImage, refuse: Refuse | None = None) -> list[Task]:
    """Read one task per case, in order of the folders' names.

    A case that cannot be read is omitted, and `refuse` is called with a sentence: the file, the case and the reason.
    Without `refuse` the first such case raises TaskFileError, or ImageError for an unreadable image. TaskFileError if
    no case can be read.
    """
    if not path.is_dir():
        raise TaskFileError(f"{path} is not a folder: set suite.path to IDEA-Bench's dataset folder")
    tasks: dict[str, Task] = {}
    first: str | None = None
    n_refused = 0
    for file in sorted(path.rglob("meta.json")):
        try:
            task = _task(file.parent, keep)
            if task.task_id in tasks:
                raise TaskFileError(f"{file}: duplicate case {task.task_id!r}: keep one of its folders")
        except UserError as e:
            omit(path, f"case {file.parent.name}", e, refuse)
            first = first or str(e)
            n_refused += 1
            continue
        tasks[task.task_id] = task
    if not tasks and first is not None:
        raise TaskFileError(f"{path}: none of the {n_refused} cases can be read; the first: {first}")
    if not tasks:
        raise TaskFileError(
            f"{path} contains no case (a folder with meta.json): set suite.path to IDEA-Bench's dataset"
        )
    return list(tasks.values())


def read_categories(path: Path, refuse: Refuse) -> dict[str, str]:
    """uid -> category, from every meta.json below the folder; `refuse` is called for one that cannot be read, as by
    `read_tasks`. TaskFileError for a folder without any, and for a uid with two categories."""
    if not path.is_dir():
        raise TaskFileError(f"{path} is not a folder: give IDEA-Bench's dataset folder")
    category_of: dict[str, str] = {}
    for file in sorted(path.rglob("meta.json")):
        try:
            data, _ = read_json(file, "case's meta.json", TaskFileError, dict)
            meta = check(data, Meta, str(file), error=TaskFileError)
        except TaskFileError as e:
            refuse(f"case {file.parent.name} is omitted: {e}")
            continue
        if category_of.setdefault(meta.uid, meta.category) != meta.category:
            raise TaskFileError(
                f"{file}: task {meta.uid} has the category {meta.category}, but {category_of[meta.uid]} in "
                "another case: correct one of them"
            )
    if not category_of:
        raise TaskFileError(f"{path} contains no meta.json: give IDEA-Bench's dataset folder")
    return category_of


def _task(folder: Path, keep: KeepImage) -> Task:
    for file in folder.iterdir():
        safe_join(folder, file.name)  # a link out of the case is refused
    data, _ = read_json(folder / "meta.json", "case's meta.json", TaskFileError, dict)
    meta = check(data, Meta, str(folder / "meta.json"), error=TaskFileError)
    images = {
        file.name: keep(load_image(file))
        for file in sorted(folder.iterdir())
        if file.suffix.lower() in IMAGE_SUFFIXES and file.stem.isdecimal()
    }
    absent = []
    if meta.image_reference and not images:
        absent.append("picture that its brief goes with")
    questions, kind = _questions(folder, meta, images)
    for entry in questions:
        absent += [name for name in entry["given"] if name not in images]
        entry["given"] = [images[name] for name in entry["given"] if name in images]
    people, note = _questions_for_people(folder) if kind == "auto_eval" else ([], None)
    name = folder.name if is_safe_id(folder.name) else f"{meta.uid}_{meta.case_id}"
    return Task(
        task_id=name,
        category=meta.category,
        price_micro_usd=0,
        title=meta.task_name,
        brief=_text(folder / "instruction.txt"),
        deliverables=tuple(f"Image {i} of {meta.output_image_count}" for i in range(1, meta.output_image_count + 1)),
        evaluation_points=tuple(entry["question"] for entry in questions),
        reference_sha256=tuple(images.values()),
        unscored=f"Of the case {folder.name} this is not there: {', '.join(dict.fromkeys(absent))}."
        if absent
        else None,
        notes=() if note is None else (note,),
        own={
            "uid": meta.uid,
            "case_id": meta.case_id,
            "case_dir": text_name(folder.name),
            "sheets": [{key: entry[key] for key in ("given", "outputs", "card")} for entry in questions],
            "parts": [meta.task_name, meta.uid, *(["mini"] if kind == "auto_eval" else [])],
            **({FOR_PEOPLE: people} if people else {}),
        },
    )


def _questions(folder: Path, meta: Meta, images: dict[str, str]) -> tuple[list[dict[str, Any]], str]:
    file = folder / "auto_eval.jsonl"
    if file.exists():
        questions = []
        for _, where, data in strictjson.objects(file, TaskFileError, "a question", missing=""):
            line = check(data, AutoEval, where, error=TaskFileError)
            card = COUNT_CARD in line.question
            outputs = [_number(name, where) for name in line.output_images]
            questions.append({"question": line.question, "given": line.input_images, "outputs": outputs, "card": card})
        kind = "auto_eval"
    else:
        file, kind = folder / "eval.json", "eval"
        outputs = list(range(1, meta.output_image_count + 1))
        questions = [
            {"question": text, "given": list(images), "outputs": outputs, "card": False} for text in _for_people(file)
        ]
    if len(questions) != QUESTIONS:
        raise TaskFileError(f"{file} has {len(questions)} questions instead of {QUESTIONS}: restore the published file")
    return questions, kind


def _questions_for_people(folder: Path) -> tuple[list[str], str | None]:
    """(the questions of the eval.json next to an auto_eval.jsonl, a note if it cannot be used). They are optional: only
    annotators answer them."""
    file = folder / "eval.json"
    if not file.exists():
        return [], None
    try:
        texts = _for_people(file)
        reason = "" if len(texts) == QUESTIONS else f"{file} has {len(texts)} questions instead of {QUESTIONS}"
    except TaskFileError as e:
        texts, reason = [], str(e)
    if not reason:
        return texts, None
    return [], f"Annotators answer the questions of auto_eval.jsonl: {reason.replace(str(file), file.name)}."


def _for_people(file: Path) -> list[str]:
    """The questions of an eval.json: texts, or objects with a `question` and its standards, in a list that may be a
    value of an object."""
    data = read_json(file, "case's eval.json", TaskFileError)[0]
    if isinstance(data, dict):
        data = next((value for value in data.values() if isinstance(value, list)), list(data.values()))
    entries = data if isinstance(data, list) else [data]
    texts = [_with_standards(entry, file) if isinstance(entry, dict) else entry for entry in entries]
    bad = next((text for text in texts if not isinstance(text, str) or not text), None)
    if bad is not None or not texts:
        raise TaskFileError(f"{file}: a question must be a string, not {short(bad)}: restore the published file")
    return [text for text in texts if isinstance(text, str)]


def _with_standards(entry: dict[str, Any], file: Path) -> Any:
    """The question, followed by the standards for 0 points and 1 point if the entry has them. TaskFileError for a
    standard that is not a text, or if only one is given."""
    question = entry.get("question")
    standards = {match[1]: entry[key] for key in entry if (match := _STANDARD.fullmatch(key))}
    if not standards or not isinstance(question, str) or not question:
        return question
    if set(standards) != {"0", "1"} or not all(isinstance(text, str) and text.strip() for text in standards.values()):
        raise TaskFileError(
            f"{file}: {question!r} needs a text for both 0 points and 1 point: restore the published file"
        )
    return f"{question}\n0 points: {standards['0'].strip()}\n1 point: {standards['1'].strip()}"


def _number(name: str, where: str) -> int:
    number = strictjson.natural(Path(name).stem)
    if number is None or not 1 <= number <= MAX_OUTPUTS:
        raise TaskFileError(
            f"{where}: {short(name)} is not the name of an output: expected 0001.jpg, 0002.jpg and so on"
        )
    return number


def _text(file: Path) -> str:
    try:
        safe_join(file.parent, file.name)
    except UserError as e:
        raise TaskFileError(f"{file} cannot be read ({e}): restore the published file") from None
    text = read_text(file, TaskFileError, missing="restore the published file").strip()
    if not text:
        raise TaskFileError(f"{file} is empty: restore the published file")
    return text
