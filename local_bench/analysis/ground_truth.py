"""A run against the truth, in a suite that has a referee: its judges' answers, and its money."""

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from local_bench.analysis.agreement import judge_labels
from local_bench.analysis.settlement import lines
from local_bench.core.errors import RunImageError
from local_bench.core.types import GroundTruth, Score, Verdict
from local_bench.runs.acceptance import decision_of
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import sets, verdicts_of
from local_bench.settle.ground_truth import Answered, Paid, Reckoning, Truthfulness, reckon, truthfulness
from local_bench.suites.registry import suite


@dataclass(frozen=True)
class GroundTruthCheck:
    """What the referee has to say of a run."""

    truths: dict[str, GroundTruth] = field(default_factory=dict)
    """By work id, of every picture of which anything could be told."""
    answers: list[Truthfulness] = field(default_factory=list)
    money: list[Reckoning] = field(default_factory=list)


def refereed(run: RunDir) -> GroundTruthCheck | None:
    """The judges' answers and decisions that are in the ledger now, against the truth of the pictures; None in a suite
    whose truth is not known. A picture that is missing, damaged or altered is left out and noted in `run.image_store`.
    LedgerError where a task cannot be read."""
    asked = suite(run.config.suite.name)
    if not asked.has_ground_truth:
        return None
    tasks = {task.task_id: task for task in run.store.tasks()}
    of_work: dict[str, GroundTruth] = {}
    faultless: dict[str, list[Score]] = {}
    for (task_id, _, attempt), images in sets(run.store).items():
        if attempt > 1:
            continue
        pixels = _pixels(run, {i: sha for i, (_, sha) in images.items() if sha})
        truths = asked.ground_truth(tasks[task_id], pixels)
        of_work |= {images[i][0]: truth for i, truth in truths.items()}
        answers = {(i, *key, 0): Verdict(a, None, "") for i, t in truths.items() for key, a in t.answers.items() if a}
        for i, scores in asked.scores(tasks[task_id], answers).items():
            if i in truths:
                faultless[images[i][0]] = scores
    models = {row.work_id: row.model for row in run.store.candidates() if row.work_id in of_work}
    return GroundTruthCheck(
        of_work, truthfulness(_answered(run, models, of_work)), reckon(_paid(run, of_work, faultless))
    )


def _pixels(run: RunDir, shas: Mapping[int, str]) -> dict[int, NDArray[np.uint8]]:
    """RGB8 pixels (height, width, 3) by deliverable, of the pictures that are what the ledger says."""
    found = {}
    for i, sha in shas.items():
        with suppress(RunImageError):  # it is noted
            found[i] = np.asarray(run.image_store.load(sha))
    return found


def _answered(run: RunDir, models: dict[str, str], truths: dict[str, GroundTruth]) -> list[Answered]:
    found = []
    for judge_id, label in judge_labels(run).items():
        said = verdicts_of(run.store, judge_id)
        for work_id, model in models.items():
            for (rubric, point), true in truths[work_id].answers.items():
                verdict = said.get(work_id, {}).get((rubric, point, 0))
                turns_on = next(iter(true or {}), "")
                given = None if verdict is None else _number(verdict.answer, turns_on)
                found.append(Answered(label, rubric, model, given, _number(true, turns_on)))
    return sorted(found, key=lambda answer: answer.rubric)


def _number(answer: Mapping[str, object] | None, name: str) -> float | None:
    """The number in that field of an answer; a judge's answer may hold its evidence, a text, before it."""
    given = (answer or {}).get(name)
    return float(given) if isinstance(given, int | float) else None


def _paid(run: RunDir, truths: dict[str, GroundTruth], faultless: dict[str, list[Score]]) -> list[Paid]:
    judged = run.store.scores_by_candidate("judge")
    places = {row.key: row.work_id for row in run.store.candidates()}
    found = []
    for line in lines(run.store):
        work_id = places[line.model, line.task_id, line.deliverable, 1]
        truth = truths.get(work_id)
        known = {score.name: score for score in faultless.get(work_id, ()) if score.value is not None}
        own = judged.get(work_id, {})
        score = own.get("brf")
        found.append(
            Paid(
                model=line.model,
                task_id=line.task_id,
                part_micro_usd=line.part_micro_usd,
                judged=line.decision.accepted,
                faultless=decision_of(run.config, [*(own | known).values()]).accepted,
                right=None if truth is None else truth.right,
                score=None if score is None else score.value,
                true_score=known["brf"].value if "brf" in known else None,
            )
        )
    return found
