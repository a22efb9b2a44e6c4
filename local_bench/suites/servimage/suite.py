"""The suite `servimage`, and the base of suites in its form."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from local_bench.core.types import Task
from local_bench.suites.base import ImageKey, Suite
from local_bench.suites.run_results import ImageResult
from local_bench.suites.servimage import export, questions, tasks
from local_bench.suites.servimage.results import read_annotations


class DesignTasks(Suite):
    """Paid design tasks from an order file, with ServImage's questions, scores, settlement and result files."""

    scores_of_judge = questions.SCORES
    top_score = 5
    layout = "servimage"

    deliverables = staticmethod(questions.deliverables)
    scores = staticmethod(questions.scores)
    scores_of_made = staticmethod(questions.scores)
    questions = staticmethod(questions.questions)

    def scores_of_points(self, task: Task, met: Sequence[bool]) -> dict[str, float]:
        return {questions.BRF: 5 * sum(met) / len(met)} if met else {}

    published = staticmethod(export.published)
    write_results = staticmethod(export.write)
    result_notes = staticmethod(export.notes)

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

    read_tasks = staticmethod(tasks.read_tasks)
    deliverables = staticmethod(tasks.deliverables)
    enrichment_question = staticmethod(tasks.enrichment_question)
    rules_question = staticmethod(tasks.rules_question)
