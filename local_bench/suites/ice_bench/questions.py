"""ICE-Bench: 31 tasks of making and editing, measured by eleven metrics (supplement, secs. B.1 to B.6).

A generator is given the source, then the mask, then the references; where the instruction marks them (<SOURCE>,
<REF_1>) it reads "image 1" and so on, by their place, and of a mask it is told what it is. A model that takes fewer
pictures than a task has does not support it, and the task is missing from its results. A model that takes a mask as a
mask (`takes.mask`) is given it apart from the pictures, and supports no task without one. The judge answers one of the
metrics, VLLM-QA; the others are `judges/metrics`, each taken of those tasks that the benchmark takes it of.
"""

import re
from collections.abc import Iterator, Mapping
from math import sqrt

from local_bench.core.types import UNSUPPORTED, Deliverable, Question, Score, Task, Verdict
from local_bench.models.cards import Takes
from local_bench.suites.ice_bench.tasks import METRICS_OF

VLLM_QA = "vllmqa"
SCORES = (VLLM_QA,)
THRESHOLDS = {VLLM_QA: 0.5}
METRICS = frozenset(name for names in METRICS_OF.values() for name in names)
_CONDITION = {
    "Pose-guided Generation": "pose",
    "Depth-guided Generation": "depth",
    "Edge-guided Generation": "canny",
}
_MARK = re.compile(r"<(SOURCE|REF_([1-9]))>")
Key = tuple[int, str, int, int]
"""(deliverable, rubric, point, repeat)"""


def deliverables(task: Task, mask_apart: bool = False) -> list[Deliverable]:
    """The one picture that an item asks for; with `mask_apart` for a model that takes the mask as a mask, and not as
    one more picture of which the prompt says what it is."""
    given = _given(task, mask_apart)
    prompt = _MARK.sub(lambda mark: _place(task, mark, mask_apart), task.brief)
    if mask_apart:
        return [Deliverable(task.task_id, 1, prompt, given, task.mask_sha256)]
    if task.mask_sha256 is not None:
        prompt += f" Image {1 + (task.source_sha256 is not None)} is a mask: only what is white in it is to change."
    return [Deliverable(task.task_id, 1, prompt, given)]


def fitted(task: Task, takes: Takes) -> list[Deliverable] | str:
    """What a model is asked, or in one sentence why this is not its kind of work."""
    n = len(_given(task, takes.mask))
    if takes.mask and (task.mask_sha256 is None or task.source_sha256 is None):
        return f"{UNSUPPORTED}the model fills the masked part of a picture, and {task.category} gives no mask"
    if takes.condition and _CONDITION.get(task.category) != takes.condition:
        return f"{UNSUPPORTED}the model takes a {takes.condition} map, and {task.category} gives none"
    if n > takes.pictures:
        return f"{UNSUPPORTED}{task.category} gives {n} picture{'s' * (n > 1)}, and the model takes {takes.pictures}"
    if not n and not takes.text_alone:
        return f"{UNSUPPORTED}the model works on a picture, and {task.category} gives none"
    return deliverables(task, takes.mask)


def questions(task: Task, images: Mapping[int, str], order_swap: bool = False) -> Iterator[tuple[Key, Question]]:
    """Whether the instruction was carried out, in tasks that the benchmark asks it of: source, mask, reference and
    result, as far as there are."""
    if VLLM_QA not in task.metrics or task.source_sha256 is None:
        return
    beside = [("source", task.source_sha256), ("mask", task.mask_sha256)]
    beside += [("reference", sha) for sha in task.reference_sha256[:1]]  # the benchmark shows the first alone
    slots = (("instruction", _MARK.sub(lambda mark: mark[1].partition("_")[0], task.brief)),)
    for deliverable, pixels in sorted(images.items()):
        shown = [(role, sha) for role, sha in (*beside, ("result", pixels)) if sha is not None]
        roles, shas = zip(*shown, strict=True)
        yield (deliverable, "vllm_qa", 0, 0), Question("vllm_qa", 0, shas, slots, roles)


def scores(task: Task, verdicts: Mapping[Key, Verdict]) -> dict[int, list[Score]]:
    """`vllmqa`, 0 or 1 (a judge's probability in between); of other tasks nothing is asked."""
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


def _place(task: Task, mark: re.Match[str], mask_apart: bool) -> str:
    """`image N` for a mark; the mark's own word where there is no such picture."""
    before = (task.source_sha256 is not None) + (task.mask_sha256 is not None and not mask_apart)
    reference = int(mark[2] or 0)
    if reference > len(task.reference_sha256) or (not reference and task.source_sha256 is None):
        return mark[1].lower().replace("_", " ")
    return f"image {before + reference if reference else 1}"
