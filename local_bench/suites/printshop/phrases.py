"""The vocabulary in `words.yaml`, phrase templates that can be parsed, captions in English and simplified
Chinese, and edits: an instruction changes one property of a scene.

Source and target of an edit are rendered with the same variation, so that unedited parts are equal.
"""

import re
from dataclasses import dataclass, replace
from functools import cache, cached_property
from pathlib import Path
from typing import Literal

from local_bench.core.yamlfile import Strict, load_yaml
from local_bench.suites.printshop.scene import PLACES, Figure, Scene, is_scene

Language = Literal["en", "zh"]
LANGUAGES: tuple[Language, ...] = ("en", "zh")

Words = dict[str, str]


class CaptionWords(Strict):
    """Templates of one caption style."""

    caption: str
    figure: str


class ShopWords(Strict):
    """Texts of titles and briefs."""

    items: dict[str, list[str]]
    alone: list[str]
    edit: list[str]
    set: list[str]


class LanguageWords(Strict):
    """The vocabulary and templates of one language."""

    between: str
    joiner: str
    other_spellings: Words
    shapes: Words
    colours: Words
    backgrounds: Words
    sizes: Words
    places: Words
    goals: Words
    counts: dict[int, str]
    thing: str
    captions: dict[str, CaptionWords]
    instructions: dict[str, list[str]]
    points: Words
    shop: ShopWords

    def slot(self, name: str) -> Words:
        """The possible values of a slot."""
        if name == "count":
            return {str(count): words for count, words in self.counts.items()}
        table = {"new_shape": "shapes"}.get(name, f"{name}s")
        values: Words = getattr(self, table)
        return values

    def join(self, text: str) -> str:
        """Join the words of a template: no space before a comma, and no spaces in Chinese."""
        return self.between.join(text.split()).replace(" ,", ",")


class _File(Strict):
    en: LanguageWords
    zh: LanguageWords


@cache
def language_words(language: Language) -> LanguageWords:
    """The vocabulary of a language, from `words.yaml`."""
    file = load_yaml(Path(__file__).with_name("words.yaml"), _File)
    return file.en if language == "en" else file.zh


@dataclass(frozen=True)
class Phrase:
    """A template of one language, such as `make the {shape} {colour}`."""

    template: str
    language: Language

    def read(self, text: str) -> dict[str, str] | None:
        """Parse a text; return the slots' names, or None if it does not match. An omitted size is not in the result."""
        words = language_words(self.language)
        text = " ".join(text.lower().split()).removesuffix(".")
        for other, ours in words.other_spellings.items():
            text = text.replace(other, ours)
        match = self._pattern.fullmatch(text)
        if match is None:
            return None
        slots = {name: value for name, value in match.groupdict().items() if value is not None}
        for name in (name for name in slots if name in SLOTS):
            slots[name] = next(value for value, word in words.slot(name).items() if words.join(word) == slots[name])
        return slots

    @cached_property
    def text(self) -> str:
        return self.template.replace("{thing}", language_words(self.language).thing)

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        words = language_words(self.language)
        gap = words.between
        pattern = ""
        for word in self.text.split():
            slot = word[1:-1] if word.startswith("{") else ""
            if not slot:
                part = re.escape(word)
            elif slot in SLOTS:
                options = sorted(map(words.join, words.slot(slot).values()), key=len, reverse=True)
                part = f"(?P<{slot}>{'|'.join(map(re.escape, options))})"
            else:
                part = f"(?P<{slot}>.+)"
            lead = "" if not pattern or word == "," else re.escape(gap)
            pattern += f"(?:{lead}{part})?" if slot == "size" else lead + part
        return re.compile(pattern)


SLOTS = ("shape", "new_shape", "colour", "background", "size", "place", "goal", "count")


def wordings(language: Language | None = None) -> tuple[str, ...]:
    """The names of the caption styles of one language or of all, such as `en.plain`."""
    languages = LANGUAGES if language is None else (language,)
    return tuple(f"{each}.{name}" for each in languages for name in language_words(each).captions)


def read_caption(text: str) -> Scene | None:
    """Parse a caption in any style; None if it matches none."""
    for wording in wordings():
        language, caption, figure = caption_phrases(wording)
        slots = caption.read(text)
        if slots is None:
            continue
        parts = [figure.read(part) for part in slots["figures"].split(language_words(language).joiner)]
        figures = [Figure(**{"size": "large", **part}) for part in parts if part is not None]
        figures.sort(key=lambda f: ("left", "centre", "right").index(f.place))
        if len(figures) == len(parts) and is_scene(tuple(figures)):
            return Scene(slots["background"], tuple(figures))
    return None


@cache
def caption_phrases(wording: str) -> tuple[Language, Phrase, Phrase]:
    language: Language = "zh" if wording.startswith("zh.") else "en"
    words = language_words(language).captions[wording.partition(".")[2]]
    return language, Phrase(words.caption, language), Phrase(words.figure, language)


KINDS = ("recolour", "reshape", "background", "add", "remove", "move")


@dataclass(frozen=True)
class Edit:
    """An edit: source, instruction and target."""

    kind: str
    slots: tuple[tuple[str, str], ...]
    """Slots of the instruction: (slot, name), sorted."""
    source: Scene
    target: Scene
    origins: tuple[int | None, ...]
    """For each figure of the target, its index in the source; None for an added figure."""


def apply_edit(source: Scene, kind: str, slots: dict[str, str]) -> Edit | None:
    """The edit of `source`, or None if it is not possible: no figure of that shape, no change, or no free position."""
    shapes = [figure.shape for figure in source.figures]
    shape = slots.get("shape", "")
    at = shapes.index(shape) if shape in shapes else None
    background = source.background
    target_figures: list[tuple[Figure, int | None]] = [(figure, i) for i, figure in enumerate(source.figures)]
    if kind == "background":
        background = slots["background"]
    elif kind == "add":
        target_figures.append((Figure(shape, slots["colour"], slots["place"], slots.get("size", "large")), None))
    elif at is None:
        return None
    elif kind == "remove":
        target_figures.pop(at)
    else:
        changes = {"recolour": ("colour", "colour"), "reshape": ("shape", "new_shape"), "move": ("place", "place")}
        attribute, slot = changes[kind]
        target_figures[at] = (replace(source.figures[at], **{attribute: slots[slot]}), at)
    target_figures.sort(key=lambda pair: PLACES[pair[0].place])
    figures = tuple(figure for figure, _ in target_figures)
    if not is_scene(figures) or (background, figures) == (source.background, source.figures):
        return None
    target = Scene(background, figures)
    return Edit(kind, tuple(sorted(slots.items())), source, target, tuple(origin for _, origin in target_figures))


def read_instruction(text: str, source: Scene) -> Edit | None:
    """Parse an instruction for `source`; None if it matches no template or is not possible."""
    for language in LANGUAGES:
        for kind in KINDS:
            for template in instruction_templates(kind, language):
                slots = template.read(text)
                if slots is None:
                    continue
                if "goal" in slots:
                    slots["place"] = slots.pop("goal")
                if kind == "add":
                    slots = {"size": "large", **slots}
                return apply_edit(source, kind, slots)
    return None


@cache
def instruction_templates(kind: str, language: Language) -> list[Phrase]:
    return [Phrase(template, language) for template in language_words(language).instructions[kind]]
