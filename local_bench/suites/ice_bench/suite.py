"""The suite `ice-bench`."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from local_bench.core.types import Score, Task
from local_bench.suites.base import ImageKey, Suite
from local_bench.suites.ice_bench import published as numbers
from local_bench.suites.ice_bench import results as official
from local_bench.suites.ice_bench import tasks
from local_bench.suites.ice_bench.scoring import LIMITS, TASKS
from local_bench.suites.published import Published, ScoreOptions
from local_bench.suites.run_results import ImageResult, RunResults, TaskFigure


class IceBench(Suite):
    """ICE-Bench (Pan et al.)."""

    name = "ice-bench"
    title = "ICE-Bench: 31 tasks of creating and editing, eleven metrics in six dimensions"
    licence = "see the benchmark's authors"
    source = "Pan et al., ICE-Bench; ali-vilab/ICE-Bench"
    files = "its data.jsonl"
    scores_of_judge = tasks.SCORES
    top_score = 1
    thresholds = tasks.THRESHOLDS
    lent = tasks.LENT
    metrics_by_task = tasks.METRICS
    categories = TASKS
    unsupported = "skip"
    layout = "ice-bench"
    paper = "local_bench.report.papers.contents:ICE_BENCH"
    score_options = ()
    scores_one_file = True
    annotation_protocol = "pairwise"

    read_tasks = staticmethod(tasks.read_tasks)
    deliverables = staticmethod(tasks.deliverables)
    fitted = staticmethod(tasks.fitted)
    scores = staticmethod(tasks.scores)
    questions = staticmethod(tasks.questions)

    def borrowing(self, task: Task) -> Task | None:
        return None if task.source_sha256 is None else replace(task, metrics=(tasks.VLLM_QA,))

    def derived_scores(self, results: RunResults, lent: bool) -> Iterator[tuple[str, Score]]:
        """`ice_composite`: eqs. 1 to 10, in [0, 1]."""
        names = self.lent if lent else {}
        for image in results.images:
            if image.pixels_sha256 is not None:
                theirs = {name: image.scores[ours] for name, ours in names.items() if ours in image.scores}
                yield image.work_id, numbers.image_score(image.task, image.scores | theirs)

    def figures_by_task(self, results: RunResults) -> Iterator[TaskFigure]:
        """The overall score, whose items are weighted as its mean over the 31 tasks."""
        items = Counter({image.task.task_id: image.task.category for image in results.images}.values())
        for image in results.images:
            if image.attempt == 1:
                value, weight = numbers.image_score(image.task, image.scores).value, 1 / items[image.task.category]
                yield TaskFigure("overall score", image.model, image.task.task_id, value, weight)

    def published(self, results: RunResults) -> dict[str, Published]:
        """Each model's numbers: equal to those of `score` on the files that `write_results` writes."""
        by_model = {}
        for model, result in official.results_by_model(results).items():
            numbers_of = numbers.published(result.scored)
            by_model[model] = replace(numbers_of, notes=[*result.notes, *numbers_of.notes])
        return by_model

    write_results = staticmethod(official.write)
    result_notes = staticmethod(official.notes)
    find_images = staticmethod(official.find_images)

    def score(self, files: Sequence[Path], options: ScoreOptions) -> Published:
        return numbers.published(official.read_eval_result(files[0], TASKS, LIMITS))

    def read_annotations(
        self, files: Sequence[Path], images: Sequence[ImageResult]
    ) -> Iterator[tuple[ImageKey, dict[str, Any] | None]]:
        for file in files:  # one per model: NAME/eval_result.txt
            for item in official.read_eval_result(file, TASKS, LIMITS):
                if tasks.VLLM_QA in item.metrics:
                    value = item.metrics[tasks.VLLM_QA]
                    yield (file.parent.name, item.item_id, 1, 1), {tasks.VLLM_QA: value}
