"""Training of a predictor on labelled images, and predictions of payment for the images of a run."""

from collections.abc import Callable, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from local_bench.analysis.payment import features_of
from local_bench.analysis.predictors.card import Card, Inputs, Kind, TrainedOn, check_inputs, load, same_inputs
from local_bench.analysis.predictors.images import LabelledImages, labelled_images
from local_bench.core import __version__
from local_bench.core.errors import UserError
from local_bench.runs.payment import PredictionLine, columns_of, model_log_odds
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of
from local_bench.settle.features import SPLITS, Features, task_digest
from local_bench.settle.intervals import Floats
from local_bench.settle.predictors.fitting import (
    LEAST_VALIDATION,
    fit_calibration,
    fit_held_out,
    n_of_rarer_class,
    tune_rule,
)
from local_bench.settle.predictors.models import Calibrated, ConceptModel, Decisions, Rule, dumps, loads


def train(
    runs: Sequence[RunDir],
    annotations: Sequence[Path] = (),
    kind: Kind = "logistic",
    seed: int = 0,
    log_odds: Mapping[str, float] | None = None,
    report: Callable[[str], None] | None = None,
) -> Card:
    """Fit a predictor to the annotated images of `runs`, with annotations as for `labelled_images`.

    70 % of the tasks train it and 15 % calibrate it, by a hash of the task; the rest is for tests. `log_odds` as for
    `train_on`; `report` receives notes on the annotations. UserError if the runs' judges, rubrics or deciding scores
    differ, or if there are too few annotations.
    """
    inputs = same_inputs(runs)
    rule = Rule({name: float(value) for name, value in thresholds_of(runs[0].config).items()})
    images = labelled_images(runs, annotations, inputs.scores, seed)
    if report is not None:
        for note in images.notes:
            report(note)
    names = [run.name for run in runs]
    return train_on(images, inputs, names, rule, kind, seed, log_odds)


def train_on(
    images: LabelledImages,
    inputs: Inputs,
    names: Sequence[str],
    rule: Rule | None,
    kind: Kind,
    seed: int = 0,
    log_odds: Mapping[str, float] | None = None,
) -> Card:
    """As `train`, on images from any source; `names` are the sources' names. `log_odds` (by the images' keys) are those
    of a model that was trained on the images of the training tasks: then only its calibration is fitted here."""
    features, labels = images.of("train")
    validation, decided = images.of("validation")
    tuned = tune_rule(features, labels, inputs.scores)
    fitted: Rule | ConceptModel | Calibrated
    calibrated: Literal["validation", "training, out of fold", "nothing"] = "validation"
    if log_odds is not None:
        fitted = fit_calibration(odds_of(log_odds, images.keys)[images.mask("validation")], decided)
    elif kind == "rule":
        fitted, calibrated = tuned, "nothing"
    else:
        assert kind != "servimage", "it has log-odds"
        fitted = fit_held_out(features, labels, validation, decided, seed=seed)
        usable = decided[validation.known & ~np.isnan(decided)] == 1
        calibrated = "validation" if n_of_rarer_class(usable) >= LEAST_VALIDATION else "training, out of fold"
    labelled = ~np.isnan(images.accepted)
    tasks = np.array(images.tasks)
    return Card(
        kind=kind,
        predictor=dumps(fitted),
        tuned_rule=dumps(tuned),
        rule=None if rule is None else dumps(rule),
        majority=float(labels[~np.isnan(labels)].mean()),
        inputs=inputs,
        trained_on=TrainedOn(
            runs=list(names),
            manifest_sha256=images.manifest_sha256,
            n_images={split: int((labelled & images.mask(split)).sum()) for split in SPLITS},
            tasks={split: sorted(set(tasks[labelled & images.mask(split)].tolist())) for split in SPLITS},
            calibrated_on=calibrated,
        ),
        seed=seed,
        libraries={"local-bench": __version__, "numpy": np.__version__, "scikit-learn": version("scikit-learn")},
    ).with_digest()


def odds_of(log_odds: Mapping[str, float], keys: Sequence[str]) -> Floats:
    """(images,) log-odds in the order of `keys`, NaN without one. UserError for one that is not finite."""
    odds = np.array([log_odds.get(key, np.nan) for key in keys], dtype=np.float64)
    if np.isinf(odds).any():
        raise UserError("the model gives infinite log-odds: train it again")
    return odds


NO_IMAGE = "there is no image"


def outputs(
    text: str, features: Features, keys: Sequence[str], log_odds: Mapping[str, float] | None = None
) -> tuple[Floats, Decisions]:
    """Probabilities and decisions of a stored predictor; `log_odds` (by key) for one that calibrates another model's. A
    rule without annotated rates has its decisions as probabilities, 0 and 1."""
    predictor = loads(text)
    if isinstance(predictor, Calibrated):
        if log_odds is None:
            raise UserError("the predictor calibrates a model's log-odds, and none are given: give its model")
        odds = odds_of(log_odds, keys)
        return predictor.calibration.probabilities(odds), predictor.decisions(odds)
    decided = predictor.decisions(features)
    if isinstance(predictor, Rule) and predictor.paid_if_accepted is None:
        return np.where(decided.known, decided.accepted.astype(np.float64), np.nan), decided
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
        elif decided.known[i]:
            predicted = {"probability": float(probabilities[i]), "accepted": bool(decided.accepted[i])}
        else:
            predicted = {"unscored": decided.unscored[i]}
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
