"""The suite `counting`."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from local_bench.core.types import Collage, Deliverable, Question, Score, Task, Verdict
from local_bench.suites.base import QuestionKey, Suite

RUBRIC, COUNTED = "idea_question", "counted"
FIELDS, THRESHOLDS = {RUBRIC: ("met",)}, {COUNTED: 1.0}


class Counting(Suite):
    """Six prompts for a number of objects; one question about each image."""

    name = "counting"
    title = "Six prompts for a number of objects"
    licence = "Apache-2.0"
    source = "local-bench"
    shipped = Path(__file__).with_name("tasks.jsonl")
    scores_of_judge = (COUNTED,)
    thresholds = THRESHOLDS
    rubrics = FIELDS

    def deliverables(self, task: Task) -> list[Deliverable]:
        return [Deliverable(task.task_id, 1, task.brief)]

    def questions(
        self, task: Task, images: Mapping[int, str], order_swap: bool = False
    ) -> Iterator[tuple[QuestionKey, Question]]:
        for deliverable, image in images.items():
            slots = (("question", f"Does the picture show exactly {task.evaluation_points[0]}?"),)
            question = Question(RUBRIC, 0, (image,), slots, (), 0, Collage(rows=(0, 1)))
            yield (deliverable, RUBRIC, 0, 0), question

    def scores(self, task: Task, verdicts: Mapping[QuestionKey, Verdict]) -> dict[int, list[Score]]:
        verdict = verdicts.get((1, RUBRIC, 0, 0))
        if verdict is None or verdict.answer is None:
            return {1: [Score(COUNTED, None, "no answer" if verdict is None else verdict.unscored)]}
        return {1: [Score(COUNTED, verdict.value("met"))]}
