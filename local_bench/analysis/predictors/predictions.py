"""Predictions of payment for the images of a run, and files of them."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from pydantic import Field, ValidationError

from local_bench.analysis.predictors.card import Card
from local_bench.analysis.predictors.images import task_digest
from local_bench.analysis.predictors.inputs import check_inputs
from local_bench.analysis.predictors.training import odds_of
from local_bench.core import strictjson
from local_bench.core.errors import UserError
from local_bench.core.storage import storage_errors, write_atomic
from local_bench.core.yamlfile import Strict, explain
from local_bench.runs.rundir import RunDir
from local_bench.settle.predictors.features import Features, feature_table
from local_bench.settle.predictors.models import Calibrated, Rule
from local_bench.settle.predictors.revenue import Decisions, Probabilities
from local_bench.settle.predictors.serialization import loads

NO_IMAGE = "there is no image"
CUT = 0.5


class PredictionLine(Strict):
    """One line of a file of predictions: what one source predicts for one image of a run."""

    work_id: str = Field(min_length=1, max_length=200)
    model: str
    task_id: str
    deliverable: int = Field(ge=1)
    attempt: int = Field(1, ge=1)
    probability: float | None = Field(None, ge=0, le=1)
    """Of payment; null if there is none."""
    accepted: bool | None = None
    """Whether it predicts payment."""
    unscored: str | None = None
    """Why there is no prediction."""
    source: str = Field(min_length=1, max_length=300)
    """The predictor, or the judge with its protocol and its question."""
    question_id: str | None = None
    """Identity of the judge's question; null for predictors."""


@dataclass(frozen=True)
class PredictionFile:
    """The predictions of one source."""

    name: str
    by_work_id: Mapping[str, PredictionLine]


def outputs(
    text: str, features: Features, keys: Sequence[str], log_odds: Mapping[str, float] | None = None
) -> tuple[Probabilities, Decisions]:
    """Probabilities and decisions of a stored predictor; `log_odds` (by key) for one that calibrates another model's. A
    rule without annotated rates has its decisions as probabilities, 0 and 1."""
    predictor = loads(text)
    if isinstance(predictor, Calibrated):
        if log_odds is None:
            raise UserError("the predictor calibrates a model's log-odds, and none are given: give its model")
        found = predictor.probabilities(odds_of(log_odds, keys))
        return found, found.decided(predictor.cut)
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
    made = [row for row in rows if row.candidate.image is not None]
    keys = [row.candidate.work_id for row in made]
    features = feature_table(
        [list(scores.get(key, {}).values()) for key in keys],
        [row.category for row in made],
        [row.part_micro_usd for row in made],
        [row.candidate.task_id for row in made],
        card.inputs.scores,
    )
    probabilities, decided = outputs(card.predictor, features, keys, log_odds)
    place = {key: i for i, key in enumerate(keys)}
    found = []
    for row in rows:
        of, i = row.candidate, place.get(row.candidate.work_id)
        if i is None:
            given: tuple[float | None, bool | None, str | None] = (None, None, NO_IMAGE)
        elif decided.known[i] and not np.isnan(probabilities.values[i]):
            given = (float(probabilities.values[i]), bool(decided.accepted[i]), None)
        else:
            given = (None, None, decided.unscored.get(i) or probabilities.unscored[i])
        found.append(
            PredictionLine(
                work_id=of.work_id,
                model=of.model,
                task_id=of.task_id,
                deliverable=of.deliverable,
                attempt=of.attempt,
                probability=given[0],
                accepted=given[1],
                unscored=given[2],
                source=f"predictor ({card.kind})",
            )
        )
    return found


def n_used_tasks(card: Card, run: RunDir) -> tuple[int, int]:
    """How many of the run's tasks trained or calibrated the predictor, and how many it has."""
    tasks = [task_digest(task) for task in run.store.tasks()]
    return sum(task in card.used_tasks for task in tasks), len(tasks)


def check_new_file(file: Path) -> None:
    """UserError if the file exists."""
    with storage_errors(file):
        exists = file.exists() or file.is_symlink()
    if exists:
        raise UserError(f"{file} exists: give the name of a new file for the predictions")


def write_predictions(lines: Iterable[PredictionLine], file: Path) -> None:
    """One JSON object a line."""
    text = "".join(json.dumps(line.model_dump(mode="json"), ensure_ascii=False) + "\n" for line in lines)
    write_atomic(file, text.encode())


def read_predictions(file: Path) -> PredictionFile:
    """Read a file of predictions of one source. UserError names file, line and reason."""
    found: dict[str, PredictionLine] = {}
    name = ""
    hint = "give a file written by `local-bench predictor apply` or `predictor zero-shot`"
    for _, where, data in strictjson.objects(file, UserError, "a prediction", missing=hint, unreadable=hint):
        try:
            line = PredictionLine.model_validate(data)
        except ValidationError as e:
            raise UserError(explain(e, PredictionLine, where, {})) from None
        if line.work_id in found:
            raise UserError(f"{where}: the image has a prediction on an earlier line: keep one of them")
        if name and line.source != name:
            raise UserError(f"{where}: it is of {line.source!r} and the first line of {name!r}: give a file for each")
        found[line.work_id], name = line, line.source
    if not found:
        raise UserError(f"{file} has no predictions: {hint}")
    return PredictionFile(name, found)
