"""Ground truth of the images of printshop tasks: the checker's results in the form of a judge's answers.

There is ground truth for evaluation points (`brf`; undetermined points are not met, as in the rubric), for the
consistency of an edit (`cns_edit`) and for a set's style (`cns_set`), but not for visual quality.
"""

from collections.abc import Mapping

from local_bench.core.types import GroundTruth, Task
from local_bench.suites.printshop.checker import detect
from local_bench.suites.printshop.drawing import SIDE, Pixels
from local_bench.suites.printshop.matching import detected_facts, edit_score, match, set_scores, style_of
from local_bench.suites.printshop.points import holds, read_point
from local_bench.suites.printshop.shop import requested

SHAPE = (SIDE, SIDE, 3)
"""The array shape of images with ground truth."""


def truths(task: Task, images: Mapping[int, Pixels]) -> dict[int, GroundTruth]:
    """Ground truth of one model's images for a task: uint8 RGB by deliverable (from 1). Images of other sizes than
    64x64 are left out. TaskFileError if the task's text cannot be parsed."""
    seen = {i: detect(pixels) for i, pixels in sorted(images.items()) if pixels.shape == SHAPE}
    requested_images = dict(enumerate(requested(task), 1))
    points = [read_point(text) for text in task.evaluation_points]
    styles = dict(zip(seen, set_scores([style_of(image) for image in seen.values()]), strict=True))
    found = {}
    for i, image in seen.items():
        answers: dict[tuple[str, int], dict[str, object] | None] = {
            ("brf", k): None if point is None else {"met": int(holds(point, image) is True)}
            for k, point in enumerate(points)
        }
        edit = requested_images[i].edit
        if edit is not None:
            answers["cns_edit", 0] = {"score": edit_score(detected_facts(image), edit), "flags": []}
        if len(task.deliverables) > 1:
            complete = len(seen) == len(task.deliverables)
            answers["cns_set", 0] = {"score": styles[i], "flags": []} if complete else None
        found[i] = GroundTruth(answers, match(image, requested_images[i].scene))
    return found
