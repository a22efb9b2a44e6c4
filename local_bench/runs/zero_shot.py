"""Judges as payers: whether the client would pay, as a zero-shot question about a run's images (ServImage, fig. 4 b).

The answers are predictions in a file of their own; nothing in the run changes.
"""

from collections.abc import Mapping
from contextlib import closing
from pathlib import Path

from local_bench.core.environment import isolate
from local_bench.core.errors import UserError, is_failure
from local_bench.core.files import check_output
from local_bench.core.money import usd
from local_bench.core.types import Question, Score, Task
from local_bench.runs.acceptance import thresholds_of
from local_bench.runs.judge import SaveInterval, judge_answers
from local_bench.runs.judge_config import JudgeConfig
from local_bench.runs.judge_factory import judge_spec, numerics_of
from local_bench.runs.prediction_file import PredictionLine, columns_of, read_predictions, write_predictions
from local_bench.runs.progress import Progress
from local_bench.runs.rundir import RunDir
from local_bench.runs.store import CandidateRow
from local_bench.suites.servimage.questions import which_image

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
        slots.append(("scores", "\n".join(f"{name}: {_shown(score)}" for name, score in scores.items())))
    rubric = RUBRIC if scores is None else RUBRIC_WITH_SCORES
    return Question(rubric, 0, (image, *images), tuple(slots), roles)


def _shown(score: Score | None) -> str:
    if score is not None and not score.applies:
        return "does not apply"
    return "unknown" if score is None or score.value is None else f"{score.value:.2f}"


def judge_payment(
    run: RunDir, config: JudgeConfig, with_scores: bool, out: Path, progress: Progress
) -> tuple[list[PredictionLine], int]:
    """Send the question about every image of `run` to the judge and write its answers to `out`; answers that `out` has
    are kept. Returns the lines of the file, in the plan's order, and how many it already had. UserError if `out` has
    other predictions; ServerError if the judge is unavailable."""
    check_output(out)
    isolate()
    from local_bench.generators.numerics import set_determinism
    from local_bench.runs.executors.local import local_judge_devices

    set_determinism(run.config.engine.threads)
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
    pace = SaveInterval()

    def lines() -> list[PredictionLine]:
        return [answers[work_id] for work_id in questions if work_id in answers]

    try:
        log, load = out.with_name(f"{out.name}.log"), run.image_store.load_any
        with closing(
            judge_answers(config, spec, devices, pending, load, log, progress, "would the client pay?")
        ) as answered:
            for work_id, verdict in answered:
                probability = verdict.value(FIELD)
                answers[work_id] = PredictionLine(
                    **columns_of(rows[work_id]),
                    probability=probability,
                    accepted=None if probability is None else probability >= CUT,
                    unscored=verdict.unscored,
                    source=source,
                    question_id=ids[work_id],
                )
                if pace.due:
                    with pace.saving():
                        write_predictions(lines(), out)
    finally:  # answers received so far are kept if the judge fails
        if answers:
            write_predictions(lines(), out)
    return lines(), n_existing


def _questions(run: RunDir, rows: list[CandidateRow], with_scores: bool) -> dict[str, Question]:
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
    existing = dict(read_predictions(out).by_work_id)
    if any(ids.get(work_id) != line.question_id for work_id, line in existing.items()):
        raise UserError(
            f"{out} has predictions of another judge, question, machine or run: give a new file, or remove it"
        )
    return {work_id: line for work_id, line in existing.items() if not is_failure(line.unscored)}
