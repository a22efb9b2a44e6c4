"""The suite `servimage`, and the base of suites in its form."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from local_bench.core.errors import ResultFileError, UserError
from local_bench.core.types import Task
from local_bench.suites.base import ImageFile, ImageKey, Suite, images_by_task
from local_bench.suites.published import Published, ScoreOptions, prices_of
from local_bench.suites.run_results import ImageResult, RunResults
from local_bench.suites.servimage import published as numbers
from local_bench.suites.servimage import questions, tasks
from local_bench.suites.servimage import results as official


class DesignTasks(Suite):
    """Paid design tasks from a task file, with ServImage's questions, scores, settlement and result files."""

    scores_of_judge = questions.SCORES
    top_score = 5
    numbers_are_settlement = True
    layout = "servimage"
    paper = "local_bench.report.papers.contents:SERVIMAGE"
    exported_options = official.OPTIONS

    deliverables = staticmethod(questions.deliverables)
    scores = staticmethod(questions.scores)
    scores_of_made = staticmethod(questions.scores)
    questions = staticmethod(questions.questions)

    def scores_of_points(self, task: Task, met: Sequence[bool]) -> dict[str, float]:
        return {questions.BRF: 5 * sum(met) / len(met)} if met else {}

    def published(self, results: RunResults) -> dict[str, Published]:
        """The numbers of all models, with the cost per image if it is known."""
        return {"all": numbers.published(official.parts(results))}

    write_results = staticmethod(official.write)
    result_notes = staticmethod(official.notes)

    def find_images(self, folder: Path) -> Iterator[ImageFile]:
        return images_by_task(folder, "images")

    def read_annotations(
        self, files: Sequence[Path], images: Sequence[ImageResult]
    ) -> Iterator[tuple[ImageKey, dict[str, Any] | None]]:
        labelled, models, tasks = official.read_annotations(files)
        for image in labelled:
            labels = None if image.accepted is None else {"overall": image.accepted}
            yield (image.model, image.task_id, image.deliverable, 1), labels
        known = {name for image in images for name in (image.model, image.task.task_id)}
        if unknown := [name for name in (*tasks, *models) if name not in known]:  # on lines without an image
            raise ResultFileError(f"{', '.join(map(str, files))}: the run has no {unknown[0]!r}: remove its lines")


class ServImage(DesignTasks):
    """ServImage (Ji et al.)."""

    name = "servimage"
    title = "ServImage: paid design orders in three categories"
    licence = "see the benchmark's authors"
    source = "Ji et al., ServImage; FengxianJi/ServImage"
    lent = questions.LENT
    score_options = ("tasks", "scores", "costs", "api_prices", "sensitivity", "require_success")
    files = "its ServImage_Bench folder, one of its JSON files, or a task file with one object per line"

    read_tasks = staticmethod(tasks.read_tasks)
    deliverables = staticmethod(tasks.deliverables)
    enrichment_question = staticmethod(tasks.enrichment_question)
    rules_question = staticmethod(tasks.rules_question)

    def borrowing(self, task: Task) -> Task | None:
        return replace(task, evaluation_points=())  # other benchmarks' points are questions of another form

    def score(self, files: Sequence[Path], options: ScoreOptions) -> Published:
        if options.tasks is None:
            raise UserError("servimage needs the prices of its tasks: give the tasks with --tasks")
        if options.sensitivity and options.scores is None:
            raise UserError("--sensitivity varies the threshold on the judge's scores: give them with --scores")
        parts = official.read_parts(files, options.tasks, options.scores)
        usd, notes = prices_of(self.name, options, parts.models)
        settings = bool(options.require_success), bool(options.sensitivity)
        result = numbers.published(replace(parts, costs=usd), *settings)
        return replace(result, notes=[*result.notes, *notes])
