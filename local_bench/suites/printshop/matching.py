"""Compares detected images with requested scenes, edits and set styles. Undetermined attributes count as missing."""

from collections import Counter
from collections.abc import Sequence

from local_bench.suites.printshop.checker import DetectedScene
from local_bench.suites.printshop.edits import Edit
from local_bench.suites.printshop.scene import Scene

Fact = tuple[str, str, str]
"""(subject: `picture` or a position, attribute, value)"""

Style = tuple[str | None, str | None, str | None]
"""(background, colour, size), each None if undetermined."""


def facts(scene: Scene) -> frozenset[Fact]:
    """The facts of a scene: background, number of figures, and each figure's shape, colour and size by position."""
    of_scene = {("picture", "background", scene.background), ("picture", "count", str(len(scene.figures)))}
    for figure in scene.figures:
        of_scene.update((figure.place, name, getattr(figure, name)) for name in ("shape", "colour", "size"))
    return frozenset(of_scene)


def detected_facts(seen: DetectedScene) -> frozenset[Fact]:
    """The facts of a detected image. Of two figures at one position only the number counts."""
    detected = {("picture", "count", str(len(seen.figures)))}
    if seen.background is not None:
        detected.add(("picture", "background", seen.background))
    crowded = Counter(figure.place for figure in seen.figures)
    for figure in seen.figures:
        if figure.place is not None and crowded[figure.place] == 1:
            attributes = ((name, getattr(figure, name)) for name in ("shape", "colour", "size"))
            detected.update((figure.place, name, value) for name, value in attributes if value is not None)
    return frozenset(detected)


def match(seen: DetectedScene, requested: Scene) -> float:
    """The fraction of the requested scene's facts that are detected, 0 to 1."""
    return share(facts(requested), detected_facts(seen))


def must_change(edit: Edit) -> frozenset[Fact]:
    """Facts of the target that are not facts of the source."""
    return facts(edit.target) - facts(edit.source)


def must_stay(edit: Edit) -> frozenset[Fact]:
    """Facts of both source and target; the number of figures is one of them."""
    return facts(edit.target) & facts(edit.source)


def edit_score(found: frozenset[Fact], edit: Edit) -> int:
    """The correct consistency score of an edit, 1 to 5, from the facts of its result: 5 if everything that had to
    stay has stayed, else 3 to 1 by the fraction that has."""
    kept = share(must_stay(edit), found)
    return 5 if kept == 1 else 1 + int(3 * kept)


def set_scores(images: Sequence[Style]) -> list[int]:
    """The correct consistency score of each image of a set, 1 to 5: 5 if all have one style; else 4 for an image
    with the majority style, 3 if only its size differs, 2 if background or colour differs, 1 if more than one
    differs."""
    usual = [_most([style[i] for style in images]) for i in range(3)]
    off = [[value is None or value != most for value, most in zip(style, usual, strict=True)] for style in images]
    if not any(map(any, off)):
        return [5] * len(off)
    return [4 if not any(differs) else 1 if sum(differs) > 1 else 3 if differs[2] else 2 for differs in off]


def style_of(seen: DetectedScene) -> Style:
    """The style of an image; colour and size are None unless it has one figure."""
    return (seen.background, *_colour_and_size(seen))


def _colour_and_size(seen: DetectedScene) -> tuple[str | None, str | None]:
    if len(seen.figures) != 1:
        return None, None
    return seen.figures[0].colour, seen.figures[0].size


def _most(values: list[str | None]) -> str | None:
    """The most frequent value, the first in case of ties; None if there is none."""
    frequency = Counter(value for value in values if value is not None)
    return frequency.most_common(1)[0][0] if frequency else None


def share(requested: frozenset[Fact], found: frozenset[Fact]) -> float:
    return len(requested & found) / len(requested) if requested else 1.0
