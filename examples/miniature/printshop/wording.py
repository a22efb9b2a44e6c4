"""Generation of captions, instructions and claims as text, whose parsers are in `local_bench.suites.printshop`; and the
words of these texts."""

import re
from functools import cache

from local_bench.suites.printshop.checker import DetectedFigure, DetectedScene
from local_bench.suites.printshop.matching import Point, holds, point_phrases
from local_bench.suites.printshop.phrases import (
    LANGUAGES,
    SLOTS,
    Edit,
    Language,
    Phrase,
    caption_phrases,
    instruction_templates,
    language_words,
)
from local_bench.suites.printshop.scene import Scene


def fill(phrase: Phrase, **slots: str) -> str:
    """Fill the template. A slot's value is a name (`centre`), or plain text for a slot without a vocabulary.

    An empty `size` is omitted.
    """
    words = language_words(phrase.language)
    values = {name: words.slot(name)[value] if value else "" for name, value in slots.items() if name in SLOTS}
    texts = {name: value for name, value in slots.items() if name not in SLOTS}
    return words.join(phrase.text.format(**values, **texts))


def write_caption(scene: Scene, wording: str = "en.plain", swapped: bool = False, say_large: bool = False) -> str:
    """The scene's caption in a style; `swapped` describes the right-hand figure first.

    Size `large` is omitted unless `say_large` is set.
    """
    language, caption, figure = caption_phrases(wording)
    figures = scene.figures[::-1] if swapped else scene.figures
    texts = [
        fill(
            figure, shape=f.shape, colour=f.colour, place=f.place, size=f.size if say_large or f.size == "small" else ""
        )
        for f in figures
    ]
    return fill(caption, figures=language_words(language).joiner.join(texts), background=scene.background)


def write_instruction(edit: Edit, language: Language = "en", wording: int = 0) -> str:
    """The instruction text, with template number `wording` (modulo the number of templates) of the language."""
    templates = instruction_templates(edit.kind, language)
    slots = dict(edit.slots)
    if edit.kind == "add" and slots.get("size") == "large":
        slots["size"] = ""
    if edit.kind == "move":
        slots["goal"] = slots["place"]
    return fill(templates[wording % len(templates)], **slots)


def write_point(point: Point, language: Language = "en") -> str:
    """The claim as text."""
    slots = {name: str(value) for name, value in vars(point).items() if value is not None and name != "absent"}
    kind = _kind(point)
    if kind in ("thing", "placed_thing"):
        slots = {"size": "", **slots}
    return fill(point_phrases(language)[kind], **slots)


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


def true_of(point: Point, scene: Scene) -> bool:
    """Whether the claim is true of a scene."""
    figures = tuple(DetectedFigure(f.shape, f.colour, f.place, f.size, 1.0) for f in scene.figures)
    return holds(point, DetectedScene(scene.background, figures, False, 1.0)) is True


@cache
def vocabulary() -> tuple[str, ...]:
    """All words and punctuation of the miniature's texts, sorted: the tokenizer's vocabulary."""
    tokens = {"."}  # separates a prompt's sentences
    for language in LANGUAGES:
        tokens.update(_WORD.findall(re.sub(r"\{\w+\}", " ", _all_text(language_words(language).model_dump()))))
    return tuple(sorted(tokens))


_WORD = re.compile(r"[a-z]+|[^\sa-z]+")


def _all_text(data: object) -> str:
    match data:
        case str():
            return data.lower()
        case dict():
            return " ".join(
                _all_text(value) for key, value in data.items() if key not in ("other_spellings", "between")
            )
        case list():
            return " ".join(map(_all_text, data))
    return ""


def split_words(text: str) -> list[str]:
    """Split a text into words: the longest known word, else a run of Latin letters or a single character."""
    longest_first = sorted((word for word in vocabulary() if not word.isascii()), key=len, reverse=True)
    pattern = "|".join([*map(re.escape, longest_first), r"[a-z]+", r"\S"])
    return re.findall(pattern, text.lower())


def points_of(scene: Scene) -> list[Point]:
    """Evaluation points of a scene: each figure with its size, its position, the background and the number of figures.
    Together they are true of this scene only."""
    things = [Point(shape=f.shape, colour=f.colour, size=f.size) for f in scene.figures]
    places = [Point(shape=f.shape, place=f.place) for f in scene.figures]
    return [*things, *places, Point(background=scene.background), Point(count=len(scene.figures))]
