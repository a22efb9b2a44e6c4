"""The suite `servimage`, and the base of suites in its form."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from local_bench.core.types import Deliverable, Question, Score, Task, Verdict
from local_bench.suites.base import ImageKey, QuestionKey, Suite
from local_bench.suites.orders import KeepImage, Refuse
from local_bench.suites.published import Published
from local_bench.suites.run_results import ImageResult, RunResults
from local_bench.suites.servimage import export, questions, tasks
from local_bench.suites.servimage.results import read_annotations


class DesignTasks(Suite):
    """Paid design tasks from an order file, with ServImage's questions, scores, settlement and result files."""

    scores_of_judge = questions.SCORES
    top_score = 5
    layout = "servimage"

    def deliverables(self, task: Task) -> list[Deliverable]:
        return questions.deliverables(task)

    def questions(
        self, task: Task, images: Mapping[int, str], order_swap: bool = False
    ) -> Iterator[tuple[QuestionKey, Question]]:
        return questions.questions(task, images, order_swap)

    def scores(self, task: Task, verdicts: Mapping[QuestionKey, Verdict]) -> dict[int, list[Score]]:
        return questions.scores(task, verdicts)

    def scores_of_made(
        self, task: Task, verdicts: Mapping[QuestionKey, Verdict], images: Mapping[int, str]
    ) -> dict[int, list[Score]]:
        return questions.scores(task, verdicts, images)

    def scores_of_points(self, task: Task, met: Sequence[bool]) -> dict[str, float]:
        return {questions.BRF: 5 * sum(met) / len(met)} if met else {}

    def published(self, results: RunResults) -> dict[str, Published]:
        return export.published(results)

    def write_results(self, results: RunResults, out: Path) -> list[Path]:
        return export.write(results, out)

    def result_notes(self, results: RunResults) -> list[str]:
        return export.notes(results)

    def read_annotations(
        self, files: Sequence[Path], images: Sequence[ImageResult]
    ) -> Iterator[tuple[ImageKey, dict[str, Any] | None]]:
        for image in read_annotations(files).images:
            labels = None if image.accepted is None else {"overall": image.accepted}
            yield (image.model, image.task_id, image.deliverable, 1), labels


class ServImage(DesignTasks):
    """ServImage (Ji et al.)."""

    name = "servimage"
    title = "ServImage: paid design orders in three categories"
    licence = "see the benchmark's authors"
    source = "Ji et al., ServImage; FengxianJi/ServImage"
    files = "its ServImage_Bench folder, one of its JSON files, or an order file with one object per line"

    def read_tasks(self, path: Path, keep: KeepImage, refuse: Refuse | None = None) -> list[Task]:
        return tasks.read_tasks(path, keep, refuse)

    def deliverables(self, task: Task) -> list[Deliverable]:
        return tasks.deliverables(task)

    def enrichment_question(self, task: Task) -> Question | None:
        return tasks.enrichment_question(task)

    def rules_question(self, task: Task) -> Question | None:
        return tasks.rules_question(task)
