"""Compares detected images with edits, with all but some attributes of a scene, and with each other's style."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from local_bench.suites.printshop.checker import DetectedScene
from local_bench.suites.printshop.matching import Fact, facts, must_stay, share, style_of
from local_bench.suites.printshop.phrases import Edit
from local_bench.suites.printshop.scene import Scene


@dataclass(frozen=True)
class EditMatch:
    """How well an image matches an edit, each from 0 to 1."""

    changed: float
    """Fraction of the facts that had to change."""
    kept: float
    """Fraction of the facts that had to stay."""

    @property
    def whole(self) -> bool:
        """Whether all facts match the target."""
        return self.changed == self.kept == 1


def match_edit(seen: DetectedScene, edit: Edit) -> EditMatch:
    """Compare an image with an edit."""
    found = facts(seen)
    return EditMatch(share(must_change(edit), found), share(must_stay(edit), found))


def same_but_for(seen: DetectedScene, scene: Scene, but: Sequence[str]) -> bool:
    """Whether the image matches the scene except for the attributes in `but` (of `background`, `count`, `shape`,
    `colour` and `size`)."""
    return all(fact[1] in but for fact in facts(scene) ^ facts(seen))


def style_agreement(images: Sequence[DetectedScene]) -> float:
    """Style agreement of images with one figure each, 0 to 1: the fraction with the majority value, averaged over
    background, colour and size. Images with no or several figures have neither colour nor size."""
    rows = [style_of(seen) for seen in images]
    return fmean(_majority([row[i] for row in rows]) for i in range(3))


def _majority(values: list[str | None]) -> float:
    return max(Counter(value for value in values if value is not None).values(), default=0) / len(values)


def must_change(edit: Edit) -> frozenset[Fact]:
    """Facts of the target that are not facts of the source."""
    return facts(edit.target) - facts(edit.source)
