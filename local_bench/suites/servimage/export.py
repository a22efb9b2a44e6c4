"""Exports a run as ServImage annotations, one file per model, with the other files that `score servimage` reads.

The decisions are the run's own: `true`, `false`, and null if undecided; an image that was not generated, or
that an annotator was not shown, is omitted.
`tasks.jsonl` has the tasks' prices, `scores.jsonl` the judge's scores of every image for which all applicable scores
exist, `costs.json` the cost per image.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

from local_bench.core.money import MICRO
from local_bench.suites.published import Published
from local_bench.suites.run_results import ImageResult, RunResults, write_text
from local_bench.suites.servimage import published as numbers
from local_bench.suites.servimage.results import SCORES, Image, PaidTask, Scores

OPTIONS = {"tasks": "tasks.jsonl", "scores": "scores.jsonl", "costs": "costs.json"}


@dataclass(frozen=True)
class Parts:
    """The results of a run's first attempts, in the form of the benchmark's files."""

    images: list[Image]
    tasks: list[PaidTask]
    scores: list[Scores]
    costs: Mapping[str, Decimal]
    """US dollars per image by model, if known."""
    models: list[str]


def parts(results: RunResults) -> Parts:
    rows = [row for row in results.images if row.attempt == 1]
    images = [Image(r.model, r.task.task_id, r.deliverable, r.accepted, "the ledger") for r in rows if r.pixels_sha256]
    return Parts(images, _paid_tasks(rows), _scores(rows), results.usd_per_image, results.models)


def published(results: RunResults) -> dict[str, Published]:
    """The numbers of all models, computed from the ledger, with the cost per image if it is known."""
    files = parts(results)
    return {"all": numbers.published(files.images, files.tasks, files.scores, files.costs or None, models=files.models)}


def notes(results: RunResults) -> list[str]:
    """The sets that are judged without all of their images, one sentence per model."""
    rows = [row for row in results.images if row.attempt == 1]
    sentences = []
    for model in results.models:
        sets: dict[str, list[bool]] = {}
        for row in (row for row in rows if row.model == model):
            sets.setdefault(row.task.task_id, []).append(row.pixels_sha256 is not None)
        if n := sum(any(has_image) and not all(has_image) for has_image in sets.values()):
            them = "1 set is" if n == 1 else f"{n} sets are"
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
    _write_lines(
        out,
        "tasks.jsonl",
        [
            f'{{"task_id": {json.dumps(t.task_id)}, "category": {json.dumps(t.category, ensure_ascii=False)}, '
            f'"price_usd": {t.price_usd:f}, "deliverables": {t.deliverables}}}'
            for t in _paid_tasks(rows)
        ],
    )
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
    return write_text(out, name, "".join(f"{text}\n" for text in texts))


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
