"""Predictions of payment for the images of a run."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from local_bench.analysis.payment import features_of
from local_bench.analysis.predictors.card import Card, check_inputs, load
from local_bench.analysis.predictors.training import odds_of
from local_bench.core.errors import UserError
from local_bench.runs.payment import PredictionLine, columns_of, model_log_odds
from local_bench.runs.rundir import RunDir
from local_bench.settle.predictors.features import Features
from local_bench.settle.predictors.models import Calibrated, Rule, loads
from local_bench.settle.predictors.revenue import Decisions, Probabilities
from local_bench.settle.predictors.splits import task_digest

NO_IMAGE = "there is no image"


def outputs(
    text: str, features: Features, keys: Sequence[str], log_odds: Mapping[str, float] | None = None
) -> tuple[Probabilities, Decisions]:
    """Probabilities and decisions of a stored predictor; `log_odds` (by key) for one that calibrates another model's. A
    rule without annotated rates has its decisions as probabilities, 0 and 1."""
    predictor = loads(text)
    if isinstance(predictor, Calibrated):
        if log_odds is None:
            raise UserError("the predictor calibrates a model's log-odds, and none are given: give its model")
        probabilities = predictor.probabilities(odds_of(log_odds, keys))
        return probabilities, probabilities.decided(predictor.cut)
    decided = predictor.decisions(features)
    if isinstance(predictor, Rule) and predictor.paid_if_accepted is None:
        values = np.where(decided.known, decided.accepted.astype(np.float64), np.nan)
        return Probabilities(values, decided.unscored), decided
    return predictor.probabilities(features), decided


def predictions(
    card: Card, run: RunDir, other_judge: bool = False, log_odds: Mapping[str, float] | None = None
) -> list[PredictionLine]:
    """Predictions for every image of `run`, in the plan's order. UserError if the run lacks one of the scores, or if
    its judges or rubrics differ and `other_judge` is not set."""
    check_inputs(card.inputs, run, other_judge)
    rows = run.store.outcomes()
    scores = run.store.scores_by_candidate()
    with_image = [row for row in rows if row.candidate.image is not None]
    keys = [row.candidate.work_id for row in with_image]
    features = features_of(with_image, [scores.get(key, {}) for key in keys], card.inputs.scores)
    probabilities, decided = outputs(card.predictor, features, keys, log_odds)
    index = {key: i for i, key in enumerate(keys)}
    used = {task.task_id for task in run.store.tasks() if task_digest(task) in card.used_tasks}
    lines = []
    for row in rows:
        i = index.get(row.candidate.work_id)
        if i is None:
            predicted: dict[str, Any] = {"unscored": NO_IMAGE}
        elif decided.known[i] and not np.isnan(probabilities.values[i]):
            predicted = {"probability": float(probabilities.values[i]), "accepted": bool(decided.accepted[i])}
        else:
            predicted = {"unscored": decided.unscored.get(i) or probabilities.unscored[i]}
        predicted |= {"source": f"predictor ({card.kind})", "used_in_training": row.candidate.task_id in used}
        lines.append(PredictionLine(**columns_of(row.candidate), **predicted))
    return lines


def predicted_by(folder: Path, run: RunDir, other_judge: bool = False) -> tuple[Card, list[PredictionLine]]:
    """The predictor in `folder` and its predictions for every image of `run`; UserError as `load` and `predictions`."""
    card = load(folder)
    return card, predictions(card, run, other_judge, model_log_odds(card.kind, [run], folder))


def n_used_tasks(lines: Sequence[PredictionLine]) -> tuple[int, int]:
    """How many of a run's tasks trained or calibrated the predictor, and how many it has."""
    used = {line.task_id: line.used_in_training for line in lines}
    return sum(used.values()), len(used)


def used_tasks_note(n_used: int, n_tasks: int) -> list[str]:
    """A note on `n_used_tasks`, if there are any."""
    note = (
        f"{n_used} of the run's {n_tasks} tasks trained or calibrated the predictor: its predictions for them are "
        "better than for new tasks"
    )
    return [note] if n_used else []
