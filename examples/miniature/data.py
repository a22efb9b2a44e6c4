"""What is learnt from: images and words of the world without end, never what is held out.

A batch depends on its seed and number only. Prompts are a caption or an instruction alone, or followed by the title and
brief of a print shop's order, as `suites.servimage.questions.deliverables` puts them.
"""

from dataclasses import dataclass

import numpy as np

from examples.miniature.printshop.orderbook import frame
from examples.miniature.printshop.sampling import (
    choose,
    draw_edit,
    render,
    sample_edit,
    sample_instruction,
    sample_scene,
    wording_held_out,
)
from examples.miniature.printshop.wording import fill, write_caption
from local_bench.suites.printshop.phrases import KINDS, LANGUAGES, Edit, Language, Phrase, language_words, wordings
from local_bench.suites.printshop.scene import Figure, Pixels, Scene


@dataclass(frozen=True)
class Worded:
    """A prompt, and which of its characters speak of which figure."""

    text: str
    scene: Scene | None = None
    spans: tuple[tuple[int, int, Figure], ...] = ()
    edit: Edit | None = None


def sample_language(rng: np.random.Generator) -> Language:
    """English twice as often as Chinese."""
    return LANGUAGES[0] if rng.random() < 2 / 3 else LANGUAGES[1]


def framed(text: str, matter: str, language: Language, rng: np.random.Generator) -> str:
    """As an order has it, every other time."""
    if rng.random() < 0.5:
        return text
    title, brief = frame(matter, language, rng)
    return f"{text}. {title}. {brief}"


def worded_scene(scene: Scene, rng: np.random.Generator, frames: bool = True) -> Worded:
    """A prompt for the scene, in words that are not held out for it."""
    language = sample_language(rng)
    names = [name for name in wordings(language) if not wording_held_out(scene, name)]
    name, swapped, say_large = choose(rng, names), bool(rng.random() < 0.4), bool(rng.random() < 0.3)
    text = write_caption(scene, name, swapped, say_large)
    phrase = Phrase(language_words(language).captions[name.partition(".")[2]].figure, language)
    spans = []
    for figure in scene.figures:
        size = figure.size if say_large or figure.size == "small" else ""
        part = fill(phrase, shape=figure.shape, colour=figure.colour, place=figure.place, size=size)
        at = text.index(part)
        spans.append((at, at + len(part), figure))
    if frames:
        text = framed(text, "set" if rng.random() < 0.3 else "alone", language, rng)
    return Worded(text, scene, tuple(spans))


def worded_edit(edit: Edit, rng: np.random.Generator) -> Worded:
    """A prompt for the edit."""
    language = sample_language(rng)
    return Worded(framed(sample_instruction(edit, rng, language), "edit", language, rng), edit=edit)


def train_scene(rng: np.random.Generator, two: float = 0.5) -> Scene:
    """A scene of the training split, of two figures in a share `two` of all."""
    return sample_scene(rng, 2 if rng.random() < two else 1, "train")


def train_edit(rng: np.random.Generator) -> Edit:
    """An edit of the training split, each kind as likely."""
    return sample_edit(rng, choose(rng, KINDS), "train")


def images(seed: int, number: int, count: int, two: float = 0.5) -> tuple[list[Scene], Pixels]:
    """Scenes and their images, uint8 [count, 64, 64, 3]."""
    rng = np.random.default_rng([seed, number])
    scenes = [train_scene(rng, two) for _ in range(count)]
    return scenes, np.stack([render(scene, rng) for scene in scenes])


PRACTISED = (*KINDS, "recolour", "remove", "reshape")
"""Which figure is meant has to be found by its shape: what turns on that comes twice as often."""


def edits(seed: int, number: int, count: int) -> tuple[list[Edit], Pixels, Pixels]:
    """Edits with source and target, uint8 [count, 64, 64, 3] each."""
    rng = np.random.default_rng([seed, number, 1])
    found = [sample_edit(rng, choose(rng, PRACTISED), "train") for _ in range(count)]
    drawn = [draw_edit(edit, rng) for edit in found]
    return found, np.stack([source for source, _ in drawn]), np.stack([target for _, target in drawn])
