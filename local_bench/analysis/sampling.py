"""People's labels on some of a run's images: what they make of its judge's word on all, and whom to ask next."""

import json
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from local_bench.analysis.annotations import OVERALL, Annotations, people_labels
from local_bench.core.errors import UserError
from local_bench.core.identity import digest, seed_of
from local_bench.core.storage import storage_errors, write_atomic
from local_bench.runs.acceptance import thresholds_of
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import OutcomeRow
from local_bench.settle.acceptance import likely
from local_bench.settle.bootstrap import Floats
from local_bench.settle.ppi import PpiEstimate, prediction_powered
from local_bench.settle.sampling import LabelPlan, plan_labels

NOT_TOLD = (
    "the labels do not say with which probability each image was drawn: they are taken for drawn alike, which holds "
    "only if chance drew them"
)


@dataclass(frozen=True)
class Estimates:
    """What people would say of one model's images, by those that they were asked about."""

    revenue: PpiEstimate
    """A share of these images' value; its weight is that value in micro-USD."""
    images: PpiEstimate
    """The part of these images that is accepted."""
    revenue_at_large: PpiEstimate
    """The share, over orders like these."""
    images_at_large: PpiEstimate


@dataclass(frozen=True)
class Labelled:
    """One model's images, labels and plan."""

    model: str
    work_ids: tuple[str, ...]
    """Its images, the first attempt of each; what was not made cannot be labelled and earns nothing."""
    keys: tuple[tuple[str, int], ...]
    """(order, deliverable) of each."""
    value_micro_usd: int
    """What these images would pay if all were accepted."""
    decided_micro_usd: int
    """What they pay by the run's own decisions: the revenue of its settlement."""
    n_accepted: int
    """By the same decisions."""
    labels: Floats
    """(images,): 1, 0, or NaN for none."""
    n_not_made: int
    estimates: Estimates | None
    """None without labels on this model's images."""
    plan: LabelPlan | None
    """None where nobody asked for one."""


@dataclass(frozen=True)
class Labelling:
    """All models of a run."""

    models: list[Labelled]
    notes: list[str]


def labelling(run: RunDir, width: float | None, people: Path | None) -> Labelling:
    """Estimates by the labels in `people` (`runs.people`; their `overall` decides), and a plan for intervals of the
    revenue share that are `width` wide, a fraction. UserError where the labels cannot be read."""
    scores = {work_id: list(of.values()) for work_id, of in run.store.scores_by_candidate("judge").items()}
    thresholds = thresholds_of(run.config)
    said = None
    if people is not None:
        applies = {w: {s.name for s in of if s.applies and s.name in thresholds} for w, of in scores.items()}
        said = people_labels(people, run, applies)
    notes = []
    if said and None in said.asked.values():
        if set(said.asked.values()) != {None}:
            raise UserError(
                f"{people} tells the probability of some images and not of others: write 1 for those that were chosen "
                "without a draw, or leave it out everywhere"
            )
        notes.append(NOT_TOLD)
    notes += said.notes(run) if said else []
    by_model: dict[str, list[OutcomeRow]] = defaultdict(list)
    for row in run.store.outcomes(attempt=1):
        by_model[row.candidate.model].append(row)
    guesses = {work_id: likely(of, thresholds) for work_id, of in scores.items()}
    models = [_labelled(model, of, guesses, said, width, run.config.seed) for model, of in sorted(by_model.items())]
    unused = len(set(said.asked if said else ()) - {work_id for model in models for work_id in model.work_ids})
    if unused:
        notes.append(f"{unused} labels are about a later attempt, or about what was not made: they are not used")
    return Labelling(models, notes)


def _labelled(
    model: str,
    rows: list[OutcomeRow],
    guesses: Mapping[str, float | None],
    said: Annotations | None,
    width: float | None,
    seed: int,
) -> Labelled:
    made = [row for row in rows if row.candidate.image]
    ids = tuple(row.candidate.work_id for row in made)
    places = {task_id: i for i, task_id in enumerate(dict.fromkeys(row.candidate.task_id for row in made))}
    tasks = np.array([places[row.candidate.task_id] for row in made], dtype=np.intp)
    pays = [row.part_micro_usd for row in made]
    judge = _column(guesses.get(work_id) for work_id in ids)
    word = said.word.get(OVERALL, {}) if said else {}
    labels = _column(word[w].decision if w in word else None for w in ids)
    asked = np.array([said is not None and w in said.asked for w in ids], dtype=bool)
    chances = _column(said.asked.get(w) if said else None for w in ids)
    estimates, plan = None, None
    if not np.isnan(labels).all():
        estimates = _estimates(tasks, judge, labels, np.array(pays, dtype=np.float64), asked, chances)
    if width is not None and ids and sum(pays):
        drawn = seed_of(digest({"labels": model, "seed": seed, "known": int((~np.isnan(labels)).sum())}))
        plan = plan_labels(judge, width, weights=pays, labels=labels, seed=drawn)
    keys = tuple((row.candidate.task_id, row.candidate.deliverable) for row in made)
    accepted = [bool(row.accepted) for row in made]
    decided = sum(pay for pay, yes in zip(pays, accepted, strict=True) if yes)
    return Labelled(model, ids, keys, sum(pays), decided, sum(accepted), labels, len(rows) - len(made), estimates, plan)


def _estimates(
    tasks: NDArray[np.intp],
    judge: Floats,
    labels: Floats,
    pays: Floats,
    asked: NDArray[np.bool_],
    chances: Floats,
) -> Estimates:
    told = None if np.isnan(chances[asked]).any() else np.where(asked, chances, chances[asked].min())
    revenue, images, revenue_at_large, images_at_large = (
        prediction_powered(tasks, judge, labels, weights=weights, probabilities=told, asked=asked, over=over)
        for over in ("these orders", "orders like these")
        for weights in (pays if pays.any() else None, None)
    )
    return Estimates(revenue, images, revenue_at_large, images_at_large)


def _column(values: Any) -> Floats:
    return np.array([np.nan if value is None else float(value) for value in values], dtype=np.float64)


def write_questions(found: Labelling, path: Path) -> int:
    """Writes a line for every image to be asked about, and for every one that has its label already, and returns how
    many are to be asked about. UserError where the file is there: it may hold somebody's labels."""
    refuse_existing(path)
    lines, n = [], 0
    for model in found.models:
        if model.plan is None:
            continue
        wanted = {int(i) for i in model.plan.ask}
        n += len(wanted)
        for i, (task_id, deliverable) in enumerate(model.keys):
            known = not np.isnan(model.labels[i])
            if known or i in wanted:
                line = {
                    "model": model.model,
                    "task_id": task_id,
                    "deliverable": deliverable,
                    "probability": float(model.plan.probabilities[i]),
                    "overall": bool(model.labels[i]) if known else None,
                }
                lines.append(json.dumps(line, ensure_ascii=False))
    write_atomic(path, "".join(f"{line}\n" for line in lines).encode())
    return n


def refuse_existing(path: Path) -> None:
    """UserError where there is a file already."""
    with storage_errors(path):
        there = path.exists() or path.is_symlink()
    if there:
        raise UserError(f"{path} is there already and may hold labels: give the name of a new file")
