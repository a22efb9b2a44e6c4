"""Enrichment before a run: the judge generates what the suite needs and its files lack (points, checklists,
prompts)."""

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from PIL import Image

from local_bench.core.environment import isolate
from local_bench.core.errors import ConfigError
from local_bench.core.images import pixel_digest
from local_bench.core.storage import check_output, write_atomic
from local_bench.core.types import Question, Verdict
from local_bench.judges.vlm.protocols import deliverables, lines
from local_bench.runs.config import RunConfig
from local_bench.runs.judge import SaveInterval, judge_answers
from local_bench.runs.judge_factory import judge_spec
from local_bench.runs.plan import in_shard
from local_bench.runs.progress import Progress
from local_bench.suites.base import Suite
from local_bench.suites.enrichment import FIELDS, read_written
from local_bench.suites.registry import suite


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
    n_images: dict[str, int] = {}
    n_existing = 0
    for task in tasks:
        question = None if task.unscored else question_of(task)
        if question is None:
            continue
        if any(getattr(existing.get(task.task_id), name, None) for name in FIELDS[question.rubric]):
            n_existing += 1
        else:
            questions[task.task_id] = question
            n_images[task.task_id] = len(task.deliverables)
    result = EnrichmentResult(n_existing=n_existing)
    rows = {task_id: line.model_dump(exclude_unset=True) for task_id, line in existing.items()}
    pace, save = SaveInterval(), partial(_save, out, {task.task_id: i for i, task in enumerate(tasks)}, rows)
    try:
        for task_id, verdict in _answers(config, questions, images, out, progress):
            fields = _read(questions[task_id], verdict, n_images[task_id])
            if isinstance(fields, str):
                result.refused[task_id] = fields
                continue
            rows[task_id] = (
                {"task_id": task_id} | rows.get(task_id, {}) | fields | {"judge": config.required_judge.label}
            )
            result.n += 1
            if pace.due:
                with pace.saving():
                    save()
    finally:  # answers received so far are kept if the judge fails
        save()
    return result


def _save(out: Path, order: dict[str, int], rows: dict[str, dict[str, Any]]) -> None:
    """Write the lines in the order of the tasks, then those of other tasks."""
    sorted_rows = sorted(rows.values(), key=lambda row: order.get(row["task_id"], len(order)))
    write_atomic(out, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in sorted_rows).encode())


def _answers(
    config: RunConfig, questions: dict[str, Question], images: dict[str, Image.Image], out: Path, progress: Progress
) -> Iterator[tuple[str, Verdict]]:
    if not questions:
        return
    isolate()
    from local_bench.generators.numerics import set_determinism
    from local_bench.runs.executors.local import local_judge_devices

    set_determinism(config.engine.threads)
    judge_devices = local_judge_devices(config.engine)
    spec = judge_spec(config.required_judge, judge_devices[0])
    log = out.with_name(f"{out.name}.log")
    yield from judge_answers(
        config.required_judge, spec, judge_devices, questions, images.__getitem__, log, progress, "write"
    )


def _read(question: Question, verdict: Verdict, n_images: int) -> dict[str, list[Any]] | str:
    """The line's fields, or why the answer cannot be used. `n_images` is the number of deliverables in the task's
    file."""
    if question.rubric == "deliverables":
        parsed = deliverables(verdict)
        if isinstance(parsed, str):
            return parsed
        if len(parsed.rules) != n_images:
            return f"the judge finds {len(parsed.rules)} images in the brief, but the task has {n_images}"
        return {"rules": [rules.model_dump(exclude_defaults=True) for rules in parsed.rules]}
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
