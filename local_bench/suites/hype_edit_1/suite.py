"""The suite `hype-edit-1`."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from local_bench.core.errors import UserError
from local_bench.core.types import Task
from local_bench.settle.attempts import RETRY_CAP, expected_attempts_unbiased, pass_at_k_unbiased
from local_bench.suites.base import ImageFile, ImageKey, Suite, images_by_task
from local_bench.suites.hype_edit_1 import published as numbers
from local_bench.suites.hype_edit_1 import results as official
from local_bench.suites.hype_edit_1 import tasks
from local_bench.suites.published import Published, ScoreOptions, prices_of
from local_bench.suites.run_results import ImageResult, RunResults, TaskFigure


class HypeEdit1(Suite):
    """HYPE-EDIT-1 (Chan and Allen)."""

    name = "hype-edit-1"
    title = "HYPE-EDIT-1: edits for marketing and design, pass or fail, ten attempts each"
    licence = "CC BY 4.0 (public tasks)"
    source = "Chan and Allen, HYPE-EDIT-1; sourceful-official/hype-edit-1-benchmark"
    files = "its public.json, with the tasks' images in the same folder"
    attempts = tasks.ATTEMPTS
    scores_of_judge = tasks.SCORES
    top_score = 1
    thresholds = tasks.THRESHOLDS
    pass_fail = tasks.PASS_FAIL
    lent = tasks.LENT
    of_tasks = (("dataset", "text"),)
    unsupported = "skip"
    layout = "hype-edit-1"
    paper = "local_bench.report.papers.contents:HYPE_EDIT_1"
    tasks_differ = True
    exported_options = official.OPTIONS
    score_options = (
        *("scores", "costs", "api_prices", "sensitivity"),
        *("review_usd_per_hour", "review_seconds", "retry_cap", "raters"),
    )
    annotation_protocol = "pass-fail"

    read_tasks = staticmethod(tasks.read_tasks)
    deliverables = staticmethod(tasks.deliverables)
    fitted = staticmethod(tasks.fitted)
    scores = staticmethod(tasks.scores)
    enrichment_question = staticmethod(tasks.enrichment_question)
    questions = staticmethod(tasks.questions)

    def borrowing(self, task: Task) -> Task | None:
        return task if task.source_sha256 is not None else None

    def figures_by_task(self, results: RunResults) -> Iterator[TaskFigure]:
        """Unbiased pass@4 and expected attempts."""
        accepted: dict[tuple[str, str], list[bool | None]] = {}
        for image in results.images:
            accepted.setdefault((image.model, image.task.task_id), []).append(image.accepted)
        tries = "expected attempts", expected_attempts_unbiased, 1, RETRY_CAP - 1
        for of_task, attempts in accepted.items():
            n, counts = len(attempts), (attempts.count(True), len(attempts) - attempts.count(False))
            for name, estimator, least, widest in ((f"pass@{RETRY_CAP}", pass_at_k_unbiased, 0, 1), tries):
                value, best = (estimator(n, c, RETRY_CAP) for c in counts)
                if value is not None and best is not None:
                    yield TaskFigure(name, *of_task, float(value), 1.0, widest, least, float(best))

    def published(self, results: RunResults) -> dict[str, Published]:
        """The numbers of all models in the benchmark's form; with the cost per attempt if it is known."""
        judged, costs = official.judgements(results.images), results.usd_per_image or None
        if not judged.rows:
            return {}
        return {"all": numbers.published(judged, costs, numbers.Review(), official.ratings(results.images))}

    write_results = staticmethod(official.write)

    def score(self, files: Sequence[Path], options: ScoreOptions) -> Published:
        review = numbers.review_of(options)
        judgements, undecided = official.read_raters(files) if options.raters else (official.read_judgements(files), [])
        usd, notes = prices_of(self.name, options, judgements.models)
        if options.sensitivity and usd is None:
            raise UserError("--sensitivity varies the effective cost: give --costs or --api-prices")
        ratings = None if options.scores is None else official.read_attempt_scores(options.scores)
        result = numbers.published(judgements, usd, review, ratings, bool(options.sensitivity))
        votes = numbers.open_votes(len(files), undecided) if options.raters else Published({}, [])
        return replace(result, data=result.data | votes.data, notes=[*result.notes, *notes, *votes.notes])

    def find_images(self, folder: Path) -> Iterator[ImageFile]:
        return images_by_task(folder, "outputs", attempts=True)

    def read_annotations(
        self, files: Sequence[Path], images: Sequence[ImageResult]
    ) -> Iterator[tuple[ImageKey, dict[str, Any] | None]]:
        for row in official.read_judgements(files).rows:
            labels = None if row.passed is None else {tasks.PASS: row.passed, "overall": row.passed}
            yield (row.model, row.task_id, 1, row.attempt), labels
