"""Evaluation points: single claims about an image, as text, parsed and checked against the detected contents."""

from dataclasses import dataclass
from functools import cache

from local_bench.suites.printshop.checker import DetectedFigure, DetectedScene
from local_bench.suites.printshop.phrases import LANGUAGES, Language, Phrase, language_words
from local_bench.suites.printshop.scene import Scene


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


def write_point(point: Point, language: Language = "en") -> str:
    """The claim as text."""
    slots = {name: str(value) for name, value in vars(point).items() if value is not None and name != "absent"}
    kind = _kind(point)
    if kind in ("thing", "placed_thing"):
        slots = {"size": "", **slots}
    return _phrases(language)[kind].fill(**slots)


def read_point(text: str) -> Point | None:
    """Parse a claim in either language; None if it matches no template."""
    for language in LANGUAGES:
        for kind, phrase in _phrases(language).items():
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


def true_of(point: Point, scene: Scene) -> bool:
    """Whether the claim is true of a scene."""
    figures = tuple(DetectedFigure(f.shape, f.colour, f.place, f.size, 1.0) for f in scene.figures)
    return holds(point, DetectedScene(scene.background, figures, False, 1.0)) is True


def points_of(scene: Scene) -> list[Point]:
    """Evaluation points of a scene: each figure with its size, its position, the background and the number of figures.
    Together they are true of this scene only."""
    things = [Point(shape=f.shape, colour=f.colour, size=f.size) for f in scene.figures]
    places = [Point(shape=f.shape, place=f.place) for f in scene.figures]
    return [*things, *places, Point(background=scene.background), Point(count=len(scene.figures))]


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


def _kind(point: Point) -> str:
    """The name of the template for the claim."""
    if point.background is not None:
        return "background"
    if point.count is not None:
        return "count"
    assert point.shape is not None, point
    if point.absent:
        return "absent"
    if point.colour is None:
        kinds = [name for name in ("place", "size") if getattr(point, name) is not None]
        assert len(kinds) == 1, point
        return kinds[0]
    return "thing" if point.place is None else "placed_thing"


@cache
def _phrases(language: Language) -> dict[str, Phrase]:
    return {kind: Phrase(template, language) for kind, template in language_words(language).points.items()}
