"""IDEA-Bench: briefs in five categories, with or without input images, for one or several images; six yes-or-no
questions per case.

Each question is repeated three times with one collage (sec. 3.3.2). A model receives the brief verbatim and its input
images. A case is not supported (a dash in table 2) if it has more input images than the model takes, or requests
several images at once, which no family here generates. If the case has rephrased prompts, such a model receives these
instead, one per image and without input images (the paper's dagger).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from local_bench.core.errors import ResultFileError
from local_bench.core.types import UNSUPPORTED, Collage, Deliverable, Question, Score, Task, Verdict
from local_bench.models.cards import Takes
from local_bench.suites.base import ImageFile, ImageKey, QuestionKey, Suite, images_by_task
from local_bench.suites.idea_bench import published as numbers
from local_bench.suites.idea_bench import results as official
from local_bench.suites.idea_bench import tasks
from local_bench.suites.idea_bench.results import QUESTIONS, REPEATS, RUBRIC
from local_bench.suites.published import Published, ScoreOptions
from local_bench.suites.run_results import ImageResult, RunResults, TaskFigure

MET = "met"
SCORES = tuple(f"question_{k}" for k in range(1, QUESTIONS + 1))


class IdeaBench(Suite):
    """IDEA-Bench (Liang et al.)."""

    name = "idea-bench"
    title = "IDEA-Bench: professional briefs in five categories, six questions per case"
    licence = "CC BY-NC 4.0"
    source = "Liang et al., IDEA-Bench; ali-vilab/IDEA-Bench"
    files = "its dataset folder, one folder per case"
    repeats = REPEATS
    scores_of_judge = SCORES
    top_score = 1
    thresholds = dict.fromkeys(SCORES, 0.5)
    """Accepted if at least half of the repeats of each of the six questions are answered yes; the published score is
    hierarchical (`published`)."""
    lent = {MET: "idea_met"}  # noqa: RUF012
    of_tasks = (("uid", "text"), ("case_id", "text"), ("sheets", "array"))
    unsupported = "skip"
    derived = numbers.CASE
    layout = "idea-bench"
    paper = "local_bench.report.papers.contents:IDEA_BENCH"
    score_options = ("tasks",)
    scores_one_file = True
    annotation_protocol = "points"

    read_tasks = staticmethod(tasks.read_tasks)

    def deliverables(self, task: Task) -> list[Deliverable]:
        """The images that a case requests, each with the whole brief as prompt."""
        return [Deliverable(task.task_id, i, task.brief, task.reference_sha256) for i in _numbers(task)]

    def fitted(self, task: Task, takes: Takes) -> list[Deliverable] | str:
        beyond = _beyond(task, takes)
        if beyond is None:
            return self.deliverables(task)
        prompts = task.own.get("prompts")
        if prompts is None or not takes.text_alone or takes.condition:
            return f"{UNSUPPORTED}{beyond}"
        return [Deliverable(task.task_id, i, prompt) for i, prompt in enumerate(prompts, 1)]

    def enrichment_question(self, task: Task) -> Question | None:
        """The question that requests the brief as prompts for text-only models."""
        inputs = task.reference_sha256
        if "prompts" in task.own or (not inputs and len(task.deliverables) == 1):
            return None
        slots = (("brief", task.brief), ("count", str(len(task.deliverables))))
        return Question("rephrase", 0, inputs, slots, ("input",) * len(inputs))

    def questions(
        self, task: Task, images: Mapping[int, str], order_swap: bool = False
    ) -> Iterator[tuple[QuestionKey, Question]]:
        """The six questions, three times each, about collages of the outputs, keyed to the first of these."""
        first = min(images, default=1)
        for k, (text, collage) in enumerate(zip(task.evaluation_points, task.own["sheets"], strict=True)):
            outputs = [images[i] for i in collage["outputs"] if i in images]
            if not outputs:
                continue
            images_shown = () if collage["card"] else (*collage["given"], *outputs)
            layout = {"count": len(outputs)} if collage["card"] else {"rows": (len(collage["given"]), len(outputs))}
            for repeat in range(REPEATS):
                question = Question(RUBRIC, k, images_shown, (("question", text),), (), repeat, Collage(**layout))
                yield (first, RUBRIC, k, repeat), question

    def scores(self, task: Task, verdicts: Mapping[QuestionKey, Verdict]) -> dict[int, list[Score]]:
        """For each question the fraction of its repeats that were answered yes, for all images of a case."""
        by_question = []
        for k, name in enumerate(SCORES):
            repeats = [
                next((v for i in _numbers(task) if (v := verdicts.get((i, RUBRIC, k, repeat)))), None)
                for repeat in range(REPEATS)
            ]
            values = [verdict.value("met") for verdict in repeats if verdict is not None]
            answered = [value for value in values if value is not None]
            if len(answered) == REPEATS:
                by_question.append(Score(name, fmean(answered)))
            else:
                by_question.append(Score(name, None, f"{REPEATS - len(answered)} of {REPEATS} askings have no answer"))
        return dict.fromkeys(_numbers(task), by_question)

    def lent_scores(self, task: Task, verdicts: Mapping[QuestionKey, Verdict]) -> list[Score]:
        """The fraction of points that the image meets, each the mean over its repeats, in [0, 1]."""
        values = []
        for k in range(len(task.evaluation_points)):
            repeats = [verdicts.get((1, RUBRIC, k, repeat)) for repeat in range(REPEATS)]
            answered = [value for v in repeats if v is not None and (value := v.value("met")) is not None]
            if len(answered) < len(repeats):
                return [Score(MET, None, f"{len(repeats) - len(answered)} askings of point {k + 1} have no answer")]
            values.append(fmean(answered))
        return [Score(MET, fmean(values))]

    def points_for_people(self, task: Task) -> tuple[str, ...]:
        """The questions of the case's eval.json (sec. 3.3.1); if it has none, the judge's, each preceded by the images
        of its collage, since annotators see the images of the case instead."""
        sheets = zip(task.evaluation_points, task.own["sheets"], strict=True)
        return tuple(task.own.get(tasks.FOR_PEOPLE, ())) or tuple(
            _collage_text(task, sheet) + text for text, sheet in sheets
        )

    def borrowing(self, task: Task) -> Task | None:
        sheet = {"given": task.input_images, "outputs": (1,), "card": False}
        points = task.evaluation_points
        return replace(task, own=task.own | {"sheets": [sheet] * len(points)}) if points else None

    def derived_scores(self, results: RunResults, lent: bool) -> Iterator[tuple[str, Score]]:
        """`idea_case`: the score of a case, in percent; only in its own runs, because its six questions have three
        levels, which the points of other tasks do not have."""
        yield from () if lent else numbers.case_scores(results).items()

    def scores_of_points(self, task: Task, met: Sequence[bool]) -> dict[str, float]:
        return {name: float(is_met) for name, is_met in zip(SCORES, met, strict=True)}

    def annotated(self, results: RunResults, ratings: Mapping[str, Mapping[str, Any]]) -> RunResults:
        """An annotator's answer counts for all repeats of a question."""
        undecided = Verdict(None, "undecided", "")
        verdicts = {
            work_id: {
                (RUBRIC, k, repeat): undecided if met is None else Verdict({"met": bool(met)}, None, "")
                for k, met in enumerate(map(rating.get, SCORES))
                for repeat in range(REPEATS)
            }
            for work_id, rating in ratings.items()
            if rating
        }
        images = []
        for image in results.images:
            task = replace(image.task, evaluation_points=self.points_for_people(image.task))
            images.append(replace(image, task=task, shown=image.work_id in ratings))
        return replace(results, images=images, verdicts=verdicts)

    def figures_by_task(self, results: RunResults) -> Iterator[TaskFigure]:
        """The overall score in percent, a mean over categories and tasks."""
        tasks = {image.task.task_id: (image.task.category, image.task.own["uid"]) for image in results.images}
        scores, of_first = numbers.case_scores(results), dict[tuple[str, str], float | None]()
        for i in (image for image in results.images if image.attempt == 1):
            score = scores.get(i.work_id)
            of_first[i.model, i.task.task_id] = score.value if score else of_first.get((i.model, i.task.task_id))
        for (model, task_id), value in of_first.items():
            yield TaskFigure("overall score", model, task_id, value, tasks[task_id], 100)

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
        """One annotation per case, on its first image that was made; each file has one model's results: NAME.csv."""
        cases = {(image.task.own["uid"], image.task.own["case_id"]): image.task.task_id for image in images}
        made = [(i.model, i.task.task_id, i.deliverable) for i in images if i.attempt == 1 and i.pixels_sha256]
        first = {(model, task): number for model, task, number in sorted(made, reverse=True)}
        for file in files:
            rows, scores = official.read_results(file), dict[str, dict[str, float]]()
            if file.stem not in {image.model for image in images}:
                raise ResultFileError(f"{file}: the run has no model {file.stem!r}: name the file after its model")
            for row in rows:
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
                yield (file.stem, task, first.get((file.stem, task), 1), 1), of_case or None


def _collage_text(task: Task, collage: Mapping[str, Any]) -> str:
    """The content of a collage of several images, by the numbers that annotators see, as one line."""
    if collage["card"]:
        return "[About an image that shows the number of results as a digit]\n"
    number = {sha: i for i, sha in enumerate(task.reference_sha256, 1)}
    references = [number[sha] for sha in collage["given"] if sha in number]
    rows = [
        f"{name} {', '.join(map(str, numbers))}"
        for name, numbers in (("reference", references), ("image", collage["outputs"]))
        if numbers
    ]
    several = len(references) + len(collage["outputs"]) > 1
    return f"[About {' in the upper row, '.join(rows)}{' in the lower row' * (len(rows) - 1)}]\n" if several else ""


def _numbers(task: Task) -> range:
    return range(1, len(task.deliverables) + 1)


def rephrased(task: Task, prompt: str) -> bool:
    """Whether a model with this prompt received one of the case's rephrased prompts instead of the brief."""
    return prompt != task.brief and prompt in task.own.get("prompts", ())


def _beyond(task: Task, takes: Takes) -> str | None:
    n = len(task.reference_sha256)
    if takes.condition:
        return f"the model takes a {takes.condition} map, and no brief gives one"
    if n > takes.pictures:
        return f"the brief goes with {n} picture{'s' * (n > 1)}, and the model takes {takes.pictures}"
    if not n and not takes.text_alone:
        return "the model works on a picture, and the brief gives none"
    if len(task.deliverables) > 1:
        return f"the brief asks for {len(task.deliverables)} images, and the model makes one"
    return None
