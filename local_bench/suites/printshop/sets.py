"""Sets of pictures that were ordered in one style, and such that one of them breaks."""

from dataclasses import dataclass, replace

import numpy as np

from local_bench.suites.printshop.drawing import Hand, Pixels, Stroke, draw, sample_hand
from local_bench.suites.printshop.sampling import choose
from local_bench.suites.printshop.scene import BACKGROUNDS, COLOURS, PLACES, SHAPES, SIZES, Figure, Scene

STYLE = ("background", "colour", "size")
"""What the pictures of a set have in common; shape and place are each picture's own."""


@dataclass(frozen=True)
class PictureSet:
    """Two to four pictures of one figure each."""

    scenes: tuple[Scene, ...]
    breaker: int | None
    """Which of them, from 0, breaks the style; None where none does."""
    broken: str | None
    """What of STYLE it breaks."""


def sample_set(rng: np.random.Generator, count: int, broken: str | None = None) -> PictureSet:
    """A set in one style, of `count` pictures; with `broken`, one of STYLE, one of them differs in that (count > 2)."""
    assert 2 <= count <= len(SHAPES), count
    assert broken is None or count > 2, "of two pictures that differ, neither is the one that breaks the style"
    background, colour, size = choose(rng, BACKGROUNDS), choose(rng, COLOURS), choose(rng, SIZES)
    shapes = [SHAPES[i] for i in rng.permutation(len(SHAPES))[:count]]
    scenes = [Scene(background, (Figure(shape, colour, choose(rng, PLACES), size),)) for shape in shapes]
    if broken is None:
        return PictureSet(tuple(scenes), None, None)
    breaker = int(rng.integers(count))
    scenes[breaker] = _break(scenes[breaker], broken, rng)
    return PictureSet(tuple(scenes), breaker, broken)


def draw_set(pictures: PictureSet, rng: np.random.Generator) -> list[Pixels]:
    """The pictures, uint8 64x64x3 each: by hands that share their tints and how large they draw."""
    style = sample_hand(rng, 1)
    hands = [_alike(sample_hand(rng, 1), style) for _ in pictures.scenes]
    return [draw(scene, hand) for scene, hand in zip(pictures.scenes, hands, strict=True)]


def style_of(scene: Scene) -> tuple[str, str, str]:
    """What of a scene of one figure belongs to STYLE, in its order."""
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


def _alike(hand: Hand, style: Hand) -> Hand:
    own, shared = hand.strokes[0], style.strokes[0]
    return Hand(style.tint, (Stroke(own.right, own.down, shared.larger, shared.tint),))
