"""What explains that people pay for a run's images, and what predictors make of it (ServImage, sec. 5.5, table 12)."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from local_bench.analysis.annotations import OVERALL, people_labels
from local_bench.core.errors import UserError
from local_bench.core.types import Score
from local_bench.runs.acceptance import thresholds_of
from local_bench.runs.rundir import RunDir
from local_bench.settle.bootstrap import Floats
from local_bench.settle.discrimination import Bin
from local_bench.settle.explain import Explained, acceptance_by_score, explained
from local_bench.settle.failures import Failures, Ties, dominant, failures
from local_bench.settle.predictors.features import Features, cells
from local_bench.settle.predictors.fitting import Fitted, fit_concepts, fit_rule
from local_bench.settle.predictors.revenue import Decisions, ExpectedRevenue, RealisedRevenue
from local_bench.suites.registry import suite

DIMENSIONS = ("brf", "veq_clarity", "veq_realism", "veq_aesthetic", "veq_text", "cns")
"""Table 12's, in its order."""


@dataclass(frozen=True)
class Payment:
    """All that the labels say of payment, over the images of all models together."""

    explained: list[Explained]
    """The deciding scores and their composite, then every other score and metric."""
    by_composite: tuple[Bin, ...]
    """Acceptance by the deciding scores' mean."""
    failures: Failures
    predictors: dict[str, Fitted]
    """`rule`, `logistic`, `boosted`; empty where the labels are too few to teach any."""
    expected: dict[str, dict[str, ExpectedRevenue]]
    """Predictor -> model -> what its images are expected to earn, those without labels too."""
    realised: dict[str, RealisedRevenue]
    """Model -> what its images earn by the labels themselves; those without one are open."""
    untaught: str | None
    """Why there is no predictor."""


@dataclass(frozen=True)
class _Images:
    """The images that were made, of all models: first attempts, and every attempt where the benchmark's protocol asks
    for several (HYPE-EDIT-1)."""

    work_ids: list[str]
    models: list[str]
    categories: list[str]
    pays: list[int]
    task_ids: list[str]
    scores: list[dict[str, Score]]
    labels: Floats

    def cells(self, names: Sequence[str]) -> Features:
        of_images = [list(of.values()) for of in self.scores]
        return cells(of_images, self.categories, self.pays, self.task_ids, names)

    def others(self, thresholds: Mapping[str, float]) -> list[str]:
        """Scores that decide nothing."""
        return sorted({name for of in self.scores for name in of} - set(thresholds))

    def dimensions(self, thresholds: Mapping[str, float]) -> list[str]:
        """Those of table 12's that there are; the deciding scores in a suite that has others."""
        others = self.others(thresholds)
        found = [name for name in DIMENSIONS if name in thresholds or name in others]
        return found or list(thresholds)


def payment(run: RunDir, people: Path, ties: Ties = "first") -> Payment:
    """By people's labels (`runs.people`; their `overall` decides). UserError where they cannot be read."""
    thresholds = thresholds_of(run.config)
    images = _labelled(run, people, thresholds)
    concepts = images.cells(tuple(thresholds))
    others = images.others(thresholds)
    predictors, untaught = _taught(concepts, images.labels, thresholds)
    return Payment(
        explained=explained(concepts, images.labels) + explained(images.cells(others), images.labels, together=False),
        by_composite=acceptance_by_score(concepts, images.labels),
        failures=failures(images.cells(images.dimensions(thresholds)), images.labels, ties),
        predictors=predictors,
        expected={name: _expected(found, concepts, images.models) for name, found in predictors.items()},
        realised=_realised(images),
        untaught=untaught,
    )


def predicted(run: RunDir, people: Path) -> dict[str, bool | None]:
    """Work id -> whether the logistic predictor, fitted to people's labels, expects payment (a probability of one half
    or more); None where it lacks a score (ServImage, sec. G.2, table 9). UserError where the labels are too few."""
    thresholds = thresholds_of(run.config)
    images = _labelled(run, people, thresholds)
    concepts = images.cells(tuple(thresholds))
    decided = fit_concepts(concepts, images.labels, "logistic").predictor.decisions(concepts)
    return {
        work_id: bool(accepted) if known else None
        for work_id, accepted, known in zip(images.work_ids, decided.accepted, decided.known, strict=True)
    }


@dataclass(frozen=True)
class Rejected:
    """A rejected image with all its scores, and the first of its lowest (ServImage, table 13)."""

    dimension: str
    model: str
    category: str
    task_id: str
    scores: dict[str, float]
    """Of the dimensions that apply, by name."""


def rejected(run: RunDir, people: Path) -> dict[str, Rejected]:
    """Dimension -> of the images that people rejected and whose lowest score is this dimension's, the one with the
    lowest score; the first by work id where several have it. UserError as `payment`."""
    thresholds = thresholds_of(run.config)
    images = _labelled(run, people, thresholds)
    table = images.cells(images.dimensions(thresholds))
    found: dict[str, Rejected] = {}
    for i, place in enumerate(dominant(table)):
        if place < 0 or not images.labels[i] < 0.5:
            continue
        scores = {name: float(table.scores[i, k]) for k, name in enumerate(table.names) if table.applies[i, k]}
        name = table.names[place]
        if name not in found or scores[name] < found[name].scores[name]:
            found[name] = Rejected(name, images.models[i], images.categories[i], images.task_ids[i], scores)
    return {name: found[name] for name in table.names if name in found}


def _labelled(run: RunDir, people: Path, thresholds: Mapping[str, float]) -> "_Images":
    """The images with people's labels."""
    scores = _scores(run)
    return _images(run, scores, _decided(run, people, thresholds, scores))


def decided_by_people(run: RunDir, people: Path) -> dict[str, bool]:
    """Work id -> what people together decide, where they do. UserError where the labels cannot be read."""
    return _decided(run, people, thresholds_of(run.config), _scores(run))


def _scores(run: RunDir) -> dict[str, dict[str, Score]]:
    by_kind: dict[str, dict[str, Score]] = defaultdict(dict)
    for row in sorted(run.store.scores(), key=lambda row: (row.work_id, row.kind, row.score.name)):
        by_kind[row.work_id][row.score.name] = row.score
    return by_kind


def _decided(
    run: RunDir, people: Path, thresholds: Mapping[str, float], scores: Mapping[str, Mapping[str, Score]]
) -> dict[str, bool]:
    applies = {w: {s.name for s in of.values() if s.applies and s.name in thresholds} for w, of in scores.items()}
    word = people_labels(people, run, applies).word.get(OVERALL, {})
    return {work_id: rating.decision for work_id, rating in word.items() if rating.decision is not None}


def _images(run: RunDir, scores: Mapping[str, dict[str, Score]], decided: Mapping[str, bool]) -> _Images:
    attempt = None if suite(run.config.suite.name).attempts > 1 else 1
    rows = sorted(
        (row for row in run.store.outcomes(attempt) if row.candidate.image), key=lambda row: row.candidate.work_id
    )
    return _Images(
        [row.candidate.work_id for row in rows],
        [row.candidate.model for row in rows],
        [row.category for row in rows],
        [row.part_micro_usd for row in rows],
        [row.candidate.task_id for row in rows],
        [scores.get(row.candidate.work_id, {}) for row in rows],
        np.array([float(decided.get(row.candidate.work_id, np.nan)) for row in rows]),
    )


def _taught(
    concepts: Features, labels: Floats, thresholds: Mapping[str, float]
) -> tuple[dict[str, Fitted], str | None]:
    try:
        return {
            "rule": fit_rule(concepts, labels, thresholds),
            "logistic": fit_concepts(concepts, labels, "logistic"),
            "boosted": fit_concepts(concepts, labels, "boosted"),
        }, None
    except UserError as e:
        return {}, str(e)


def _realised(images: _Images) -> dict[str, RealisedRevenue]:
    known, pays, of_model = ~np.isnan(images.labels), np.array(images.pays), np.array(images.models, dtype=object)
    return {
        model: Decisions(images.labels[own] == 1, known[own]).realised_revenue(pays[own])
        for model in sorted(set(images.models))
        for own in [of_model == model]
    }


def _expected(found: Fitted, concepts: Features, models: Sequence[str]) -> dict[str, ExpectedRevenue]:
    """By model; the images of all go through the predictor."""
    of_model = np.array(models, dtype=object)
    return {
        model: found.predictor.probabilities(part).expected_revenue(part.price_micro_usd)
        for model in sorted(set(models))
        for part in [concepts.rows(np.flatnonzero(of_model == model))]
    }
