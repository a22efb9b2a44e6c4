"""Predictions of payment for the images of runs: by payment models, and by judges as payers (ServImage, fig. 4 b).

`judges.payment` has the model and knows no store; here its examples are read from one. A judge answers the zero-shot
question whether the client would pay. Predictions are files of their own, one JSON object a line; nothing in a run
changes.
"""

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from pydantic import Field

from local_bench.core import strictjson
from local_bench.core.errors import ImageError, UserError, is_failure
from local_bench.core.files import check_output, write_atomic
from local_bench.core.money import usd
from local_bench.core.types import Question, Score, Task, Verdict
from local_bench.core.yamlfile import Strict, check
from local_bench.judges.payment.data import CONCEPTS, HIGHEST, Example, PaymentConfig, TrainingSet, without_labels
from local_bench.runs.config import JudgeConfig
from local_bench.runs.judge import SaveInterval, judge_answers
from local_bench.runs.judge_factory import judge_spec, local_judge_devices, numerics_of
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import sets, thresholds_of, verdicts_of
from local_bench.runs.store import Candidate
from local_bench.settle.features import split_of, task_digest
from local_bench.suites.base import which_image

if TYPE_CHECKING:
    from local_bench.judges.payment.artefact import Card

# ---- files of predictions


class PredictionLine(Strict):
    """One line: what one source predicts for one image of a run."""

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
    used_in_training: bool = False
    """Whether the image's task trained or calibrated the predictor."""


def columns_of(row: Candidate) -> dict[str, Any]:
    """The fields of a line that name its image."""
    return {name: getattr(row, name) for name in ("work_id", "model", "task_id", "deliverable", "attempt")}


def write_predictions(lines: Iterable[PredictionLine], file: Path) -> None:
    """Write all lines, replacing the file at once."""
    text = "".join(json.dumps(line.model_dump(mode="json"), ensure_ascii=False) + "\n" for line in lines)
    write_atomic(file, text.encode())


def read_predictions(file: Path) -> dict[str, PredictionLine]:
    """The predictions of one source by work id, at least one. UserError names file, line and reason."""
    by_work_id: dict[str, PredictionLine] = {}
    name = ""
    hint = "give a file written by `local-bench predictor apply` or `predictor zero-shot`"
    for _, where, data in strictjson.objects(file, UserError, "a prediction", missing=hint):
        line = check(data, PredictionLine, where, error=UserError)
        if line.work_id in by_work_id:
            raise UserError(f"{where}: the image has a prediction on an earlier line: keep one of them")
        if name and line.source != name:
            raise UserError(f"{where}: it is of {line.source!r} and the first line of {name!r}: give a file for each")
        by_work_id[line.work_id], name = line, line.source
    if not by_work_id:
        raise UserError(f"{file} has no predictions: {hint}")
    return by_work_id


# ---- payment models

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
    examples = []
    for (task_id, _, _), made in sets(row for row in run.store.images() if row[-1]).items():
        images = {number: sha for number, (_, sha) in made.items() if sha}
        answers = {(i, *key): v for i, (work_id, _) in made.items() for key, v in verdicts.get(work_id, {}).items()}
        for number, (work_id, _) in made.items():
            of_image, accepted = scores.get(work_id, {}), float(decided.get(work_id, math.nan))
            examples.append(example(tasks[task_id], work_id, number, images, of_image, answers, accepted, seed))
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
    values = [None if (score := scores.get(name)) is None else score.value for name in CONCEPTS]
    concepts = tuple(math.nan if value is None else min(max(float(value), 0.0), HIGHEST) for value in values)
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


def train_payment_model(
    runs: Sequence[RunDir],
    decided: Sequence[Mapping[str, bool]],
    config: PaymentConfig,
    out: Path,
    report: Callable[[str], None],
) -> "Card":
    """Train on the images of `runs` with the annotators' decisions (work id -> accepted) of each, and write the model
    to the folder `out`; the same call continues an interrupted training. UserError as
    `judges.payment.training.train`, before weights are loaded."""
    from local_bench.judges.payment.training import train

    *others, last = [run.image_store.load_any for run in runs]

    def load(pixels_sha256: str) -> Image.Image:
        for load_any in others:
            with suppress(ImageError):
                return load_any(pixels_sha256)
        return last(pixels_sha256)

    of_runs = zip(runs, decided, strict=True)
    examples = tuple(one for run, decisions in of_runs for one in examples_of(run, decisions, config.seed))
    return train(TrainingSet(examples, MEASURED), load, config, out, report=report)


def model_log_odds(kind: str, runs: Sequence[RunDir], folder: Path) -> dict[str, float] | None:
    """Work id -> log-odds of payment, which the predictor in `folder` calibrates, for the images of `runs`, annotated
    or not, that have a prediction; None unless `kind` is `servimage`. UserError if the model does not fit."""
    from local_bench.judges.payment.artefact import load

    if kind != "servimage":
        return None
    model = load(folder / MODEL)
    if model.card.measured_names not in ([], list(MEASURED)):
        raise UserError(f"{folder / MODEL} reads other measured scores than this release has: train it again")
    return {
        prediction.work_id: prediction.log_odds
        for run in runs
        for prediction in model.predict(without_labels(examples_of(run, {})), run.image_store.load_any)
        if prediction.log_odds is not None
    }


# ---- judges as payers

RUBRIC, RUBRIC_WITH_SCORES = "payment", "payment_scores"
FIELD = "pays"
CUT = 0.5


def payment_question(task: Task, deliverable: int, image: str, scores: Mapping[str, Score | None] | None) -> Question:
    """The question about one image; with `scores` (by name) they are in the prompt."""
    images = (*([task.source_sha256] if task.source_sha256 else []), *task.reference_sha256)
    roles = ("delivered", *["source"] * bool(task.source_sha256), *["reference"] * len(task.reference_sha256))
    n = len(task.deliverables)
    price = f"{usd(task.price_micro_usd)} for the whole order of {n} image{'s' if n > 1 else ''}"
    slots = [("title", task.title), ("brief", task.brief), ("price", price)]
    slots.append(("deliverable", which_image(task, deliverable)))
    if scores is not None:
        lines = []
        for name, score in scores.items():
            value = "unknown" if score is None or score.value is None else f"{score.value:.2f}"
            lines.append(f"{name}: {value if score is None or score.applies else 'does not apply'}")
        slots.append(("scores", "\n".join(lines)))
    rubric = RUBRIC if scores is None else RUBRIC_WITH_SCORES
    return Question(rubric, 0, (image, *images), tuple(slots), roles)


def judge_payment(
    run: RunDir, config: JudgeConfig, with_scores: bool, out: Path, progress: Progress
) -> tuple[list[PredictionLine], int]:
    """Send the question about every image of `run` to the judge and write its answers to `out`; answers that `out` has
    are kept. Returns the lines of the file, in the plan's order, and how many it already had. UserError if `out` has
    other predictions; ServerError if the judge is unavailable."""
    check_output(out)
    devices = local_judge_devices(run.config.engine)
    spec = judge_spec(config, devices[0])
    numerics = numerics_of(config, devices)
    source = f"{config.label}, zero-shot, {config.protocol}{', with scores' if with_scores else ''}"
    rows = {row.work_id: row for row in run.store.candidates() if row.image is not None}
    questions = _questions(run, list(rows.values()), with_scores)
    ids = {work_id: spec.question_id(question, numerics) for work_id, question in questions.items()}
    answers = _existing(out, ids)
    n_existing = len(answers)
    faults = run.image_store.faulty(
        (sha for question in questions.values() for sha in question.images), run.config.engine.io_workers, either=True
    )
    pending: dict[str, Question] = {}
    for work_id, question in questions.items():
        fault = next((faults[sha] for sha in question.images if sha in faults), None)
        if fault is not None:
            progress.note(f"{fault.sentence}; the image has no prediction")
        elif work_id not in answers:
            pending[work_id] = question
    pace, log, load = SaveInterval(), out.with_name(f"{out.name}.log"), run.image_store.load_any

    def lines() -> list[PredictionLine]:
        return [answers[work_id] for work_id in questions if work_id in answers]

    try:
        received = judge_answers(config, spec, devices, pending, load, log, progress, "would the client pay?")
        with closing(received):
            for work_id, verdict in received:
                probability = verdict.value(FIELD)
                answers[work_id] = PredictionLine(
                    **columns_of(rows[work_id]),
                    probability=probability,
                    accepted=None if probability is None else probability >= CUT,
                    unscored=verdict.unscored,
                    source=source,
                    question_id=ids[work_id],
                )
                pace.save(lambda: write_predictions(lines(), out))
    finally:  # answers received so far are kept if the judge fails
        if answers:
            write_predictions(lines(), out)
    return lines(), n_existing


def _questions(run: RunDir, rows: list[Candidate], with_scores: bool) -> dict[str, Question]:
    tasks = {task.task_id: task for task in run.store.tasks()}
    scores = run.store.scores_by_candidate() if with_scores else {}
    if with_scores and not scores:
        raise UserError(
            f"{run.path} has no scores to put into the question: judge it first, or leave --with-scores out"
        )
    names = list(thresholds_of(run.config))
    questions = {}
    for row in rows:
        assert row.image is not None
        of_image = {name: scores.get(row.work_id, {}).get(name) for name in names} if with_scores else None
        questions[row.work_id] = payment_question(tasks[row.task_id], row.deliverable, row.image, of_image)
    return questions


def _existing(out: Path, ids: Mapping[str, str]) -> dict[str, PredictionLine]:
    """The lines of `out`. UserError if they are not answers to these questions."""
    if not out.exists():
        return {}
    existing = read_predictions(out)
    if any(ids.get(work_id) != line.question_id for work_id, line in existing.items()):
        raise UserError(
            f"{out} has predictions of another judge, question, machine or run: give a new file, or remove it"
        )
    return {work_id: line for work_id, line in existing.items() if not is_failure(line.unscored)}
