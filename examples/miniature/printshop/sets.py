"""Image sets with a common style, and sets in which one image deviates from it."""

from dataclasses import dataclass, replace

import numpy as np

from examples.miniature.printshop.sampling import choose, sample_variation
from local_bench.suites.printshop.scene import (
    BACKGROUNDS,
    COLOURS,
    PLACES,
    SHAPES,
    SIZES,
    Figure,
    FigureVariation,
    Pixels,
    Scene,
    Variation,
    draw,
)

STYLE = ("background", "colour", "size")
"""Attributes shared by the images of a set; shape and position vary."""


@dataclass(frozen=True)
class ImageSet:
    """Two to four images with one figure each."""

    scenes: tuple[Scene, ...]
    breaker: int | None
    """Index of the deviating image; None if there is none."""
    broken: str | None
    """The attribute of STYLE in which it deviates."""


def sample_set(rng: np.random.Generator, count: int, broken: str | None = None) -> ImageSet:
    """A random set of `count` images; with `broken` (one of STYLE) one image deviates in that attribute (count > 2)."""
    assert 2 <= count <= len(SHAPES), count
    assert broken is None or count > 2, "in a set of two, the deviating image is ambiguous"
    background, colour, size = choose(rng, BACKGROUNDS), choose(rng, COLOURS), choose(rng, SIZES)
    shapes = [SHAPES[i] for i in rng.permutation(len(SHAPES))[:count]]
    scenes = [Scene(background, (Figure(shape, colour, choose(rng, PLACES), size),)) for shape in shapes]
    if broken is None:
        return ImageSet(tuple(scenes), None, None)
    breaker = int(rng.integers(count))
    scenes[breaker] = _break(scenes[breaker], broken, rng)
    return ImageSet(tuple(scenes), breaker, broken)


def draw_set(images: ImageSet, rng: np.random.Generator) -> list[Pixels]:
    """Render the images, uint8 64x64x3 each, with variations that share tints and sizes."""
    style = sample_variation(rng, 1)
    variations = [_with_style(sample_variation(rng, 1), style) for _ in images.scenes]
    return [draw(scene, variation) for scene, variation in zip(images.scenes, variations, strict=True)]


def style_of(scene: Scene) -> tuple[str, str, str]:
    """The style of a scene with one figure, in the order of STYLE."""
    (figure,) = scene.figures
    return scene.background, figure.colour, figure.size


def _break(scene: Scene, broken: str, rng: np.random.Generator) -> Scene:
    (figure,) = scene.figures
    match broken:
        case "background":
            return replace(scene, background=choose(rng, BACKGROUNDS, (scene.background,)))
        case "colour":
            return replace(scene, figures=(replace(figure, colour=choose(rng, COLOURS, (figure.colour,))),))
    return replace(scene, figures=(replace(figure, size=choose(rng, SIZES, (figure.size,))),))


def _with_style(variation: Variation, style: Variation) -> Variation:
    own, shared = variation.figures[0], style.figures[0]
    return Variation(style.tint, (FigureVariation(own.right, own.down, shared.larger, shared.tint),))
