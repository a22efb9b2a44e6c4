"""What explains human payment decisions on a run's images, and predictors of them (ServImage, sec. 5.5, table 12)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from local_bench.analysis.settlement import counted_attempt
from local_bench.annotation.ratings import load_annotations
from local_bench.core.errors import UserError
from local_bench.core.types import Score
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of
from local_bench.runs.store import OutcomeRow
from local_bench.settle.discrimination import Bin
from local_bench.settle.explain import (
    COMPOSITE,
    Explained,
    Failures,
    acceptance_by_score,
    composite,
    dominant,
    explained,
    failures,
)
from local_bench.settle.features import Features, feature_table
from local_bench.settle.intervals import Floats
from local_bench.settle.predictors.fitting import Fitted, fit_concepts, fit_rule, out_of_fold
from local_bench.settle.predictors.models import Decisions, ExpectedRevenue, RealisedRevenue, expected_revenue

DIMENSIONS = ("brf", "veq_clarity", "veq_realism", "veq_aesthetic", "veq_text", "cns")
"""The dimensions of table 12, in its order."""


@dataclass(frozen=True)
class Payment:
    """Analysis of the annotated payment decisions, over the images of all models."""

    explained: list[Explained]
    """The deciding scores and their composite, then all other scores and metrics."""
    by_composite: tuple[Bin, ...]
    """Acceptance rate by bins of the deciding scores' mean."""
    failures: Failures
    predictors: dict[str, Fitted]
    """`rule`, `logistic`; empty if there are too few annotations to fit them."""
    expected: dict[str, dict[str, ExpectedRevenue]]
    """Predictor -> model -> expected revenue of all its images, annotated or not."""
    realised: dict[str, RealisedRevenue]
    """Model -> revenue of its images by their annotations; images without one are open."""
    not_fitted: str | None
    """Why no predictor was fitted."""
    notes: list[str]
    """On the annotations."""


@dataclass(frozen=True)
class _Images:
    """The generated images of all models: first attempts, or all attempts if the benchmark's protocol has several
    (HYPE-EDIT-1)."""

    rows: list[OutcomeRow]
    scores: list[dict[str, Score]]
    labels: Floats
    notes: list[str]
    thresholds: Mapping[str, float]

    def features(self, names: Sequence[str]) -> Features:
        return features_of(self.rows, self.scores, names)

    def others(self) -> list[str]:
        """Names of the scores without a threshold."""
        return sorted({name for by_name in self.scores for name in by_name} - set(self.thresholds))

    def dimensions(self) -> list[str]:
        """The dimensions of table 12 that exist; the deciding scores for other suites."""
        known = {*self.thresholds, *self.others()}
        return [name for name in DIMENSIONS if name in known] or list(self.thresholds)


def features_of(rows: Sequence[OutcomeRow], scores: Sequence[Mapping[str, Score]], names: Sequence[str]) -> Features:
    """The features of images; `scores` (images,) by name."""
    return feature_table(
        [list(by_name.values()) for by_name in scores],
        [row.category for row in rows],
        [row.part_micro_usd for row in rows],
        [row.candidate.task_id for row in rows],
        names,
    )


def payment(run: RunDir, people: Path) -> Payment:
    """Analyse the annotations in `people` (`load_annotations`; their `overall` decides). UserError if they cannot be
    read."""
    images = _labelled(run, people)
    concepts, others = images.features(tuple(images.thresholds)), images.others()
    models = np.array([row.candidate.model for row in images.rows], dtype=object)
    of_models = {
        model: (concepts.rows(models == model), images.labels[models == model]) for model in sorted(set(models))
    }
    predictors, not_fitted = dict[str, Fitted](), None
    try:
        rule, logistic = fit_rule(concepts, images.labels, images.thresholds), fit_concepts(concepts, images.labels)
        predictors = {"rule": rule, "logistic": logistic}
    except UserError as e:
        not_fitted = str(e)
    return Payment(
        explained=explained(concepts, images.labels)
        + explained(images.features(others), images.labels, together=False, lower_is_better=_lower(run, others)),
        by_composite=acceptance_by_score(concepts, images.labels),
        failures=failures(images.features(images.dimensions()), images.labels),
        predictors=predictors,
        expected={
            name: {
                model: expected_revenue(fitted.predictor.probabilities(part), part.price_micro_usd, part.tasks)
                for model, (part, _) in of_models.items()
            }
            for name, fitted in predictors.items()
        },
        realised={
            model: Decisions(labels == 1, ~np.isnan(labels)).realised_revenue(part.price_micro_usd)
            for model, (part, labels) in of_models.items()
        },
        not_fitted=not_fitted,
        notes=images.notes,
    )


def _lower(run: RunDir, names: Sequence[str]) -> set[str]:
    """The metrics of which less is better."""
    return {name for name in names if not (run.store.json_meta(f"metric:{name}") or {}).get("higher_is_better", True)}


def explained_alike(run: RunDir, people: Path) -> tuple[list[Explained], list[str]]:
    """`Payment.explained` over the same images in every row, those that are annotated and have all of these scores; and
    the names of the scores that are left out, because they do not apply to every annotated image or were not computed
    for it. Raises as `payment`."""
    images = _labelled(run, people)
    thresholds = images.thresholds
    names = [*thresholds, *images.others()]
    labelled, table = ~np.isnan(images.labels), images.features(names)
    computed = np.array([[name in row for name in names] for row in images.scores], dtype=bool).reshape(-1, len(names))
    whole = (table.applies & computed)[labelled].all(axis=0)
    kept = [name for name, has_all in zip(names, whole, strict=True) if has_all]
    concepts, others = images.features(tuple(thresholds)), [name for name in kept if name not in thresholds]
    here = labelled & images.features(kept).known & ~np.isnan(composite(concepts))
    labels = images.labels[here]
    deciding = [row for row in explained(concepts.rows(here), labels) if row.name in (*kept, COMPOSITE)]
    further = images.features(others).rows(here)
    rows = deciding + explained(further, labels, together=False, lower_is_better=_lower(run, others))
    return rows, [name for name in names if name not in kept]


def predicted(run: RunDir, people: Path) -> dict[str, bool | None]:
    """Work id -> whether the logistic predictor predicts payment (probability of at least one half), fitted to the
    annotations of the other tasks, so that no image is predicted by a model that has its task's labels; None if a score
    is missing (ServImage, sec. G.2, table 9). UserError if there are too few annotations."""
    images = _labelled(run, people)
    probabilities = out_of_fold(images.features(tuple(images.thresholds)), images.labels)
    return {
        row.candidate.work_id: None if np.isnan(p) else bool(p >= 0.5)
        for row, p in zip(images.rows, probabilities, strict=True)
    }


def rejected(run: RunDir, people: Path) -> dict[str, tuple[OutcomeRow, dict[str, float]]]:
    """Dimension -> among the rejected images whose lowest score is in this dimension, the one with the lowest score,
    and its scores of the applicable dimensions (ServImage, table 13); the first by work id in case of ties. Raises as
    `payment`."""
    images = _labelled(run, people)
    table = images.features(images.dimensions())
    worst: dict[str, tuple[OutcomeRow, dict[str, float]]] = {}
    for i, dimension in enumerate(dominant(table)):
        if dimension < 0 or not images.labels[i] < 0.5:
            continue
        scores = {name: float(table.scores[i, k]) for k, name in enumerate(table.names) if table.applies[i, k]}
        name = table.names[dimension]
        if name not in worst or scores[name] < worst[name][1][name]:
            worst[name] = images.rows[i], scores
    return {name: worst[name] for name in table.names if name in worst}


def _labelled(run: RunDir, people: Path) -> "_Images":
    scores = run.store.scores_by_candidate()
    annotations = load_annotations(people, run)
    decided = annotations.decisions()
    outcomes = run.store.outcomes(counted_attempt(run.config))
    rows = sorted((row for row in outcomes if row.candidate.image), key=lambda row: row.candidate.work_id)
    return _Images(
        rows,
        [scores.get(row.candidate.work_id, {}) for row in rows],
        np.array([float(decided.get(row.candidate.work_id, np.nan)) for row in rows]),
        annotations.sampling_notes,
        thresholds_of(run.config),
    )
