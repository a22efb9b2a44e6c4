"""What is true of the pictures that were delivered for the print shop's orders: the checker's word, in a judge's form.

There is truth about evaluation points (`brf`; what cannot be told is not met, as the rubric has it), about what an edit
kept (`cns_edit`) and about a set's style (`cns_set`). Of beauty and sharpness there is none.
"""

from collections.abc import Mapping

from local_bench.core.types import GroundTruth, Task
from local_bench.suites.printshop.checker import look
from local_bench.suites.printshop.drawing import SIDE, Pixels
from local_bench.suites.printshop.matching import edit_score, match, seen_facts, set_scores, style_of
from local_bench.suites.printshop.points import holds, read_point
from local_bench.suites.printshop.shop import wanted

SHOWN = (SIDE, SIDE, 3)
"""The shape of a picture about which anything can be told."""


def truths(task: Task, pictures: Mapping[int, Pixels]) -> dict[int, GroundTruth]:
    """The truth about one model's pictures for an order, uint8 RGB by deliverable (from 1). Pictures of another size
    than 64x64 are left out. TaskFileError where the order is not in the miniature's words."""
    seen = {i: look(pixels) for i, pixels in sorted(pictures.items()) if pixels.shape == SHOWN}
    asked = dict(enumerate(wanted(task), 1))
    points = [read_point(words) for words in task.evaluation_points]
    styles = dict(zip(seen, set_scores([style_of(picture) for picture in seen.values()]), strict=True))
    found = {}
    for i, picture in seen.items():
        answers: dict[tuple[str, int], dict[str, object] | None] = {
            ("brf", k): None if point is None else {"met": int(holds(point, picture) is True)}
            for k, point in enumerate(points)
        }
        edit = asked[i].edit
        if edit is not None:
            answers["cns_edit", 0] = {"score": edit_score(seen_facts(picture), edit), "flags": []}
        if len(task.deliverables) > 1:
            whole = len(seen) == len(task.deliverables)
            answers["cns_set", 0] = {"score": styles[i], "flags": []} if whole else None
        found[i] = GroundTruth(answers, match(picture, asked[i].scene))
    return found
