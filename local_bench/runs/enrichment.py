"""Enrichment before a run: the judge generates what the suite needs and its files lack (points, checklists,
prompts)."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from local_bench.core.errors import ConfigError
from local_bench.core.files import check_output, write_atomic
from local_bench.core.images import pixel_digest
from local_bench.core.types import Question, Verdict
from local_bench.judges.vlm.protocols import deliverables, lines
from local_bench.runs.config import RunConfig
from local_bench.runs.judge import SaveInterval, judge_answers
from local_bench.runs.judge_factory import judge_spec, local_judge_devices
from local_bench.runs.plan import in_shard
from local_bench.runs.progress import Progress
from local_bench.suites.base import Suite
from local_bench.suites.registry import suite
from local_bench.suites.task_files import FIELDS, read_written


@dataclass
class EnrichmentResult:
    """The outcome of an enrichment."""

    n: int = 0
    n_existing: int = 0
    """Tasks that the file already had."""
    refused: dict[str, str] = field(default_factory=dict)
    """Task id -> why nothing was generated for it."""


def write_enrichment(
    config: RunConfig,
    out: Path,
    progress: Progress,
    what: Literal["enrichment_question", "rules_question"] = "enrichment_question",
) -> EnrichmentResult:
    """Query the config's judge for every task that lacks data, and add its answers to the task's line in `out`.

    `what` is the name of the suite's method that returns the question about a task, or None if nothing is missing.
    Lines already in `out` are kept. A task whose answer cannot be used is left out, with the reason. ConfigError for a
    suite that needs no enrichment; ServerError if the judge is unavailable.
    """
    check_output(out)
    entry = suite(config.suite.name)
    question_of = getattr(entry, what)
    if getattr(type(entry), what) is getattr(Suite, what):
        raise ConfigError(f"suite.name: the files of {entry.name!r} need no enrichment: remove the command")
    images: dict[str, Image.Image] = {}

    def keep(image: Image.Image) -> str:
        sha256 = pixel_digest(image)
        images[sha256] = image
        return sha256

    settings = config.suite
    every = entry.tasks(settings.path, keep, settings.part, settings.written, progress.note)[: settings.limit]
    tasks = [task for task in every if in_shard(task.task_id, settings.shard)]
    existing = read_written(out) if out.exists() else {}
    questions: dict[str, Question] = {}
    n_existing = 0
    for task in tasks:
        question = None if task.unscored else question_of(task)
        if question is None:
            continue
        if any(getattr(existing.get(task.task_id), name, None) for name in FIELDS[question.rubric]):
            n_existing += 1
        else:
            questions[task.task_id] = question
    result = EnrichmentResult(n_existing=n_existing)
    rows = {task_id: line.model_dump(exclude_unset=True) for task_id, line in existing.items()}
    positions = {task.task_id: i for i, task in enumerate(tasks)}
    n_images = {task.task_id: len(task.deliverables) for task in tasks}

    def save() -> None:
        """Write the lines in the order of the tasks, then those of other tasks."""
        ordered = sorted(rows.values(), key=lambda row: positions.get(row["task_id"], len(positions)))
        write_atomic(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in ordered).encode())

    pace = SaveInterval()
    try:
        if questions:
            devices, log = local_judge_devices(config.engine), out.with_name(f"{out.name}.log")
            judge, spec = config.required_judge, judge_spec(config.required_judge, devices[0])
            answers = judge_answers(judge, spec, devices, questions, images.__getitem__, log, progress, "write")
            for task_id, verdict in answers:
                fields = _read(questions[task_id], verdict, n_images[task_id])
                if isinstance(fields, str):
                    result.refused[task_id] = fields
                    continue
                rows[task_id] = {"task_id": task_id} | rows.get(task_id, {}) | fields | {"judge": judge.label}
                result.n += 1
                pace.save(save)
    finally:  # answers received so far are kept if the judge fails
        save()
    return result


def _read(question: Question, verdict: Verdict, n_images: int) -> dict[str, list[Any]] | str:
    """The line's fields, or why the answer cannot be used. `n_images` is the number of deliverables in the task's
    file."""
    if question.rubric == "deliverables":
        parsed = deliverables(verdict)
        if isinstance(parsed, str):
            return parsed
        if len(parsed) != n_images:
            return f"the judge finds {len(parsed)} images in the brief, but the task has {n_images}"
        return {"rules": [rules.model_dump(exclude_defaults=True) for rules in parsed]}
    fields: dict[str, list[str]] = {}
    for name in FIELDS[question.rubric]:
        if name == "preservations" and verdict.answer is not None and not verdict.answer[name]:
            continue  # optional
        texts = lines(verdict, name)
        if isinstance(texts, str):
            return texts
        fields[name] = list(texts)
    expected = dict(question.slots).get("count")
    if expected is not None and len(fields["prompts"]) != int(expected):
        return f"the judge wrote {len(fields['prompts'])} different prompts for {expected} images"
    return fields
