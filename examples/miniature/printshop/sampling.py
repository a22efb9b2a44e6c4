"""Random scenes, edits, captions and claims, rendered images, and the split into training and held-out scenes.

The split is determined by sha256 digests, so it is the same on every machine:

- of scenes with two figures, a tenth of the *pairs* of shapes and colours (in any order, with any size and background)
  is held out, which tests composition.
- of scenes with one figure, a tenth of the (scene, wording) combinations is held out.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Literal, TypeVar

import numpy as np

from examples.miniature.printshop.wording import true_of, write_caption, write_instruction
from local_bench.core.types import digest
from local_bench.suites.printshop.matching import Point
from local_bench.suites.printshop.phrases import KINDS, LANGUAGES, Edit, Language, apply_edit, wordings
from local_bench.suites.printshop.scene import (
    BACKGROUNDS,
    COLOURS,
    PLACES,
    RGB,
    SHAPES,
    SIZES,
    Figure,
    FigureVariation,
    Pixels,
    Scene,
    Variation,
    draw,
)

Split = Literal["train", "held_out", "any"]
T = TypeVar("T")


_TINT = 6
_REACH_X, _REACH_Y = 8, 20


def sample_figure_variation(rng: np.random.Generator) -> FigureVariation:
    """A random figure variation: up to 2 pixels horizontally, 5 vertically, 6 levels of tint."""
    right = int(rng.integers(-_REACH_X, _REACH_X + 1))
    down = int(rng.integers(-_REACH_Y, _REACH_Y + 1))
    return FigureVariation(right, down, int(rng.integers(0, 7)), _tint(rng))


def sample_variation(rng: np.random.Generator, figures: int) -> Variation:
    """A random variation for the given number of figures."""
    return Variation(_tint(rng), tuple(sample_figure_variation(rng) for _ in range(figures)))


def render(scene: Scene, rng: np.random.Generator) -> Pixels:
    """Render the scene with a random variation: uint8, 64x64x3."""
    return draw(scene, sample_variation(rng, len(scene.figures)))


def _tint(rng: np.random.Generator) -> RGB:
    a, b, c = (int(v) for v in rng.integers(-_TINT, _TINT + 1, 3))
    return a, b, c


def choose(rng: np.random.Generator, of: Sequence[T] | Mapping[T, object], but: tuple[T, ...] = ()) -> T:
    """A random item, uniformly distributed, excluding those in `but`."""
    left = [item for item in of if item not in but]
    return left[int(rng.integers(len(left)))]


def held_out(scene: Scene) -> bool:
    """Whether the scene's pair of figures is excluded from training; False for a single figure."""
    if len(scene.figures) < 2:
        return False
    pair = sorted(f"{figure.colour} {figure.shape}" for figure in scene.figures)
    return _one_in_ten({"pair": pair})


def wording_held_out(scene: Scene, wording: str) -> bool:
    """Whether a scene with one figure is excluded from training with this wording."""
    return len(scene.figures) == 1 and _one_in_ten({"scene": asdict(scene), "wording": wording})


def sample_scene(rng: np.random.Generator, figures: int | None = None, split: Split = "any") -> Scene:
    """A random scene with one or two `figures` (None: equally likely) and uniform attributes.

    Split `held_out` gives held-out pairs, which have two figures.
    """
    assert (figures, split) != (1, "held_out"), "a single figure is held out by its wording only"
    if split == "held_out":
        figures = 2
    count = figures or int(rng.integers(1, 3))
    while True:
        scene = _scene(rng, count)
        if split == "any" or held_out(scene) == (split == "held_out"):
            return scene


def sample_figure(rng: np.random.Generator, place: str, but_shapes: tuple[str, ...] = ()) -> Figure:
    """A figure at `place` with none of the shapes in `but_shapes`."""
    return Figure(choose(rng, SHAPES, but_shapes), choose(rng, COLOURS), place, choose(rng, SIZES))


def _scene(rng: np.random.Generator, count: int) -> Scene:
    background = choose(rng, BACKGROUNDS)
    if count == 1:
        return Scene(background, (sample_figure(rng, choose(rng, PLACES)),))
    left = sample_figure(rng, "left")
    return Scene(background, (left, sample_figure(rng, "right", (left.shape,))))


def _one_in_ten(of: dict[str, object]) -> bool:
    return int(digest(of)[:8], 16) % 10 == 0


_FIGURES = {"add": 1, "move": 1, "remove": 2}
"""Number of figures in the source, for edits that need a given number to give a valid scene."""


def sample_edit(rng: np.random.Generator, kind: str | None = None, split: Split = "any") -> Edit:
    """A random edit of a kind (None: uniform over kinds). With split `train` neither source nor target is a held-out
    pair; with `held_out` at least one is, which is impossible for `move`, whose scenes have one figure."""
    assert (kind, split) != ("move", "held_out"), "a move has one figure and cannot be held out"
    kind = kind or choose(rng, KINDS, ("move",) if split == "held_out" else ())
    while True:
        source = sample_scene(rng, _FIGURES.get(kind))
        edit = apply_edit(source, kind, _slots(rng, source, kind))
        if edit is None:
            continue
        is_held_out = held_out(edit.source) or held_out(edit.target)
        if split == "any" or is_held_out == (split == "held_out"):
            return edit


def draw_edit(edit: Edit, rng: np.random.Generator) -> tuple[Pixels, Pixels]:
    """Render source and target, both uint8 64x64x3, with one random variation."""
    variation = sample_variation(rng, len(edit.source.figures))
    fresh = sample_figure_variation(rng)
    of_target = replace(variation, figures=tuple(fresh if i is None else variation.figures[i] for i in edit.origins))
    return draw(edit.source, variation), draw(edit.target, of_target)


def sample_instruction(edit: Edit, rng: np.random.Generator, language: Language | None = None) -> str:
    """The instruction text with a random template."""
    chosen: Language = choose(rng, LANGUAGES) if language is None else language
    return write_instruction(edit, chosen, int(rng.integers(60)))


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


def sample_caption(
    scene: Scene, rng: np.random.Generator, language: Language | None = None, training: bool = False
) -> str:
    """A caption in a random style; with `training`, styles held out for the scene are excluded."""
    names = [name for name in wordings(language) if not (training and wording_held_out(scene, name))]
    return write_caption(scene, choose(rng, names), bool(rng.random() < 0.3), bool(rng.random() < 0.3))


def sample_point(scene: Scene, truthful: bool, rng: np.random.Generator) -> Point:
    """A random claim about the scene, true or false according to `truthful`."""
    while True:
        count = int(rng.integers(1, 3))
        figure = choose(rng, sample_scene(rng).figures if rng.random() < 0.5 else scene.figures)
        point = choose(
            rng,
            (
                Point(background=choose(rng, BACKGROUNDS) if rng.random() < 0.5 else scene.background),
                Point(count=count),
                Point(shape=figure.shape, colour=figure.colour),
                Point(shape=figure.shape, colour=figure.colour, size=figure.size),
                Point(shape=figure.shape, colour=figure.colour, place=figure.place),
                Point(shape=figure.shape, place=figure.place),
                Point(shape=figure.shape, colour=choose(rng, COLOURS)),
                Point(shape=figure.shape, size=figure.size),
                Point(shape=choose(rng, SHAPES), absent=True),
            ),
        )
        if true_of(point, scene) == truthful:
            return point
