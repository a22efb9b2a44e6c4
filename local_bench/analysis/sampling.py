"""Annotations on a sample of a run's images: estimates over all images, and which to annotate next."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from local_bench.analysis.settlement import counted_attempt
from local_bench.annotation.protocol import OVERALL
from local_bench.annotation.ratings import Annotations, load_annotations
from local_bench.core.errors import UserError, count
from local_bench.core.files import refuse_existing, write_atomic
from local_bench.core.types import digest, seed_of
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import thresholds_of
from local_bench.runs.store import OutcomeRow
from local_bench.settle.acceptance import likely
from local_bench.settle.intervals import Floats
from local_bench.settle.ppi import LabelPlan, Over, PpiEstimate, plan_labels, prediction_powered

MAY_BE_ANNOTATED = " and may contain annotations: give the name of a new file"
NO_PROBABILITIES = (
    "the annotations have no sampling probabilities: equal probabilities are assumed, which is valid "
    "only for a random sample"
)


_OVER: tuple[tuple[Over, str], ...] = (("these orders", ""), ("orders like these", "_at_large"))


@dataclass(frozen=True)
class ModelLabels:
    """One model's images, annotations and plan."""

    model: str
    work_ids: tuple[str, ...]
    """Its generated images, the first attempts where the benchmark counts these alone; others cannot be annotated and
    earn nothing."""
    keys: tuple[tuple[str, int], ...]
    """(task, deliverable) of each."""
    value_micro_usd: int
    """Revenue if all these images were accepted."""
    decided_micro_usd: int
    """Revenue by the run's decisions."""
    n_accepted: int
    """Number accepted by the run's decisions."""
    labels: Floats
    """(images,): 1, 0, or NaN for none."""
    sampled: NDArray[np.bool_]
    """(images,): whether it was sampled for annotation."""
    n_not_made: int
    estimates: dict[str, PpiEstimate] | None
    """Of the annotators' decisions on these images, and `_at_large` over the population of such tasks: `revenue_share`
    of their value, whose weight is that value in micro-USD, and `deliverable_acceptance`. None without annotations on
    this model's images."""
    plan: LabelPlan | None
    """The next round; without images if the interval is narrow enough. None unless requested."""


@dataclass(frozen=True)
class Labels:
    """Annotations of all models of a run."""

    models: list[ModelLabels]
    notes: list[str]


def labelling(run: RunDir, width: float | None, people: Path | None) -> Labels:
    """Estimates from the annotations in `people` (`load_annotations`; their `overall` decides), and the next round of
    annotations for an interval of the revenue share of width `width` (a fraction). UserError if the annotations cannot
    be read."""
    scores = {work_id: list(by_name.values()) for work_id, by_name in run.store.scores_by_candidate("judge").items()}
    thresholds = thresholds_of(run.config)
    human = None if people is None else load_annotations(people, run)
    given = set(human.probabilities.values()) if human else set()
    if None in given and given != {None}:
        raise UserError(
            f"{people} gives the probability of some images and not of others: give 1 for images that were chosen "
            "without sampling, or remove all probabilities"
        )
    by_model: dict[str, list[OutcomeRow]] = defaultdict(list)
    for row in run.store.outcomes(counted_attempt(run.config)):
        by_model[row.candidate.model].append(row)
    guesses = {work_id: likely(of_image, thresholds) for work_id, of_image in scores.items()}
    models = [
        _labelled(model, rows, guesses, human, width, run.config.seed) for model, rows in sorted(by_model.items())
    ]
    is_sample = any(model.sampled.any() and not model.sampled.all() for model in models)
    notes = [NO_PROBABILITIES] if is_sample and None in given else []
    notes += human.ties(run) if human else []
    used = {work_id for model in models for work_id in model.work_ids}
    if width is not None and not any(model.plan for model in models):
        why = "its tasks are worth nothing" if used else "it has no images"
        raise UserError(f"{run.path} has no revenue share that --plan-labels could plan annotations for: {why}")
    if unused := len(set(human.probabilities if human else ()) - used):
        notes.append(count(unused, "annotations are about later attempts or missing images and are") + " not used")
    return Labels(models, notes)


def _labelled(
    model: str,
    rows: list[OutcomeRow],
    guesses: Mapping[str, float | None],
    human: Annotations | None,
    width: float | None,
    seed: int,
) -> ModelLabels:
    images = [row for row in rows if row.candidate.image]
    images.sort(key=lambda row: (row.candidate.task_id, row.candidate.deliverable, row.candidate.attempt))
    ids = tuple(row.candidate.work_id for row in images)
    indices = {task_id: i for i, task_id in enumerate(dict.fromkeys(row.candidate.task_id for row in images))}
    tasks = np.array([indices[row.candidate.task_id] for row in images], dtype=np.intp)
    pays = [row.part_micro_usd for row in images]
    judge = _column(guesses.get(work_id) for work_id in ids)
    consensus = human.consensus.get(OVERALL, {}) if human else {}
    labels = _column(consensus[w].decision if w in consensus else None for w in ids)
    sampled = np.array([human is not None and w in human.probabilities for w in ids], dtype=bool)
    chances = {**human.waiting, **human.probabilities} if human else {}
    drawn = np.array([w in chances for w in ids], dtype=bool)
    probabilities = _inclusion(_column(chances.get(w) for w in ids), drawn)
    estimates, plan = None, None
    if not np.isnan(labels).all():
        not_made = np.array([row.part_micro_usd for row in rows if not row.candidate.image], dtype=np.float64)
        n_not_made = float(len(not_made))  # open in the bounds, by their prices or as images
        by_price = (np.array(pays, np.float64), float(not_made.sum())) if any(pays) else (None, n_not_made)
        estimates = {
            f"{name}{end}": prediction_powered(
                tasks, judge, labels, weights=weights, probabilities=probabilities, selected=drawn, over=over
            ).with_open(more)
            for over, end in _OVER
            for name, weights, more in (("revenue_share", *by_price), ("deliverable_acceptance", None, n_not_made))
        }
    if width is not None and ids and sum(pays):
        n_labelled = int((~np.isnan(labels)).sum())
        reached = None if estimates is None else estimates["revenue_share"].width
        if reached is not None and reached <= width:
            plan = LabelPlan(np.empty(0, dtype=np.intp), probabilities, reached, n_labelled)
        else:
            sampling_seed = seed_of(digest({"labels": model, "seed": seed, "known": n_labelled}))
            undecided = sampled & np.isnan(labels) & bool(n_labelled)  # without any label nobody has answered yet
            plan = plan_labels(judge, width, weights=pays, labels=labels, undecided=undecided, seed=sampling_seed)
            plan = plan if plan.n_labels or reached is None else replace(plan, width=reached)
    keys = tuple((row.candidate.task_id, row.candidate.deliverable) for row in images)
    accepted = [bool(row.accepted) for row in images]
    decided = sum(pay for pay, yes in zip(pays, accepted, strict=True) if yes)
    return ModelLabels(
        model, ids, keys, sum(pays), decided, sum(accepted), labels, sampled, len(rows) - len(images), estimates, plan
    )


def _inclusion(probabilities: Floats, sampled: NDArray[np.bool_]) -> Floats:
    """Inclusion probabilities (images,), equal for all without any; those of images that were not sampled have
    no influence and are the smallest of the others."""
    if not sampled.any() or np.isnan(probabilities[sampled]).any():
        return np.full(len(probabilities), sampled.mean() if sampled.any() else 1.0)
    return np.where(sampled, probabilities, probabilities[sampled].min())


def _column(values: Any) -> Floats:
    return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)


def write_questions(found: Labels, path: Path) -> int:
    """Write one line per image to annotate and per annotated image, and of models with an annotated image or without a
    further round also per sampled one; return the number of images to annotate. UserError if the file exists, because
    it may contain annotations."""
    refuse_existing(path, MAY_BE_ANNOTATED)
    lines, n = [], 0
    for model in found.models:
        if model.plan is None:
            continue
        pending = {int(i) for i in model.plan.images}
        n += len(pending)
        for i, (task_id, deliverable) in enumerate(model.keys):
            labelled = not np.isnan(model.labels[i])
            if labelled or i in pending or (model.sampled[i] and (model.estimates or not pending)):
                line = {
                    "model": model.model,
                    "task_id": task_id,
                    "deliverable": deliverable,
                    "probability": float(model.plan.probabilities[i]),
                    "overall": bool(model.labels[i]) if labelled else None,
                }
                lines.append(json.dumps(line, ensure_ascii=False))
    write_atomic(path, "".join(f"{line}\n" for line in lines).encode())
    return n
