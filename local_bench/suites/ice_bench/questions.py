"""ICE-Bench: 31 creation and editing tasks, evaluated with eleven metrics (supplement, secs. B.1 to B.6).

A generator receives the source, then the mask, then the references. Markers in the instruction (<SOURCE>, <REF_1>) are
replaced by the image's position ("image 1"), and the prompt explains a mask. A model that takes fewer images than a
task has, or takes none in the role of one of them (`takes.roles`: an IP-Adapter no image to edit), does not support the
task, which is then missing from its results. A model with a mask input (`takes.mask`) receives the mask separately and
supports no task without one. The judge computes one of the metrics, VLLM-QA; the
others are in `judges/metrics` and are computed for the tasks for which the benchmark computes them.
"""

import re
from collections.abc import Iterator, Mapping
from math import sqrt

from local_bench.core.types import UNSUPPORTED, Deliverable, Question, Score, Task, Verdict
from local_bench.models.cards import Takes
from local_bench.suites.base import QuestionKey as Key
from local_bench.suites.ice_bench.tasks import METRICS_OF

VLLM_QA = "vllmqa"
SCORES = (VLLM_QA,)
THRESHOLDS = {VLLM_QA: 0.5}
LENT = {VLLM_QA: "ice_vllmqa"}
METRICS = frozenset(name for names in METRICS_OF.values() for name in names)
_CONDITION = {
    "Pose-guided Generation": "pose",
    "Depth-guided Generation": "depth",
    "Edge-guided Generation": "canny",
    "Image Deblur": "blur",
    "Image Colorize": "grey",
}
"""The controllable tasks (23 to 27), whose source is a control image, with its kind."""
_MARK = re.compile(r"<(SOURCE|REF_([1-9]))>")


def deliverables(task: Task, mask_apart: bool = False) -> list[Deliverable]:
    """The one image that an item requests; with `mask_apart` for a model with a mask input, for which the mask is not
    an input image explained in the prompt."""
    inputs = _given(task, mask_apart)
    prompt = _MARK.sub(lambda mark: _place(task, mark, mask_apart), task.brief)
    if mask_apart:
        return [Deliverable(task.task_id, 1, prompt, inputs, task.mask_sha256)]
    if task.mask_sha256 is not None:
        prompt += f" Image {1 + (task.source_sha256 is not None)} is a mask: only what is white in it is to change."
    return [Deliverable(task.task_id, 1, prompt, inputs)]


def fitted(task: Task, takes: Takes) -> list[Deliverable] | str:
    """The deliverables, or one sentence why the model does not support the task."""
    n = len(_given(task, takes.mask))
    if takes.mask and (task.mask_sha256 is None or task.source_sha256 is None):
        return f"{UNSUPPORTED}the model fills the masked part of a picture, and {task.category} gives no mask"
    if takes.condition and _CONDITION.get(task.category) != takes.condition:
        return f"{UNSUPPORTED}the model takes a {takes.condition} map, and {task.category} gives none"
    for role in _roles(task):
        if role not in takes.roles:
            return f"{UNSUPPORTED}the model takes no image as {role}, and {task.category} gives one"
    if n > takes.pictures:
        return f"{UNSUPPORTED}{task.category} gives {n} picture{'s' * (n > 1)}, and the model takes {takes.pictures}"
    if not n and not takes.text_alone:
        return f"{UNSUPPORTED}the model works on a picture, and {task.category} gives none"
    return deliverables(task, takes.mask)


def questions(task: Task, images: Mapping[int, str], order_swap: bool = False) -> Iterator[tuple[Key, Question]]:
    """Whether the instruction was carried out, for tasks that have this metric: source, mask, reference and result, as
    available."""
    if VLLM_QA not in task.metrics or task.source_sha256 is None:
        return
    inputs = [("source", task.source_sha256), ("mask", task.mask_sha256)]
    inputs += [("reference", sha) for sha in task.reference_sha256[:1]]  # the benchmark includes only the first
    slots = (("instruction", _MARK.sub(lambda mark: mark[1].partition("_")[0], task.brief)),)
    for deliverable, pixels in sorted(images.items()):
        labelled = [(role, sha) for role, sha in (*inputs, ("result", pixels)) if sha is not None]
        roles, shas = zip(*labelled, strict=True)
        yield (deliverable, "vllm_qa", 0, 0), Question("vllm_qa", 0, shas, slots, roles)


def scores(task: Task, verdicts: Mapping[Key, Verdict]) -> dict[int, list[Score]]:
    """`vllmqa`, 0 or 1 (between them if the judge gives probabilities); not applicable for tasks without this
    metric."""
    if VLLM_QA not in task.metrics:
        return {1: [Score(VLLM_QA, None, applies=False)]}
    if task.source_sha256 is None:
        return {1: [Score(VLLM_QA, None, "there is no source picture to compare it with")]}
    verdict = verdicts.get((1, "vllm_qa", 0, 0))
    if verdict is None:
        return {1: [Score(VLLM_QA, None, "the judge was not reached")]}
    variance = verdict.variance("success")
    spread = None if variance is None else sqrt(variance)
    return {1: [Score(VLLM_QA, verdict.value("success"), verdict.unscored, spread=spread)]}


def _given(task: Task, mask_apart: bool) -> tuple[str, ...]:
    mask = None if mask_apart else task.mask_sha256
    return tuple(sha for sha in (task.source_sha256, mask, *task.reference_sha256) if sha is not None)


def _roles(task: Task) -> Iterator[str]:
    """The roles of the images besides the mask."""
    if task.source_sha256 is not None:
        yield "condition" if task.category in _CONDITION else "source"
    if task.reference_sha256:
        yield "reference"


def _place(task: Task, mark: re.Match[str], mask_apart: bool) -> str:
    """`image N` for a marker; the marker's own text if there is no such image."""
    before = (task.source_sha256 is not None) + (task.mask_sha256 is not None and not mask_apart)
    reference = int(mark[2] or 0)
    if reference > len(task.reference_sha256) or (not reference and task.source_sha256 is None):
        return mark[1].lower().replace("_", " ")
    return f"image {before + reference if reference else 1}"
