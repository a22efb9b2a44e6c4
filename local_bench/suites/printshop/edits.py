"""Edits: one thing about a scene is changed, in words, and everything else stays.

A source and its target are drawn by one hand, so that what is not edited does not move by a pixel.
"""

from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from local_bench.suites.printshop.drawing import Pixels, draw, sample_hand, sample_stroke
from local_bench.suites.printshop.phrases import LANGUAGES, Language, Phrase, language_words
from local_bench.suites.printshop.sampling import Split, choose, held_out, sample_figure, sample_scene
from local_bench.suites.printshop.scene import BACKGROUNDS, COLOURS, PLACES, SHAPES, Figure, Scene, is_scene

KINDS = ("recolour", "reshape", "background", "add", "remove", "move")
_FIGURES = {"add": 1, "move": 1, "remove": 2}
"""How many figures the source of an edit has, where that is not free: an edit may not leave the world."""


@dataclass(frozen=True)
class Edit:
    """A source, what is asked, and what is then to be seen."""

    kind: str
    slots: tuple[tuple[str, str], ...]
    """What fills the instruction: (slot, name), sorted."""
    source: Scene
    target: Scene
    origins: tuple[int | None, ...]
    """Of each figure of the target, which figure of the source it is; None for one that was added."""


def apply_edit(source: Scene, kind: str, slots: dict[str, str]) -> Edit | None:
    """The edit of `source`, or None where it is not there to be made: nothing of that shape, no change, no room."""
    shapes = [figure.shape for figure in source.figures]
    shape = slots.get("shape", "")
    at = shapes.index(shape) if shape in shapes else None
    background = source.background
    moved: list[tuple[Figure, int | None]] = [(figure, i) for i, figure in enumerate(source.figures)]
    if kind == "background":
        background = slots["background"]
    elif kind == "add":
        moved.append((Figure(shape, slots["colour"], slots["place"], slots.get("size", "large")), None))
    elif at is None:
        return None
    elif kind == "remove":
        moved.pop(at)
    else:
        changes = {"recolour": ("colour", "colour"), "reshape": ("shape", "new_shape"), "move": ("place", "place")}
        attribute, slot = changes[kind]
        moved[at] = (replace(source.figures[at], **{attribute: slots[slot]}), at)
    moved.sort(key=lambda pair: PLACES[pair[0].place])
    figures = tuple(figure for figure, _ in moved)
    if not is_scene(figures) or (background, figures) == (source.background, source.figures):
        return None
    target = Scene(background, figures)
    return Edit(kind, tuple(sorted(slots.items())), source, target, tuple(origin for _, origin in moved))


def sample_edit(rng: np.random.Generator, kind: str | None = None, split: Split = "any") -> Edit:
    """An edit of that kind (None: any, as likely). In `train` neither source nor target is a held-out pair; in
    `held_out` one of them is, which a move, that knows one figure only, cannot be."""
    assert (kind, split) != ("move", "held_out"), "a move has no pair that could be held out"
    kind = kind or choose(rng, KINDS, ("move",) if split == "held_out" else ())
    while True:
        source = sample_scene(rng, _FIGURES.get(kind))
        edit = apply_edit(source, kind, _slots(rng, source, kind))
        if edit is None:
            continue
        kept_out = held_out(edit.source) or held_out(edit.target)
        if split == "any" or kept_out == (split == "held_out"):
            return edit


def draw_edit(edit: Edit, rng: np.random.Generator) -> tuple[Pixels, Pixels]:
    """Source and target, both uint8 64x64x3, by one hand drawn from `rng`."""
    hand = sample_hand(rng, len(edit.source.figures))
    fresh = sample_stroke(rng)
    return draw(edit.source, hand), draw(edit.target, hand.of(edit.origins, fresh))


def write_instruction(edit: Edit, language: Language = "en", wording: int = 0) -> str:
    """The edit in words: the `wording`-th way (taken round) of that language."""
    ways = _ways(edit.kind, language)
    slots = dict(edit.slots)
    if edit.kind == "add" and slots.get("size") == "large":
        slots["size"] = ""
    if edit.kind == "move":
        slots["goal"] = slots["place"]
    return ways[wording % len(ways)].fill(**slots)


def sample_instruction(edit: Edit, rng: np.random.Generator, language: Language | None = None) -> str:
    """The edit in words drawn from `rng`."""
    chosen: Language = choose(rng, LANGUAGES) if language is None else language
    return write_instruction(edit, chosen, int(rng.integers(60)))


def read_instruction(text: str, source: Scene) -> Edit | None:
    """The edit that a text asks of `source`; None where it is no instruction of ours or cannot be carried out."""
    for language in LANGUAGES:
        for kind in KINDS:
            for way in _ways(kind, language):
                slots = way.read(text)
                if slots is None:
                    continue
                if "goal" in slots:
                    slots["place"] = slots.pop("goal")
                if kind == "add":
                    slots = {"size": "large", **slots}
                return apply_edit(source, kind, slots)
    return None


@cache
def _ways(kind: str, language: Language) -> list[Phrase]:
    return [Phrase(template, language) for template in language_words(language).instructions[kind]]


def _slots(rng: np.random.Generator, source: Scene, kind: str) -> dict[str, str]:
    figure = choose(rng, source.figures)
    match kind:
        case "background":
            return {"background": choose(rng, BACKGROUNDS, (source.background,))}
        case "add":
            new = sample_figure(rng, choose(rng, PLACES), (figure.shape,))
            return {"shape": new.shape, "colour": new.colour, "place": new.place, "size": new.size}
        case "recolour":
            return {"shape": figure.shape, "colour": choose(rng, COLOURS, (figure.colour,))}
        case "reshape":
            return {"shape": figure.shape, "new_shape": choose(rng, SHAPES, (figure.shape,))}
        case "move":
            return {"shape": figure.shape, "place": choose(rng, PLACES, (figure.place,))}
    return {"shape": figure.shape}
