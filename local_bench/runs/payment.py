"""Payment models on runs: examples from run directories and annotations, training on them, predictions of runs.

`judges.payment` has the model and knows no store; here its examples are read from one.
"""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image

from local_bench.core.errors import ImageError, UserError
from local_bench.core.types import Score, Task, Verdict
from local_bench.judges.payment.data import CONCEPTS, HIGHEST, Example, Load, PaymentConfig, TrainingSet, without_labels
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import verdicts_of
from local_bench.runs.store import CandidateRow
from local_bench.settle.predictors.splits import split_of, task_digest

if TYPE_CHECKING:
    from local_bench.judges.payment.artefact import Card

MODEL = "model"
"""The payment model's folder in that of its predictor."""
POINTS = ("points_own", "points_met", "points_lowest", "points_all")
"""Inputs from the judge's answers to each evaluation point: the mean over this image; over the best image of each point
their mean, their minimum and their product. All from 0 to 1."""
MEASURED = (*CONCEPTS, *POINTS)
"""The inputs of a payment model with `measured`."""
_BRF = "brf"
Answers = Mapping[tuple[int, str, int, int], Verdict]
"""(deliverable, rubric, point, repeat) -> a judge's verdict."""


def examples_of(run: RunDir, decided: Mapping[str, bool], seed: int = 0) -> list[Example]:
    """One example per image of `run`; `decided` has the annotators' decisions by work id.

    Concepts are the run's judge scores named in CONCEPTS; measured inputs also have the per-point answers of the run's
    first judge.
    """
    tasks = {task.task_id: task for task in run.store.tasks()}
    scores = run.store.scores_by_candidate("judge")
    judges = sorted(run.store.json_meta("judges") or {})
    verdicts = verdicts_of(run.store, judges[0]) if judges else {}
    groups: dict[tuple[str, str, int], list[CandidateRow]] = {}
    for row in run.store.candidates():
        if row.image is not None:
            groups.setdefault((row.task_id, row.model, row.attempt), []).append(row)
    examples = []
    for (task_id, _, _), rows in groups.items():
        answers = {
            (row.deliverable, *key): verdict for row in rows for key, verdict in verdicts.get(row.work_id, {}).items()
        }
        images = {row.deliverable: row.image for row in rows if row.image is not None}
        for row in rows:
            accepted = decided.get(row.work_id)
            examples.append(
                example(
                    tasks[task_id],
                    row.work_id,
                    row.deliverable,
                    images,
                    scores.get(row.work_id, {}),
                    answers,
                    math.nan if accepted is None else float(accepted),
                    seed,
                )
            )
    return examples


def example(
    task: Task,
    work_id: str,
    deliverable: int,
    images: Mapping[int, str],
    scores: Mapping[str, Score],
    answers: Answers,
    accepted: float,
    seed: int = 0,
) -> Example:
    """The example of one image; `images` has one model's images of the task by deliverable, as pixel digests."""
    concepts = tuple(_concept(scores.get(name)) for name in CONCEPTS)
    task_id = task_digest(task)
    return Example(
        work_id=work_id,
        task_id=task_id,
        split=split_of(task_id, seed),
        image=images[deliverable],
        title=task.title,
        brief=task.brief,
        deliverable=task.deliverables[deliverable - 1],
        points=task.evaluation_points,
        price_micro_usd=task.price_micro_usd,
        concepts=concepts,
        accepted=accepted,
        source=task.source_sha256,
        references=task.reference_sha256,
        siblings=tuple(sha for i, sha in sorted(images.items()) if i != deliverable),
        measured=(*concepts, *point_inputs(len(task.evaluation_points), deliverable, sorted(images), answers)),
    )


def point_inputs(n_points: int, deliverable: int, deliverables: Sequence[int], answers: Answers) -> tuple[float, ...]:
    """(4,) in the order of POINTS; NaN where there is no answer."""

    def met(point: int, number: int) -> float | None:
        verdict = answers.get((number, _BRF, point, 0))
        return None if verdict is None else verdict.value("met")

    own_values = [value for k in range(n_points) if (value := met(k, deliverable)) is not None]
    every = [[value for i in deliverables if (value := met(k, i)) is not None] for k in range(n_points)]
    best = [max(values) for values in every if values]
    if not own_values or len(best) < n_points:
        return (math.nan,) * len(POINTS)
    return sum(own_values) / len(own_values), sum(best) / len(best), min(best), math.prod(best)


def _concept(score: Score | None) -> float:
    if score is None or score.value is None:
        return math.nan
    return min(max(float(score.value), 0.0), HIGHEST)


def images_of(runs: Sequence[RunDir]) -> Load:
    """Loads images and inputs of several runs by pixel digest. Raises ImageError."""
    *others, last = [run.image_store.load_any for run in runs]

    def load(pixels_sha256: str) -> Image.Image:
        for load_any in others:
            with suppress(ImageError):
                return load_any(pixels_sha256)
        return last(pixels_sha256)

    return load


def train_payment_model(
    runs: Sequence[RunDir],
    decided: Sequence[Mapping[str, bool]],
    config: PaymentConfig,
    out: Path,
    *,
    device: str = "auto",
    report: Callable[[str], None] = lambda text: None,
) -> "Card":
    """Train on the images of `runs` with the annotators' decisions (work id -> accepted) of each, and write the model
    to the folder `out`; the same call continues an interrupted training. UserError as
    `judges.payment.training.train`, before weights are loaded."""
    from local_bench.judges.payment.training import train

    of_runs = zip(runs, decided, strict=True)
    examples = tuple(one for run, decisions in of_runs for one in examples_of(run, decisions, config.seed))
    return train(TrainingSet(examples, MEASURED), images_of(runs), config, out, device=device, report=report)


def log_odds_of(runs: Sequence[RunDir], artefact: Path, *, device: str = "auto") -> dict[str, float]:
    """Work id -> log-odds of payment, for the images of `runs`, annotated or not, that have a prediction. UserError if
    the artefact does not fit."""
    from local_bench.judges.payment.artefact import load

    model = load(artefact, device=device)
    if model.card.measured_names not in ([], list(MEASURED)):
        raise UserError(f"{artefact} reads other measured scores than this release has: train it again")
    return {
        prediction.work_id: prediction.log_odds
        for run in runs
        for prediction in model.predict(without_labels(examples_of(run, {})), run.image_store.load_any)
        if prediction.log_odds is not None
    }


def model_log_odds(kind: str, runs: Sequence[RunDir], folder: Path) -> dict[str, float] | None:
    """The log-odds that a trained predictor in `folder` calibrates: None unless `kind` is `servimage`."""
    return log_odds_of(runs, folder / MODEL) if kind == "servimage" else None


def is_main_process() -> bool:
    """Whether this is the process that writes files and prints, in a training started by `accelerate launch`."""
    return os.environ.get("RANK", "0") == "0"
