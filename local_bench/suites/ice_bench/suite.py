"""ICE-Bench: 31 creation and editing tasks, evaluated with eleven metrics (supplement, secs. B.1 to B.6): its prompts
and questions.

A generator receives the source, then the mask, then the references. Markers in the instruction (<SOURCE>, <REF_1>) are
replaced by the image's position ("image 1"), and the prompt explains a mask. A model that takes fewer images than a
task has, or takes none in the role of one of them (`takes.roles`: an IP-Adapter no image to edit), does not support the
task, which is then missing from its results. A model with a mask input (`takes.mask`) receives the mask separately and
supports no task without one. The judge computes one of the metrics, VLLM-QA; the others are in `judges/metrics` and are
computed for the tasks for which the benchmark computes them.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from local_bench.core.errors import ResultFileError
from local_bench.core.types import UNSUPPORTED, Deliverable, Question, Score, Task, Verdict
from local_bench.models.cards import Takes
from local_bench.suites.base import ImageKey, QuestionKey, Suite, score_of
from local_bench.suites.ice_bench import published as numbers
from local_bench.suites.ice_bench import results as official
from local_bench.suites.ice_bench import tasks
from local_bench.suites.ice_bench.scoring import TASKS
from local_bench.suites.published import Published, ScoreOptions
from local_bench.suites.run_results import ImageResult, RunResults, TaskFigure

VLLM_QA = "vllmqa"
_CONDITION = {
    "Pose-guided Generation": "pose",
    "Depth-guided Generation": "depth",
    "Edge-guided Generation": "canny",
    "Image Deblur": "blur",
    "Image Colorize": "grey",
}
"""The controllable tasks (23 to 27), whose source is a control image, with its kind."""
_MARK = re.compile(r"<(SOURCE|REF_([1-9]))>")


class IceBench(Suite):
    """ICE-Bench (Pan et al.)."""

    name = "ice-bench"
    title = "ICE-Bench: 31 tasks of creating and editing, eleven metrics in six dimensions"
    licence = "see the benchmark's authors"
    source = "Pan et al., ICE-Bench; ali-vilab/ICE-Bench"
    files = "its data.jsonl"
    scores_of_judge = (VLLM_QA,)
    top_score = 1
    thresholds = {VLLM_QA: 0.5}  # noqa: RUF012
    lent = {VLLM_QA: "ice_vllmqa"}  # noqa: RUF012
    metrics_by_task = frozenset(name for names in tasks.METRICS_OF.values() for name in names)
    categories = TASKS
    unsupported = "skip"
    derived = numbers.COMPOSITE
    layout = "ice-bench"
    paper = "local_bench.report.papers.contents:ICE_BENCH"
    score_options = ()
    scores_one_file = True
    annotation_protocol = "pairwise"

    read_tasks = staticmethod(tasks.read_tasks)

    def deliverables(self, task: Task, mask_apart: bool = False) -> list[Deliverable]:
        """The one image of an item; with `mask_apart` for a model with a mask input, for which the mask is not an input
        image explained in the prompt."""
        inputs = _given(task, mask_apart)
        prompt = _MARK.sub(lambda mark: _place(task, mark, mask_apart), task.brief)
        if mask_apart:
            return [Deliverable(task.task_id, 1, prompt, inputs, task.mask_sha256)]
        if task.mask_sha256 is not None:
            prompt += f" Image {1 + (task.source_sha256 is not None)} is a mask: only what is white in it is to change."
        return [Deliverable(task.task_id, 1, prompt, inputs)]

    def fitted(self, task: Task, takes: Takes) -> list[Deliverable] | str:
        n = len(_given(task, takes.mask))
        if takes.mask and (task.mask_sha256 is None or task.source_sha256 is None):
            return f"{UNSUPPORTED}the model fills the masked part of a picture, and {task.category} gives no mask"
        if takes.condition and _CONDITION.get(task.category) != takes.condition:
            return f"{UNSUPPORTED}the model takes a {takes.condition} map, and {task.category} gives none"
        of_source = "condition" if task.category in _CONDITION else "source"
        given = {of_source: task.source_sha256, "reference": task.reference_sha256}
        for role, images in given.items():  # besides the mask
            if images and role not in takes.roles:
                return f"{UNSUPPORTED}the model takes no image as {role}, and {task.category} gives one"
        if n > takes.pictures:
            return (
                f"{UNSUPPORTED}{task.category} gives {n} picture{'s' * (n > 1)}, and the model takes {takes.pictures}"
            )
        if not n and not takes.text_alone:
            return f"{UNSUPPORTED}the model works on a picture, and {task.category} gives none"
        return self.deliverables(task, takes.mask)

    def questions(
        self, task: Task, images: Mapping[int, str], order_swap: bool = False
    ) -> Iterator[tuple[QuestionKey, Question]]:
        """Whether the instruction was carried out, for tasks that have this metric: source, mask, reference and result,
        as available."""
        if VLLM_QA not in task.metrics or task.source_sha256 is None:
            return
        inputs = [("source", task.source_sha256), ("mask", task.mask_sha256)]
        inputs += [("reference", sha) for sha in task.reference_sha256[:1]]  # the benchmark includes only the first
        slots = (("instruction", _MARK.sub(lambda mark: mark[1].partition("_")[0], task.brief)),)
        for deliverable, pixels in sorted(images.items()):
            labelled = [(role, sha) for role, sha in (*inputs, ("result", pixels)) if sha is not None]
            roles, shas = zip(*labelled, strict=True)
            yield (deliverable, "vllm_qa", 0, 0), Question("vllm_qa", 0, shas, slots, roles)

    def scores(self, task: Task, verdicts: Mapping[QuestionKey, Verdict]) -> dict[int, list[Score]]:
        """`vllmqa`, 0 or 1 (between them if the judge gives probabilities); not applicable for tasks without this
        metric."""
        if VLLM_QA not in task.metrics:
            return {1: [Score(VLLM_QA, None, applies=False)]}
        if task.source_sha256 is None:
            return {1: [Score(VLLM_QA, None, "there is no source picture to compare it with")]}
        return {1: [score_of(VLLM_QA, verdicts.get((1, "vllm_qa", 0, 0)), "success")]}

    def borrowing(self, task: Task) -> Task | None:
        return None if task.source_sha256 is None else replace(task, metrics=(VLLM_QA,))

    def derived_scores(self, results: RunResults, lent: bool) -> Iterator[tuple[str, Score]]:
        """`ice_composite`: eqs. 1 to 10, in [0, 1]."""
        names = self.lent if lent else {}
        for image in results.images:
            if image.pixels_sha256 is not None:
                theirs = {name: image.scores[ours] for name, ours in names.items() if ours in image.scores}
                yield image.work_id, numbers.image_score(image.task, image.scores | theirs)

    def figures_by_task(self, results: RunResults) -> Iterator[TaskFigure]:
        """The overall score, a mean over the 31 tasks."""
        for task, image in ((image.task, image) for image in results.images if image.attempt == 1):
            value = numbers.image_score(task, image.scores).value
            yield TaskFigure("overall score", image.model, task.task_id, value, (task.category,))

    def published(self, results: RunResults) -> dict[str, Published]:
        """Each model's numbers: equal to those of `score` on the files that `write_results` writes."""
        by_model = {}
        for model, items in official.results_by_model(results).items():
            scored, notes = official.scored(items)
            numbers_of = numbers.published(scored)
            by_model[model] = replace(numbers_of, notes=[*notes, *numbers_of.notes])
        return by_model

    write_results = staticmethod(official.write)
    result_notes = staticmethod(official.notes)
    find_images = staticmethod(official.find_images)

    def score(self, files: Sequence[Path], options: ScoreOptions) -> Published:
        return numbers.published(official.read_eval_result(files[0]))

    def read_annotations(
        self, files: Sequence[Path], images: Sequence[ImageResult]
    ) -> Iterator[tuple[ImageKey, dict[str, Any] | None]]:
        known = {image.task.task_id: image.task.category for image in images}
        for file in files:  # one per model: NAME/eval_result.txt
            items, model = official.read_eval_result(file), file.absolute().parent.name
            if model not in {image.model for image in images}:
                raise ResultFileError(f"{file}: the run has no model {model!r}: name the file's folder after its model")
            for item in items:
                task, value = known.get(item.item_id), item.metrics.get(VLLM_QA)
                if task not in (item.task, None):
                    what = f"{item.item_id!r} is of {item.task}, but in the run of {task}"
                    raise ResultFileError(f"{file}: {what}: give the results of the run's own tasks")
                if VLLM_QA in item.metrics or task is None:
                    yield (model, item.item_id, 1, 1), None if value is None else {VLLM_QA: value}


def _given(task: Task, mask_apart: bool) -> tuple[str, ...]:
    mask = None if mask_apart else task.mask_sha256
    return tuple(sha for sha in (task.source_sha256, mask, *task.reference_sha256) if sha is not None)


def _place(task: Task, mark: re.Match[str], mask_apart: bool) -> str:
    """`image N` for a marker; the marker's own text if there is no such image."""
    before = (task.source_sha256 is not None) + (task.mask_sha256 is not None and not mask_apart)
    reference = int(mark[2] or 0)
    if reference > len(task.reference_sha256) or (not reference and task.source_sha256 is None):
        return mark[1].lower().replace("_", " ")
    return f"image {before + reference if reference else 1}"
