"""Compares a run's answers and revenue with ground truth, in suites that provide it."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from local_bench.analysis.agreement import judge_labels
from local_bench.core.errors import RunImageError
from local_bench.core.types import GroundTruth, Score, Verdict
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import decision_of, sets, verdicts_of
from local_bench.settle.ground_truth import (
    AnswerAccuracy,
    JudgedAnswer,
    JudgedDeliverable,
    RevenueAudit,
    answer_accuracy,
    audit_revenue,
)
from local_bench.suites.registry import suite


@dataclass(frozen=True)
class GroundTruthCheck:
    """A run compared with its ground truth."""

    truths: dict[str, GroundTruth] = field(default_factory=dict)
    """Work id -> ground truth, for images where it can be determined."""
    answers: list[AnswerAccuracy] = field(default_factory=list)
    money: list[RevenueAudit] = field(default_factory=list)


def check_ground_truth(run: RunDir) -> GroundTruthCheck | None:
    """Compare the stored answers and decisions with the images' ground truth; None for a suite without ground truth.
    Missing, damaged or altered images are left out and recorded in `run.image_store`. LedgerError if a task cannot be
    read."""
    entry = suite(run.config.suite.name)
    if not entry.has_ground_truth:
        return None
    tasks = {task.task_id: task for task in run.store.tasks()}
    of_work: dict[str, GroundTruth] = {}
    faultless: dict[str, list[Score]] = {}
    for (task_id, _, attempt), images in sets(run.store.images()).items():
        if attempt > 1:
            continue
        pixels: dict[int, NDArray[np.uint8]] = {}
        for i, sha in ((i, sha) for i, (_, sha) in images.items() if sha):
            with suppress(RunImageError):  # `load` records the fault
                pixels[i] = np.asarray(run.image_store.load(sha))
        truths = entry.ground_truth(tasks[task_id], pixels)
        of_work |= {images[i][0]: truth for i, truth in truths.items()}
        answers = {(i, *key, 0): Verdict(a, None, "") for i, t in truths.items() for key, a in t.answers.items() if a}
        digests = {i: images[i][1] or "" for i in truths}
        for i, scores in entry.scores_of_made(tasks[task_id], answers, digests).items():
            if i in truths:
                faultless[images[i][0]] = scores
    models = {row.work_id: (row.model, row.task_id) for row in run.store.candidates() if row.work_id in of_work}
    judged = []
    for judge_id, label in judge_labels(run).items():
        verdicts = verdicts_of(run.store, judge_id)
        for work_id, model in models.items():
            for (rubric, point), true in of_work[work_id].answers.items():
                verdict = verdicts.get(work_id, {}).get((rubric, point, 0))
                name = next(iter(true or {}), "")
                answered = None if verdict is None else _number(verdict.answer, name)
                judged.append(JudgedAnswer(label, rubric, *model, answered, _number(true, name)))
    scale = None if entry.top_score is None else (0.0, entry.top_score)
    return GroundTruthCheck(
        of_work,
        answer_accuracy(sorted(judged, key=lambda answer: answer.rubric), scale),
        audit_revenue(_judged_deliverables(run, of_work, faultless)),
    )


def _number(answer: Mapping[str, object] | None, name: str) -> float | None:
    """The number in a field of an answer, whose other fields may be text."""
    value = (answer or {}).get(name)
    return float(value) if isinstance(value, int | float) else None


def _judged_deliverables(
    run: RunDir, truths: dict[str, GroundTruth], faultless: dict[str, list[Score]]
) -> list[JudgedDeliverable]:
    judged = run.store.scores_by_candidate("judge")
    deliverables = []
    for row in sorted(run.store.outcomes(1), key=lambda row: row.candidate.work_id):
        work_id = row.candidate.work_id
        truth = truths.get(work_id)
        true_scores = {score.name: score for score in faultless.get(work_id, ()) if score.value is not None}
        judge_scores = judged.get(work_id, {})
        score = judge_scores.get("brf")
        deliverables.append(
            JudgedDeliverable(
                model=row.candidate.model,
                task_id=row.candidate.task_id,
                part_micro_usd=row.part_micro_usd,
                judged=row.accepted,
                faultless=decision_of(run.config, [*(judge_scores | true_scores).values()]).accepted,
                right=None if truth is None else truth.right,
                score=None if score is None else score.value,
                true_score=true_scores["brf"].value if "brf" in true_scores else None,
            )
        )
    return deliverables
