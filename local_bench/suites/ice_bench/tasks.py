"""ICE-Bench: 31 creation and editing tasks, evaluated with eleven metrics (supplement, secs. B.1 to B.6): its
data.jsonl, one item per line (a missing image is an empty string or an empty list), prompts and questions.

A generator receives the source, then the mask, then the references. Markers in the instruction (<SOURCE>, <REF_1>) are
replaced by the image's position ("image 1"), and the prompt explains a mask. A model that takes fewer images than a
task has, or takes none in the role of one of them (`takes.roles`: an IP-Adapter no image to edit), does not support the
task, which is then missing from its results. A model with a mask input (`takes.mask`) receives the mask separately and
supports no task without one. The judge computes one of the metrics, VLLM-QA; the others are in `judges/metrics` and are
computed for the tasks for which the benchmark computes them.
"""

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from math import sqrt
from pathlib import Path
from typing import Annotated, Any

from PIL import Image
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from local_bench.core import strictjson
from local_bench.core.errors import TaskFileError, UserError
from local_bench.core.files import safe_join
from local_bench.core.images import load_image, load_task_mask
from local_bench.core.types import UNSUPPORTED, Deliverable, Question, Score, Task, Verdict
from local_bench.core.yamlfile import check
from local_bench.models.cards import Takes
from local_bench.suites.base import QuestionKey as Key
from local_bench.suites.ice_bench.scoring import EDITED
from local_bench.suites.task_files import KeepImage, task_id

_QUALITY = ("aes_v2.5", "musiq_koniq")
_CREATED = (*_QUALITY, "clip_cap")
_EDITED = (*_CREATED, "clip_src", "l1_raw", "vllmqa")
METRICS_OF = {
    "Text2Image": _CREATED,
    "Face Reference Generation": (*_CREATED, "clip_ref", "face_ref"),
    "Subject Reference Generation": (*_CREATED, "clip_ref", "dino_ref"),
    "Style Reference Generation": (*_CREATED, "clip_ref", "style_ref"),
    **dict.fromkeys(EDITED, _EDITED),
    "Virtual Try On": (*_EDITED, "dino_ref"),
    "Face Swap": (*_EDITED, "face_ref"),
    "Subject-guided Inpainting": (*_EDITED, "dino_ref"),
    "Style Reference Editing": (*_EDITED, "style_ref"),
    "Pose-guided Generation": (*_CREATED, "l1_pose"),
    "Depth-guided Generation": (*_CREATED, "l1_depth"),
    "Edge-guided Generation": (*_CREATED, "l1_canny"),
    "Image Deblur": (*_QUALITY, "ssim"),
    "Image Colorize": (*_CREATED, "l1_colorize", "colorfulness"),
}
"""The 31 tasks by their names in the benchmark's files, with the raw metrics that its code computes for each."""


class Item(BaseModel):
    """One line. Image paths relative to the data root; other keys are ignored."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    ItemID: Annotated[str, AfterValidator(task_id)]
    Task: str
    TaskLevel1: str = ""
    TaskLevel2: str = ""
    SourceImage: str = ""
    SourceMask: str = ""
    ReferenceImages: Annotated[list[str], BeforeValidator(lambda value: [] if value == "" else value)] = Field(
        default=[], max_length=16
    )
    """As in the official code, an empty string means none."""
    Instruction: str = ""
    TargetCaption: str = ""


def read_tasks(path: Path, keep: KeepImage, refuse: object = None) -> list[Task]:
    """Read the items in the file's order; an item without its images is unscored with a reason.

    TaskFileError names the file, the line and the reason; ImageError an existing image that cannot be read.
    """
    tasks: dict[str, Task] = {}
    first: dict[str, int] = {}
    remedy = "set suite.path to ICE-Bench's data.jsonl"
    for number, where, data in strictjson.objects(path, TaskFileError, "an item", missing=remedy, unreadable=remedy):
        item = _item(data, where)
        if item.ItemID in tasks:
            raise TaskFileError(
                f"{where}: duplicate item {item.ItemID!r}, first on line {first[item.ItemID]}: keep one"
            )
        first[item.ItemID] = number
        try:
            tasks[item.ItemID] = _task(item, path, keep)
        except UserError as e:
            raise type(e)(f"{where}: {e}") from e
    if not tasks:
        raise TaskFileError(f"{path} contains no items: {remedy}")
    return list(tasks.values())


def _item(data: dict[str, Any], where: str) -> Item:
    item = check(data, Item, where, error=TaskFileError)
    if item.Task not in METRICS_OF:
        near = difflib.get_close_matches(item.Task, METRICS_OF, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else "use the 31 names of the benchmark's config.py"
        raise TaskFileError(f"{where}: unknown task {item.Task!r}: {hint}")
    return item


def _task(item: Item, path: Path, keep: KeepImage) -> Task:
    absent: list[str] = []

    def stored(relative: str, load: Callable[[Path], Image.Image] = load_image) -> str | None:
        if not relative:
            return None
        candidates = [safe_join(root, relative) for root in (path.parent, path.parent.parent)]
        file = next((candidate for candidate in candidates if candidate.exists()), None)
        if file is None:
            absent.append(relative)
            return None
        return keep(load(file))

    source, mask = stored(item.SourceImage), stored(item.SourceMask, load_task_mask)
    references = [sha for sha in map(stored, item.ReferenceImages) if sha]
    levels = [level for level in (item.TaskLevel1, item.TaskLevel2) if level]
    return Task(
        task_id=item.ItemID,
        category=item.Task,
        price_micro_usd=0,
        title=item.Task,
        brief=item.Instruction or item.TargetCaption,
        deliverables=("The picture",),
        evaluation_points=(),
        source_sha256=source,
        reference_sha256=tuple(references),
        mask_sha256=mask,
        caption=item.TargetCaption,
        metrics=METRICS_OF[item.Task],
        unscored=f"Its picture {absent[0]} is not there." if absent else None,
        own={"parts": levels},
    )


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
