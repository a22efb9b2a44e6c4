"""Revision tasks for rejected images: an editing model changes what the judges found wrong, and nothing else.

`write_revisions` writes a task file for an ordinary run (`suite.path`); `revised_workflows` settles both runs as one
workflow: the first attempt, and one revision if it is rejected.
"""

import json
import re
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from local_bench.analysis.agreement import judge_labels
from local_bench.analysis.economics import usd_per_image
from local_bench.analysis.settlement import accounting
from local_bench.analysis.workflows import Workflow, outcome_of, workflow_results
from local_bench.core import strictjson
from local_bench.core.errors import UserError
from local_bench.core.files import write_atomic
from local_bench.core.images import png_bytes
from local_bench.core.money import split, usd_number
from local_bench.core.types import Score, Task, Verdict, digest
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import VerdictsByWork, sets, thresholds_of, verdicts_of
from local_bench.runs.store import Candidate
from local_bench.settle.attempts import MISSING, revised_once

TASKS, MANIFEST, IMAGES = "tasks.jsonl", "revisions.json", "images"
LOW = 2
"""VEQ ratings up to this value (of 5) are listed as reasons."""
_MARKS = {"veq_technical": ("clarity", "realism"), "veq_aesthetic": ("aesthetic",), "veq_text": ("text",)}
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


@dataclass
class WrittenRevisions:
    """The outcome of `write_revisions`."""

    tasks: Path
    n: int = 0
    n_accepted: int = 0
    """Accepted first attempts."""
    n_open: int = 0
    """First attempts without an image or a decision."""
    by_model: dict[str, int] = field(default_factory=dict)


def write_revisions(run: RunDir, folder: Path, models: Sequence[str] = ()) -> WrittenRevisions:
    """Write `folder`/tasks.jsonl with a task for every rejected first attempt of `models` (all if empty), its images,
    and `folder`/revisions.json with the image that each task revises.

    A task has one deliverable: its source is the rejected image, its references are the original task's input images,
    its brief lists what the judges found wrong, its points are the original task's without those that only other images
    of the set meet, and its rules and share of the price are the original task's.
    UserError for a folder that is not empty, an unknown model, or a run without decisions or evaluation points.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} exists and is not empty: give another --out")
    tasks = {task.task_id: task for task in run.store.tasks()}
    if not any(task.evaluation_points for task in tasks.values()):
        raise UserError(
            f"the tasks of {run.path} have no evaluation points, so no reasons can be given: choose another run"
        )
    rows = run.store.outcomes(attempt=1)
    available = list(dict.fromkeys(row.candidate.model for row in rows))
    absent = next((model for model in models if model not in available), None)
    if absent is not None:
        raise UserError(f"{run.path} has no model {absent!r}: use one of {', '.join(available)}")
    if all(row.accepted is None for row in rows):
        raise UserError(f"{run.path} has no decisions: run `local-bench settle {run.path}` first")
    verdicts = [verdicts_of(run.store, judge_id) for judge_id in judge_labels(run)]
    images, scores = sets(run.store.images()), run.store.scores_by_candidate()
    written = WrittenRevisions(folder / TASKS)
    lines: list[dict[str, Any]] = []
    manifest: dict[str, dict[str, Any]] = {}
    rejected: set[str] = set()
    inputs: set[str] = set()
    for row in rows:
        candidate, sha256 = row.candidate, row.candidate.pixels_sha256
        if models and candidate.model not in models:
            continue
        if row.accepted is None or sha256 is None:
            written.n_open += 1
        elif row.accepted:
            written.n_accepted += 1
        else:
            task = tasks[candidate.task_id]
            of_set = [w for w, sha in images[candidate.task_id, candidate.model, 1].values() if sha]
            of_image = scores.get(candidate.work_id, {})
            why = reasons(task, candidate.work_id, of_set, verdicts) or [_lowest_score(run, of_image)]
            name = _name(candidate, manifest)
            own = [point for point, _ in _own_points(task, candidate.work_id, of_set, verdicts)]
            lines.append(_task(name, task, candidate.deliverable, sha256, why, own))
            manifest[name] = {key: getattr(candidate, key) for key in ("model", "task_id", "deliverable", "work_id")}
            rejected.add(sha256)
            inputs |= set(task.input_images)
            written.by_model[candidate.model] = written.by_model.get(candidate.model, 0) + 1
    written.n = len(lines)
    if not lines:
        raise UserError(f"{run.path} has no rejected first attempt: there is nothing to revise")
    for sha in sorted(rejected):
        write_atomic(folder / _file(sha), png_bytes(run.image_store.load(sha)))
    for sha in sorted(inputs - rejected):
        write_atomic(folder / _file(sha), png_bytes(run.image_store.load_input(sha)))
    about = {
        "run": run.config.name,
        "run_id": digest(sorted(row.work_id for row in run.store.candidates())),
        "revisions": manifest,
    }
    write_atomic(folder / MANIFEST, json.dumps(about, indent=1, ensure_ascii=False).encode())
    write_atomic(folder / TASKS, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode())
    return written


def reasons(task: Task, work_id: str, of_set: Sequence[str], verdicts: Sequence[VerdictsByWork]) -> list[str]:
    """Reasons of a rejection, one sentence each, by the majority of the judges in `verdicts`: points met neither by the
    image nor by another image of its set (`of_set`, work ids), unwanted changes of an edit, low ratings."""
    sentences = [f"Not met: {point}" for point, met in _own_points(task, work_id, of_set, verdicts) if met is False]
    for verdict in _answered(verdicts, work_id, ("cns_edit", 0, 0)):
        evidence = (verdict.answer or {}).get("evidence")
        if isinstance(evidence, str) and evidence.strip() and (verdict.answer or {}).get("score", 5) <= LOW:
            sentences.append(f"Changed against the source: {' '.join(evidence.split())}")
    for rubric, names in _MARKS.items():
        for name in names:
            ratings = [(v.answer or {}).get(name) for v in _answered(verdicts, work_id, (rubric, 0, 0))]
            marks = [mark for mark in ratings if mark is not None]
            if marks and sum(marks) / len(marks) <= LOW:
                sentences.append(f"Its {name} is rated {sum(marks) / len(marks):g} of 5")
    return sentences


def _own_points(
    task: Task, work_id: str, of_set: Sequence[str], verdicts: Sequence[VerdictsByWork]
) -> list[tuple[str, bool | None]]:
    """The points that a revision of the image has to meet, and whether the image meets them (None: not judged): all but
    those that only other images of its set (`of_set`, work ids) meet."""
    points = []
    for k, point in enumerate(task.evaluation_points):
        met = {work: _share(verdicts, work, ("brf", k, 0), "met") for work in (*of_set, work_id)}
        of_image = met.pop(work_id)
        own = None if of_image is None else of_image > 0.5
        if own or not any(share is not None and share > 0.5 for share in met.values()):
            points.append((point, own))
    return points


def revised_workflows(run: RunDir, folder: Path, revised: RunDir) -> list[Workflow]:
    """The run's workflows by model, followed by one revision of its rejected images by every model of `revised`, a
    run of the tasks that `write_revisions` wrote to `folder`. Revisions without a decision or image are open.
    UserError if the folder does not belong to these two runs."""
    path = folder / MANIFEST
    revised_by = _read(path, run, {task.task_id: task.source_sha256 for task in revised.store.tasks()})
    money, second = accounting(run.store, run.config.settlement), accounting(revised.store, revised.config.settlement)
    workflows = workflow_results(run.store, money, always=True)
    costs, costs_after = usd_per_image(run.store, money), usd_per_image(revised.store, second)
    after: dict[tuple[str, str], dict[tuple[str, int], int]] = defaultdict(dict)
    for row in revised.store.outcomes(attempt=1):
        image = revised_by.get(row.candidate.task_id)
        if image is None:
            raise UserError(
                f"{path} has no revision {row.candidate.task_id!r} of {revised.path}: give a run of its tasks"
            )
        after[image.model, row.candidate.model][image.task_id, image.deliverable] = outcome_of(row)
    for (model, editor), outcomes in sorted(after.items()):
        rows = [row for row in run.store.outcomes(attempt=1) if row.candidate.model == model]
        keys = [(row.candidate.task_id, row.candidate.deliverable) for row in rows]
        first = np.array([outcome_of(row) for row in rows], dtype=np.int8)
        then = np.array([outcomes.get(key, MISSING) for key in keys], dtype=np.int8)
        pays = np.array([row.part_micro_usd for row in rows], dtype=np.int64)
        result = revised_once(first, then, editor)
        usd, usd_after = costs.get(model), costs_after.get(editor)
        n = int((first != MISSING).sum())
        cost = None if usd is None or usd_after is None else usd * n + usd_after * (result.n_images - n)
        workflows.append(Workflow(model, result, int(pays[result.passed].sum()), cost))
    return workflows


def _read(path: Path, run: RunDir, sources: Mapping[str, str | None]) -> dict[str, Candidate]:
    """Task id -> the image of `run` that it revises. The run may have grown since; UserError if it does not have an
    image, or has another one than a task's source in `sources`."""
    about = strictjson.read(path, UserError, missing="give a folder written by `revise write`")
    try:
        work_ids = {name: str(entry["work_id"]) for name, entry in about["revisions"].items()}
    except (KeyError, TypeError, AttributeError):
        raise UserError(f"{path} was not written by `local-bench revise write`: give its folder") from None
    made = {row.work_id: row for row in run.store.candidates() if row.image}
    if any(w not in made or sources.get(name, made[w].image) != made[w].image for name, w in work_ids.items()):
        raise UserError(f"{path} revises images of another run than {run.path}: give that run, or its folder")
    return {name: made[work_id] for name, work_id in work_ids.items()}


def _answered(verdicts: Sequence[VerdictsByWork], work_id: str, key: tuple[str, int, int]) -> list[Verdict]:
    return [v for by_work in verdicts if (v := by_work.get(work_id, {}).get(key)) is not None and v.answer]


def _share(verdicts: Sequence[VerdictsByWork], work_id: str, key: tuple[str, int, int], name: str) -> float | None:
    """The mean of a field over the judges that answered; None if none did."""
    values = [float((verdict.answer or {})[name]) for verdict in _answered(verdicts, work_id, key)]
    return sum(values) / len(values) if values else None


def _lowest_score(run: RunDir, scores: Mapping[str, Score]) -> str:
    """The deciding score that is furthest below its threshold, if no reason was found."""
    thresholds = thresholds_of(run.config)
    distances = [
        (score.value - thresholds[name], name, score.value)
        for name, score in scores.items()
        if name in thresholds and score.value is not None
    ]
    distance, name, value = min(distances, default=(0, "", 0))
    if distance >= 0:
        return "It misses a hard rule of the order"
    return f"Its {name} score is {value:.2f}, and {thresholds[name]:.2f} is asked for"


def _name(row: Candidate, taken: Mapping[str, Any]) -> str:
    """A task id: the original task's, the deliverable's number and the model's name."""
    name = _UNSAFE.sub("-", f"{row.task_id}.{row.deliverable}.{row.model}").replace("..", ".-")
    return name if name not in taken else f"{name}.{len(taken)}"


def _file(sha: str) -> str:
    return f"{IMAGES}/{sha}.png"


def _task(
    name: str, task: Task, deliverable: int, sha256: str, why: Sequence[str], points: Sequence[str]
) -> dict[str, Any]:
    listed = "\n".join(f"- {reason}" for reason in why)
    references = list(task.input_images)
    line = {
        "task_id": name,
        "category": task.category,
        "price_usd": usd_number(split(task.price_micro_usd, len(task.deliverables))[deliverable - 1]),
        "title": task.title,
        "brief": f"Revise the image. Change what is listed and keep everything else.\n{listed}\n\n{task.brief}"[
            :20_000
        ],
        "deliverables": [task.deliverables[deliverable - 1]],
        "evaluation_points": list(points or task.evaluation_points),
        "source_image": _file(sha256),
        "reference_images": [_file(sha) for sha in references],
    }
    return line | ({"rules": [task.rules[deliverable - 1]]} if task.rules else {})
