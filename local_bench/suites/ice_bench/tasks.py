"""ICE-Bench's data.jsonl, one item per line; a missing image is an empty string or an empty list."""

import difflib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

from PIL import Image
from pydantic import AfterValidator, BeforeValidator, Field

from local_bench.core import strictjson
from local_bench.core.errors import TaskFileError, UserError
from local_bench.core.files import safe_join
from local_bench.core.images import load_image, load_task_mask
from local_bench.core.types import Task
from local_bench.core.yamlfile import check
from local_bench.suites.ice_bench.scoring import EDITED
from local_bench.suites.task_files import KeepImage, Loose, task_id

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


class Item(Loose):
    """One line. Image paths relative to the data root."""

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
    for number, where, data in strictjson.objects(path, TaskFileError, "an item", missing=remedy):
        item = check(data, Item, where, error=TaskFileError)
        if item.Task not in METRICS_OF:
            near = difflib.get_close_matches(item.Task, METRICS_OF, 1, 0.5)
            hint = f"did you mean {near[0]!r}?" if near else "use the 31 names of the benchmark's config.py"
            raise TaskFileError(f"{where}: unknown task {item.Task!r}: {hint}")
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
        own={"parts": [level for level in (item.TaskLevel1, item.TaskLevel2) if level]},
    )
