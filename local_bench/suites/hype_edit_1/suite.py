"""HYPE-EDIT-1: reference-based marketing edits, pass or fail, ten attempts each (sec. 4).

An attempt passes if every required change is made and everything else is preserved; with `judge.hype_usable` (our
addition, off by default) only if it also has no defect for which a client would return it. The judge of the benchmark's
repository derives both lists itself. This implementation gives the judge the task's checklist, written by a person or
extracted by a judge with the rubric `hype_checklist`; without one, the instruction and "everything else".
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import prod
from pathlib import Path
from typing import Any

from local_bench.core.errors import UserError
from local_bench.core.types import UNSUPPORTED, Deliverable, Question, Score, Task, Verdict
from local_bench.models.cards import Takes
from local_bench.settle.attempts import RETRY_CAP, expected_attempts_unbiased, pass_at_k_unbiased
from local_bench.suites.base import ImageFile, ImageKey, QuestionKey, Suite, images_by_task, score_of
from local_bench.suites.hype_edit_1 import published as numbers
from local_bench.suites.hype_edit_1 import results as official
from local_bench.suites.hype_edit_1 import tasks
from local_bench.suites.hype_edit_1.results import RATING
from local_bench.suites.published import Published, ScoreOptions, prices_of
from local_bench.suites.run_results import ImageResult, RunResults, TaskFigure

PASS = "pass"  # noqa: S105
PARTS = ("changes_made", "rest_preserved", "usable")
PASSED = "passed"
"""The field of the authors' prompt, which has one verdict for both parts."""
_ALL_ELSE = "Everything that the instruction does not ask to change."


class HypeEdit1(Suite):
    """HYPE-EDIT-1 (Chan and Allen)."""

    name = "hype-edit-1"
    title = "HYPE-EDIT-1: edits for marketing and design, pass or fail, ten attempts each"
    licence = "CC BY 4.0 (public tasks)"
    source = "Chan and Allen, HYPE-EDIT-1; sourceful-official/hype-edit-1-benchmark"
    files = "its public.json, with the tasks' images in the same folder"
    attempts = 10
    scores_of_judge = (PASS, RATING, *PARTS)
    top_score = 1
    thresholds = {PASS: 1.0}  # noqa: RUF012
    pass_fail = (PASS,)
    lent = {PASS: "hype_pass", RATING: "hype_rating"}  # noqa: RUF012
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

    def deliverables(self, task: Task) -> list[Deliverable]:
        """The one requested image; the generator receives the instruction verbatim."""
        return [Deliverable(task.task_id, 1, task.brief, task.input_images)]

    def fitted(self, task: Task, takes: Takes) -> list[Deliverable] | str:
        n = len(task.input_images)
        edits = takes.pictures and not takes.condition and "source" in takes.roles
        if n > takes.pictures or not edits:
            sees = f"{takes.pictures}" if edits else "no picture to edit"
            return f"{UNSUPPORTED}the edit is of {n} picture{'s' * (n > 1)}, and the model takes {sees}"
        return self.deliverables(task)

    def enrichment_question(self, task: Task) -> Question | None:
        """The question that requests the instruction as a checklist."""
        return None if "changes" in task.own else Question("hype_checklist", 0, (), (("instruction", task.brief),))

    def questions(
        self, task: Task, images: Mapping[int, str], order_swap: bool = False
    ) -> Iterator[tuple[QuestionKey, Question]]:
        """The one question about an attempt: its input images, then the result."""
        inputs = task.input_images
        slots = (
            ("instruction", task.brief),
            ("changes", _listed(task.own.get("changes") or [task.brief])),
            ("preservations", _listed(task.own.get("preservations") or [_ALL_ELSE])),
        )
        for deliverable, pixels in sorted(images.items()):
            roles = (*("source",) * len(inputs), "result")
            yield (deliverable, "hype_edit", 0, 0), Question("hype_edit", 0, (*inputs, pixels), slots, roles)

    def scores(self, task: Task, verdicts: Mapping[QuestionKey, Verdict]) -> dict[int, list[Score]]:
        """`pass`, 1 or 0; its parts, of which `usable` applies only if the rubric has that criterion; `rating`, the
        product of the parts' probabilities if the judge gives them, used to select the best of several attempts."""
        verdict = verdicts.get((1, "hype_edit", 0, 0))
        if verdict is None or verdict.answer is None:
            reason = "the judge was not reached" if verdict is None else verdict.unscored
            return {1: [Score(name, None, reason) for name in self.scores_of_judge]}
        answer = verdict.answer
        values = {name: value for name in PARTS if (value := verdict.value(name)) is not None}
        passed = Score(PASS, float(answer[PASSED] if PASSED in answer else all(answer[name] for name in values)))
        parts = [
            score_of(name, verdict, name) if name in values else Score(name, None, applies=False) for name in PARTS
        ]
        return {1: [passed, Score(RATING, prod(values.values()) if values else passed.value), *parts]}

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
                    yield TaskFigure(name, *of_task, float(value), (), widest, least, float(best))

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
        votes = {"n_raters": len(files), "n_open": len(undecided)} if options.raters else {}
        return replace(result, data=result.data | votes, notes=[*result.notes, *notes, *numbers.open_votes(undecided)])

    def find_images(self, folder: Path) -> Iterator[ImageFile]:
        return images_by_task(folder, "outputs", attempts=True)

    def read_annotations(
        self, files: Sequence[Path], images: Sequence[ImageResult]
    ) -> Iterator[tuple[ImageKey, dict[str, Any] | None]]:
        for row in official.read_judgements(files).rows:
            labels = None if row.passed is None else {PASS: row.passed, "overall": row.passed}
            yield (row.model, row.task_id, 1, row.attempt), labels


def _listed(sentences: list[str]) -> str:
    return "\n".join(f"{i}. {text}" for i, text in enumerate(sentences, 1))
