"""ServImage's published result files: human decisions, the tasks' prices, the judge's scores; one JSON object per line.
And ServImage_Dataset, its training set, with one labelled deliverable a line.

Annotations are read in both published forms: one line per model and task with `annotations: {"subtask_1": true, …}`,
as in the benchmark's README; one line per image with `subtask_name` and `label` 0 or 1, as in its published results.

A run is exported as one annotation file per model, with the other files that `score servimage` reads. The decisions are
the run's own: `true`, `false`, and null if undecided; an image that was not generated, or that an annotator was not
shown, is omitted. `tasks.jsonl` has the tasks' prices, `scores.jsonl` the judge's scores of every image for which all
applicable scores exist, `costs.json` the cost per image.

The data of ServImage_Dataset are not in the authors' public repository; their form is that of its reader
(`SerImageModel/data/dataset.py` at commit 4772db7, "unified" form): `model`, `task_id` (`portrait-001` or `task_001`),
`category`, `subtask_idx` (from 0), `label` (0 or 1), and seven scores, each a number, null or "N/A".
"""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, PlainValidator, create_model

from local_bench.core import strictjson
from local_bench.core.errors import ResultFileError, UserError, count, short
from local_bench.core.money import MICRO
from local_bench.core.types import Score
from local_bench.core.yamlfile import check
from local_bench.suites.run_results import ImageResult, RunResults, write_file
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


def read_annotations(paths: Sequence[Path]) -> tuple[list[Image], list[str], dict[str, str]]:
    """The images of one or several annotation files in their order, and every model and task (with its first file and
    line) in the files, including those without an image."""
    images: list[Image] = []
    models: dict[str, None] = {}
    tasks: dict[str, str] = {}
    seen: dict[tuple[str, str, int], str] = {}
    for where, data in _lines(paths, "an annotation"):
        models[_text(data, "model", where)] = None
        tasks.setdefault(_text(data, "task_id", where), where)
        for image in _images(data, where):
            _once(seen, (image.model, image.task_id, image.deliverable), where)
            images.append(image)
    if not images:
        files = ", ".join(map(str, paths))
        raise ResultFileError(f"{files} contains no annotations of images: give lines with `annotations` or `label`")
    return images, list(models), tasks


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


def read_parts(files: Sequence[Path], tasks_file: Path, scores_file: Path | None) -> "Parts":
    """Annotation files with their tasks and scores, without costs. ResultFileError also for a row that belongs to no
    task, or to an image that its task does not request."""
    tasks, (images, models, named) = read_paid_tasks(tasks_file), read_annotations(files)
    scores = None if scores_file is None else read_scores(scores_file)
    n_deliverables = {task.task_id: task.deliverables for task in tasks}
    rows: list[Image | Scores] = [*images, *(scores or ())]
    for task_id, where in (*named.items(), *((row.task_id, row.where) for row in scores or ())):
        if task_id not in n_deliverables:
            raise ResultFileError(f"{where}: the tasks file has no task {task_id!r}")
    for image in rows:
        if image.deliverable > n_deliverables[image.task_id]:
            number = n_deliverables[image.task_id]
            what = f"image {image.deliverable} of {image.task_id!r}, which requests {number}"
            raise ResultFileError(f"{image.where}: this is {what}: remove the row or correct the task")
    return Parts(images, tasks, scores, {}, models)


def _lines(paths: Sequence[Path], what: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for path in paths:
        remedy = "give the benchmark's file"
        for _, where, data in strictjson.objects(path, ResultFileError, what, missing=remedy, parse_float=Decimal):
            yield where, data


def _images(data: dict[str, Any], where: str) -> Iterator[Image]:
    model, task_id = _text(data, "model", where), _text(data, "task_id", where)
    if "subtask_name" in data:
        label = data.get("label")
        if label is not None and (isinstance(label, Decimal | str) or label not in (0, 1)):
            raise ResultFileError(f"{where}: label must be 0, 1 or null, not {short(label)}")
        yield Image(model, task_id, _number(data["subtask_name"], where), None if label is None else bool(label), where)
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
    exponent = amount.as_tuple().exponent  # a string for infinity and NaN
    if not isinstance(exponent, int) or not 0 <= amount <= most or exponent < -30:
        raise ResultFileError(f"{where}: {name} must be between 0 and {most:,}, with at most 30 decimals, not {value}")
    return amount


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


OPTIONS = {"tasks": "tasks.jsonl", "scores": "scores.jsonl", "costs": "costs.json"}


@dataclass(frozen=True)
class Parts:
    """Annotation files with their tasks, scores and costs, or a run's first attempts in that form."""

    images: list[Image]
    """Every image belongs to one of the tasks."""
    tasks: list[PaidTask]
    scores: list[Scores] | None
    """None: not given, which are not empty ones."""
    costs: Mapping[str, Decimal] | None
    """US dollars per image by model; None: not known."""
    models: list[str]
    """Also those that delivered nothing."""


def parts(results: RunResults) -> Parts:
    rows = [row for row in results.images if row.attempt == 1]
    images = [Image(r.model, r.task.task_id, r.deliverable, r.accepted, "the ledger") for r in rows if r.pixels_sha256]
    return Parts(images, _paid_tasks(rows), _scores(rows), results.usd_per_image or None, results.models)


def notes(results: RunResults) -> list[str]:
    """The sets that are judged without all of their images, one sentence per model."""
    rows = [row for row in results.images if row.attempt == 1]
    sentences = []
    for model in results.models:
        sets: dict[str, list[bool]] = {}
        for row in (row for row in rows if row.model == model):
            sets.setdefault(row.task.task_id, []).append(row.pixels_sha256 is not None)
        if n := sum(any(has_image) and not all(has_image) for has_image in sets.values()):
            them = count(n, "sets are")
            sentences.append(f"{model}: {them} judged by the images that were made, without those that are missing")
    return sentences


def write(results: RunResults, out: Path) -> list[Path]:
    """Write images, annotations, tasks and scores to `out`; return the annotation files."""
    rows = [row for row in results.images if row.attempt == 1]
    files = []
    for model in results.models:
        by_task: dict[str, dict[str, Any]] = {}
        for row in (row for row in rows if row.model == model):
            task = row.task
            line = {"model": model, "task_id": task.task_id, "category": task.category, "annotations": {}}
            decisions = by_task.setdefault(task.task_id, line)["annotations"]
            if row.pixels_sha256 and row.shown:
                decisions[f"subtask_{row.deliverable}"] = row.accepted
                results.write_image(row.pixels_sha256, out, f"images/{model}/{task.task_id}/{row.deliverable}.png")
        files.append(_write_lines(out, f"{model}_annotations.jsonl", list(by_task.values())))
    tasks = [
        f'{{"task_id": {json.dumps(t.task_id)}, "category": {json.dumps(t.category, ensure_ascii=False)}, '
        f'"price_usd": {t.price_usd:f}, "deliverables": {t.deliverables}}}'
        for t in _paid_tasks(rows)
    ]
    _write_lines(out, "tasks.jsonl", tasks)
    rated = [
        {"model": s.model, "task_id": s.task_id, "deliverable": s.deliverable}
        | {name: None if value is None else float(value) for name, value in zip(SCORES, s.values, strict=True)}
        for s in _scores(rows)
    ]
    _write_lines(out, "scores.jsonl", rated)
    results.write_costs(out)
    return files


def _write_lines(out: Path, name: str, lines: list[Any]) -> Path:
    texts = [line if isinstance(line, str) else json.dumps(line, ensure_ascii=False) for line in lines]
    return write_file(out, name, "".join(f"{text}\n" for text in texts))


def _paid_tasks(rows: list[ImageResult]) -> list[PaidTask]:
    tasks = {row.task.task_id: row.task for row in rows}
    n_deliverables = {row.task.task_id: 0 for row in rows}
    for row in rows:
        n_deliverables[row.task.task_id] = max(n_deliverables[row.task.task_id], row.deliverable)
    return [
        PaidTask(task.task_id, task.category, Decimal(task.price_micro_usd) / MICRO, n_deliverables[task.task_id])
        for task in tasks.values()
    ]


def _scores(rows: list[ImageResult]) -> list[Scores]:
    scored = []
    for row in rows:
        of_image = [row.scores.get(name) for name in SCORES]
        if row.pixels_sha256 and all(score is not None and score.unscored is None for score in of_image):
            values = tuple(None if s is None or s.value is None else Decimal(repr(s.value)) for s in of_image)
            scored.append(Scores(row.model, row.task.task_id, row.deliverable, values, "the ledger"))
    return scored


CONCEPTS = {
    "brf_overall_score": "brf",
    "veq_clarity": "veq_clarity",
    "veq_realism": "veq_realism",
    "veq_aesthetic": "veq_aesthetic",
    "veq_text": "veq_text",
    "cns_edit_consistency": "cns_edit",
    "cns_set_consistency": "cns_set",
}
"""The file's name of a score -> its name here."""
NOT_APPLICABLE = "N/A"
_TOP = 5
_NUMBER = re.compile(r"(?:[A-Za-z]+-|task_)(\d{1,6})")


@dataclass(frozen=True)
class Sample:
    """One deliverable."""

    model: str
    category: str
    task: str
    """`category/number`: `task_001` is in every category, and `portrait-001` is the same task as its `task_001`."""
    deliverable: int
    """From 1."""
    accepted: bool
    scores: tuple[Score, ...]
    """The seven concepts; one that is absent is unscored."""

    @property
    def key(self) -> str:
        return f"{self.model}/{self.task}/{self.deliverable}"


@dataclass
class Dataset:
    """The samples of all files, and what was left out."""

    samples: list[Sample]
    n_lines: int = 0
    n_unlabelled: int = 0
    """Lines without a decision."""
    n_duplicates: int = 0
    """Lines that repeat a deliverable with the same decision; the first counts."""
    contradictory: list[str] = field(default_factory=list)
    """Deliverables with both decisions, which are left out."""


def _concept(value: Any) -> float | str | None:
    if value is None or value == NOT_APPLICABLE:
        return NOT_APPLICABLE if value else None
    if isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value <= _TOP:
        return float(value)
    raise ValueError(f'write a number from 0 to {_TOP}, null or "{NOT_APPLICABLE}"')


_Concept = Annotated[float | str | None, PlainValidator(_concept)]


class _Line(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field(min_length=1)
    task_id: str
    category: str = Field(min_length=1)
    subtask_idx: int = Field(0, ge=0, lt=10_000)
    label: Literal[0, 1] | None = None


_fields: dict[str, Any] = dict.fromkeys(CONCEPTS, (_Concept, None))
_ScoredLine = create_model("_ScoredLine", __base__=_Line, **_fields)


def read_dataset(files: Sequence[Path]) -> Dataset:
    """Read label files. Contradictory deliverables are left out. UserError names file, line and reason, and is raised
    for files without a decision."""
    dataset = Dataset([])
    first: dict[str, Sample] = {}
    contradictory: dict[str, None] = {}
    hint = "give a JSON Lines file of ServImage_Dataset"
    for file in files:
        for _, where, data in strictjson.objects(file, UserError, "a sample", missing=hint):
            dataset.n_lines += 1
            sample = _sample(data, where)
            if sample is None:
                dataset.n_unlabelled += 1
            elif sample.key not in first:
                first[sample.key] = sample
            elif first[sample.key].accepted != sample.accepted:
                contradictory[sample.key] = None
            else:
                dataset.n_duplicates += 1
    dataset.samples = [sample for key, sample in first.items() if key not in contradictory]
    dataset.contradictory = list(contradictory)
    if not dataset.samples:
        raise UserError(f"{files[0]} has no sample with a decision (`label`): {hint}")
    return dataset


def _sample(data: dict[str, Any], where: str) -> Sample | None:
    line = check(data, _ScoredLine, where, error=UserError)
    number = _NUMBER.fullmatch(line.task_id)
    if number is None:
        raise UserError(f"{where}: the task id {line.task_id!r} is not like portrait-001 or task_001: correct it")
    if line.label is None:
        return None
    return Sample(
        model=line.model,
        category=line.category,
        task=f"{line.category}/{int(number[1])}",
        deliverable=line.subtask_idx + 1,
        accepted=line.label == 1,
        scores=tuple(_score(name, getattr(line, theirs)) for theirs, name in CONCEPTS.items()),
    )


def _score(name: str, value: float | str | None) -> Score:
    if value is None:
        return Score(name, None, "the dataset has no value")
    return Score(name, None, applies=False) if isinstance(value, str) else Score(name, value)
