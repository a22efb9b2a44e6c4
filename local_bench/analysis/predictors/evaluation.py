"""A predictor and its baselines on annotated images that were not used in training (ServImage, table 4 and fig. 4)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from local_bench.analysis.predictors.card import Card, check_inputs
from local_bench.analysis.predictors.images import labelled_images
from local_bench.analysis.predictors.predictions import outputs
from local_bench.core.errors import UserError, count
from local_bench.runs.payment import PredictionLine
from local_bench.runs.rundir import RunDir
from local_bench.settle.intervals import Floats
from local_bench.settle.predictors.evaluation import Evaluation, Measured, accuracy_difference, evaluate

MAJORITY, RUN_RULE, TUNED_RULE = "majority", "rule of the training run", "tuned rule"


@dataclass(frozen=True)
class Compared:
    """One predictor on the evaluated images."""

    name: str
    evaluation: Evaluation | None
    """None if it predicts nothing."""
    over_tuned_rule: Measured | None
    """Its accuracy less that of the tuned rule, on the images for which both predict; None for the tuned rule."""


@dataclass(frozen=True)
class Report:
    """An evaluation: the baselines, other sources, and the predictor, on the same images."""

    rows: list[Compared]
    n: int
    """Evaluated images."""
    n_left_out: int
    """Annotated images left out because their tasks trained or calibrated the predictor."""
    notes: tuple[str, ...] = ()
    """On the annotations and the predictions."""


def report(
    card: Card,
    runs: Sequence[RunDir],
    annotations: Sequence[Path] = (),
    others: Sequence[Mapping[str, PredictionLine]] = (),
    other_judge: bool = False,
    log_odds: Mapping[str, float] | None = None,
) -> Report:
    """Evaluate on the annotated images of `runs` whose tasks the predictor was not trained or calibrated on, with the
    baselines and the predictions of `others`. UserError as `predictions`, for annotations that cannot be read, and
    without such images."""
    for run in runs:
        check_inputs(card.inputs, run, other_judge)
    images = labelled_images(runs, annotations, card.inputs.scores, card.seed)
    decided = ~np.isnan(images.accepted)
    used_tasks = card.used_tasks
    unseen = np.array([task not in used_tasks for task in images.tasks], dtype=bool)
    used = np.flatnonzero(decided & unseen)
    if not len(used):
        raise UserError(
            "no annotated image is of a task that the predictor was not trained on: evaluate it on other tasks"
        )
    features, accepted = images.features.rows(used), images.accepted[used] == 1
    keys = [images.keys[int(i)] for i in used]

    def values(text: str) -> Floats:
        return outputs(text, features, keys, log_odds)[0]

    tuned = values(card.tuned_rule)
    by_name = {MAJORITY: np.full(len(accepted), card.majority)}
    by_name |= {RUN_RULE: values(card.rule)} if card.rule else {}
    by_name |= {TUNED_RULE: tuned}
    own = {f"predictor ({card.kind})": values(card.predictor)} if card.kind != "rule" else {}
    notes = list(images.notes)
    for other in others:
        name = next(iter(other.values())).source
        if name in by_name | own:
            twice = f"two files have predictions of {name!r}: give one of them"
            same = f"the predictor is {name!r} too: leave out the file of predictions with its name"
            raise UserError(same if name in own else twice)
        lines = [other.get(key) for key in keys]
        predicted = [None if line is None or line.used_in_training else line.probability for line in lines]
        if n_used := sum(line is not None and line.used_in_training for line in lines):
            notes.append(f"{count(n_used, f'predictions of {name!r} are left out, because their tasks')} trained it")
        by_name[name] = np.array([np.nan if p is None else p for p in predicted], dtype=np.float64)
        if np.isnan(by_name[name]).all():
            raise UserError(f"the predictions of {name!r} have none of the evaluated images: make them again")
    by_name |= own
    rows = [
        Compared(
            name,
            evaluate(probabilities, accepted, features.tasks, features.categories, seed=card.seed),
            None
            if name == TUNED_RULE
            else accuracy_difference(probabilities, tuned, accepted, features.tasks, seed=card.seed),
        )
        for name, probabilities in by_name.items()
    ]
    return Report(rows, len(used), int((decided & ~unseen).sum()), tuple(notes))
