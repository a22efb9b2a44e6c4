"""The suite `idea-bench`."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from local_bench.core.errors import ResultFileError
from local_bench.core.types import Score, Task, Verdict
from local_bench.suites.base import ImageFile, ImageKey, Suite, images_by_task
from local_bench.suites.idea_bench import published as numbers
from local_bench.suites.idea_bench import questions, tasks
from local_bench.suites.idea_bench import results as official
from local_bench.suites.published import Published, ScoreOptions
from local_bench.suites.run_results import ImageResult, RunResults, TaskFigure


class IdeaBench(Suite):
    """IDEA-Bench (Liang et al.)."""

    name = "idea-bench"
    title = "IDEA-Bench: professional briefs in five categories, six questions per case"
    licence = "CC BY-NC 4.0"
    source = "Liang et al., IDEA-Bench; ali-vilab/IDEA-Bench"
    files = "its dataset folder, one folder per case"
    repeats = official.REPEATS
    scores_of_judge = questions.SCORES
    top_score = 1
    thresholds = questions.THRESHOLDS
    lent = questions.LENT
    of_tasks = (("uid", "text"), ("case_id", "text"), ("sheets", "array"))
    unsupported = "skip"
    layout = "idea-bench"
    paper = "local_bench.report.papers.contents:IDEA_BENCH"
    score_options = ("tasks",)
    scores_one_file = True
    annotation_protocol = "points"

    read_tasks = staticmethod(tasks.read_tasks)
    deliverables = staticmethod(questions.deliverables)
    fitted = staticmethod(questions.fitted)
    scores = staticmethod(questions.scores)
    enrichment_question = staticmethod(questions.enrichment_question)
    lent_scores = staticmethod(questions.lent_scores)
    points_for_people = staticmethod(questions.points_for_people)
    questions = staticmethod(questions.questions)

    def borrowing(self, task: Task) -> Task | None:
        sheet = {"given": task.input_images, "outputs": (1,), "card": False}
        points = task.evaluation_points
        return replace(task, own=task.own | {"sheets": [sheet] * len(points)}) if points else None

    def derived_scores(self, results: RunResults, lent: bool) -> Iterator[tuple[str, Score]]:
        """`idea_case`: the score of a case, in percent; only in its own runs, because its six questions have three
        levels, which the points of other tasks do not have."""
        yield from () if lent else numbers.case_scores(results).items()

    def scores_of_points(self, task: Task, met: Sequence[bool]) -> dict[str, float]:
        return {name: float(is_met) for name, is_met in zip(questions.SCORES, met, strict=True)}

    def annotated(self, results: RunResults, ratings: Mapping[str, Mapping[str, Any]]) -> RunResults:
        """An annotator's answer counts for all repeats of a question."""
        undecided = Verdict(None, "undecided", "")
        verdicts = {
            work_id: {
                (official.RUBRIC, k, repeat): undecided if met is None else Verdict({"met": bool(met)}, None, "")
                for k, met in enumerate(map(rating.get, questions.SCORES))
                for repeat in range(official.REPEATS)
            }
            for work_id, rating in ratings.items()
            if rating
        }
        images = [
            replace(
                i, task=replace(i.task, evaluation_points=self.points_for_people(i.task)), shown=i.work_id in ratings
            )
            for i in results.images
        ]
        return replace(results, images=images, verdicts=verdicts)

    def figures_by_task(self, results: RunResults) -> Iterator[TaskFigure]:
        """The overall score in percent, whose cases are weighted as its mean over categories and tasks."""
        tasks = {image.task.task_id: (image.task.category, image.task.own["uid"]) for image in results.images}
        cases, scores = Counter(tasks.values()), numbers.case_scores(results)
        of_category = Counter(category for category, _ in cases)
        of_first: dict[tuple[str, str], float | None] = {}
        for i in (image for image in results.images if image.attempt == 1):
            score = scores.get(i.work_id)
            of_first[i.model, i.task.task_id] = score.value if score else of_first.get((i.model, i.task.task_id))
        for (model, task_id), value in of_first.items():
            category, uid = tasks[task_id]
            weight = 1 / cases[category, uid] / of_category[category]
            yield TaskFigure("overall score", model, task_id, value, weight, 100)

    def published(self, results: RunResults) -> dict[str, Published]:
        return {model: numbers.published(rows) for model, rows in official.results_by_model(results).items()}

    write_results = staticmethod(official.write)

    def score(self, files: Sequence[Path], options: ScoreOptions) -> Published:
        """With the dataset's folder as `--tasks` also tasks outside the mini subset have a category."""
        rows, refused = official.read_results(files[0]), list[str]()
        if options.tasks is not None:
            categories = tasks.read_categories(options.tasks, refused.append)
            rows = [replace(row, category=categories.get(row.task_id)) for row in rows]
        result = numbers.published(rows)
        return replace(result, notes=[*refused, *result.notes])

    def find_images(self, folder: Path) -> Iterator[ImageFile]:
        return images_by_task(folder, "outputs")

    def read_annotations(
        self, files: Sequence[Path], images: Sequence[ImageResult]
    ) -> Iterator[tuple[ImageKey, dict[str, Any] | None]]:
        """One annotation per case, on its first image; each file has one model's results: NAME.csv."""
        cases = {(image.task.own["uid"], image.task.own["case_id"]): image.task.task_id for image in images}
        for file in files:
            scores: dict[str, dict[str, float]] = {}
            for row in official.read_results(file):
                task = cases.get((row.task_id, row.case_id))
                if task is None:
                    raise ResultFileError(
                        f"{file}: the run has no case {row.case_id} of task {row.task_id}: remove the row"
                    )
                answered = [score for score in row.scores if score is not None]
                of_case = scores.setdefault(task, {})
                if answered:
                    of_case[f"question_{row.question}"] = fmean(answered)
            for task, of_case in scores.items():
                yield (file.stem, task, 1, 1), of_case or None
