"""Compares detected images with requested scenes, edits and set styles, and with evaluation points: single claims about
an image, as text. Undetermined attributes count as missing.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

from local_bench.suites.printshop.checker import DetectedFigure, DetectedScene
from local_bench.suites.printshop.phrases import LANGUAGES, Edit, Language, Phrase, language_words
from local_bench.suites.printshop.scene import Scene

Fact = tuple[str, str, str]
"""(subject: `picture` or a position, attribute, value)"""

Style = tuple[str | None, str | None, str | None]
"""(background, colour, size), each None if undetermined."""


def facts(contents: Scene | DetectedScene) -> frozenset[Fact]:
    """The facts of a scene or a detected image: background, number of figures, and each figure's shape, colour and size
    by position. Undetermined ones are missing, and of two figures at one position only the number counts."""
    found = {("picture", "count", str(len(contents.figures)))}
    if contents.background is not None:
        found.add(("picture", "background", contents.background))
    crowded = Counter(figure.place for figure in contents.figures)
    for figure in contents.figures:
        if figure.place is not None and crowded[figure.place] == 1:
            attributes = ((name, getattr(figure, name)) for name in ("shape", "colour", "size"))
            found.update((figure.place, name, value) for name, value in attributes if value is not None)
    return frozenset(found)


def match(seen: DetectedScene, requested: Scene) -> float:
    """The fraction of the requested scene's facts that are detected, 0 to 1."""
    return share(facts(requested), facts(seen))


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
    counts = [Counter(style[i] for style in images if style[i] is not None) for i in range(3)]
    usual = [next((value for value, _ in count.most_common(1)), None) for count in counts]  # of a tie, the first
    off = [[value is None or value != most for value, most in zip(style, usual, strict=True)] for style in images]
    if not any(map(any, off)):
        return [5] * len(off)
    return [4 if not any(differs) else 1 if sum(differs) > 1 else 3 if differs[2] else 2 for differs in off]


def style_of(seen: DetectedScene) -> Style:
    """The style of an image; colour and size are None unless it has one figure."""
    if len(seen.figures) != 1:
        return seen.background, None, None
    return seen.background, seen.figures[0].colour, seen.figures[0].size


def share(requested: frozenset[Fact], found: frozenset[Fact]) -> float:
    return len(requested & found) / len(requested) if requested else 1.0


@dataclass(frozen=True)
class Point:
    """A claim about the background, the number of figures, or a figure; None means not claimed."""

    background: str | None = None
    count: int | None = None
    shape: str | None = None
    colour: str | None = None
    place: str | None = None
    size: str | None = None
    absent: bool = False
    """Claims that there is no such figure."""


def read_point(text: str) -> Point | None:
    """Parse a claim in either language; None if it matches no template."""
    for language in LANGUAGES:
        for kind, phrase in point_phrases(language).items():
            slots = phrase.read(text)
            if slots is not None:
                count = int(slots["count"]) if "count" in slots else None
                rest = {name: value for name, value in slots.items() if name != "count"}
                return Point(count=count, absent=kind == "absent", **rest)
    return None


def holds(point: Point, seen: DetectedScene) -> bool | None:
    """Whether the claim is true of the detected contents; None if a deciding attribute is undetermined."""
    if point.background is not None:
        return None if seen.background is None else seen.background == point.background
    if point.count is not None:
        return len(seen.figures) == point.count
    fits = [_fits(point, figure) for figure in seen.figures]
    some = True if True in fits else None if None in fits else False
    return some if some is None else some != point.absent


def _fits(point: Point, figure: DetectedFigure) -> bool | None:
    """Whether a figure has all claimed attributes; None if none contradicts and one is undetermined."""
    fits: bool | None = True
    for name in ("shape", "colour", "place", "size"):
        requested, actual = getattr(point, name), getattr(figure, name)
        if requested is None:
            continue
        if actual is None:
            fits = None
        elif actual != requested:
            return False
    return fits


@cache
def point_phrases(language: Language) -> dict[str, Phrase]:
    return {kind: Phrase(template, language) for kind, template in language_words(language).points.items()}
