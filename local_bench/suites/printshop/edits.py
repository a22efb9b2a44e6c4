"""Edits: an instruction changes one property of a scene.

Source and target are rendered with the same variation, so that unedited parts are equal.
"""

from dataclasses import dataclass, replace
from functools import cache

from local_bench.suites.printshop.phrases import LANGUAGES, Language, Phrase, language_words
from local_bench.suites.printshop.scene import PLACES, Figure, Scene, is_scene

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


def write_instruction(edit: Edit, language: Language = "en", wording: int = 0) -> str:
    """The instruction text, with template number `wording` (modulo the number of templates) of the language."""
    templates = _templates(edit.kind, language)
    slots = dict(edit.slots)
    if edit.kind == "add" and slots.get("size") == "large":
        slots["size"] = ""
    if edit.kind == "move":
        slots["goal"] = slots["place"]
    return templates[wording % len(templates)].fill(**slots)


def read_instruction(text: str, source: Scene) -> Edit | None:
    """Parse an instruction for `source`; None if it matches no template or is not possible."""
    for language in LANGUAGES:
        for kind in KINDS:
            for template in _templates(kind, language):
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
def _templates(kind: str, language: Language) -> list[Phrase]:
    return [Phrase(template, language) for template in language_words(language).instructions[kind]]
