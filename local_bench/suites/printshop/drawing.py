"""Scenes as pixels: 64x64 RGB8, drawn in whole numbers only, so that the bytes are the same everywhere.

A figure is sampled at 4x4 points a pixel and its coverage softened by a (1 2 1) filter each way, for edges that a small
autoencoder can follow. Where exactly it stands, how large it is and what its colours really are is the *hand*, drawn
from a generator; a scene and a hand make one picture.
"""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from local_bench.suites.printshop.scene import BACKGROUNDS, COLOURS, PLACES, SIZES, Scene

SIDE = 64
Pixels = NDArray[np.uint8]
Ints = NDArray[np.int64]
RGB = tuple[int, int, int]

_SUB = 4
_TINT = 6
_REACH_X, _REACH_Y = 8, 20


@dataclass(frozen=True)
class Stroke:
    """How one figure departs from its place, size and colour."""

    right: int
    """Quarters of a pixel."""
    down: int
    larger: int
    """Quarters of a pixel beyond the least of its size; what is more than the size allows is cut."""
    tint: RGB


@dataclass(frozen=True)
class Hand:
    """How one picture departs from the plain scene; a stroke for each figure, in the scene's order."""

    tint: RGB
    strokes: tuple[Stroke, ...]

    def of(self, order: tuple[int | None, ...], fresh: Stroke) -> "Hand":
        """The same hand for other figures: each the stroke of the one it came from, `fresh` where it came from none."""
        return replace(self, strokes=tuple(fresh if i is None else self.strokes[i] for i in order))


def sample_stroke(rng: np.random.Generator) -> Stroke:
    """A stroke: up to 2 pixels aside, 5 up or down, 6 levels of tint."""
    right = int(rng.integers(-_REACH_X, _REACH_X + 1))
    down = int(rng.integers(-_REACH_Y, _REACH_Y + 1))
    return Stroke(right, down, int(rng.integers(0, 7)), _tint(rng))


def sample_hand(rng: np.random.Generator, figures: int) -> Hand:
    """A hand for that many figures."""
    return Hand(_tint(rng), tuple(sample_stroke(rng) for _ in range(figures)))


def draw(scene: Scene, hand: Hand) -> Pixels:
    """The picture: uint8, 64x64x3. The same scene and hand give the same bytes."""
    assert len(hand.strokes) == len(scene.figures)
    picture = np.empty((SIDE, SIDE, 3), np.int64)
    picture[:] = _tinted(BACKGROUNDS[scene.background], hand.tint)
    for figure, stroke in zip(scene.figures, hand.strokes, strict=True):
        least, most = SIZES[figure.size]
        radius = min(least + stroke.larger, most)
        x, y = PLACES[figure.place] * _SUB + stroke.right, SIDE // 2 * _SUB + stroke.down
        reach = radius // _SUB + 3
        left, top = x // _SUB - reach, y // _SUB - reach
        side = 2 * reach + 1
        cover = coverage(figure.shape, radius, x - left * _SUB, y - top * _SUB, side)[..., None]  # [side, side, 1]
        x0, y0, x1, y1 = max(left, 0), max(top, 0), min(left + side, SIDE), min(top + side, SIDE)
        cover = cover[y0 - top : y1 - top, x0 - left : x1 - left]
        window = picture[y0:y1, x0:x1]
        colour = _tinted(COLOURS[figure.colour], stroke.tint)
        picture[y0:y1, x0:x1] = (window * (FULL - cover) + colour * cover + FULL // 2) // FULL
    return picture.astype(np.uint8)


def render(scene: Scene, rng: np.random.Generator) -> Pixels:
    """The scene by a hand drawn from `rng`: uint8, 64x64x3."""
    return draw(scene, sample_hand(rng, len(scene.figures)))


def enlarged(pixels: Pixels, times: int = 2) -> Pixels:
    """Every pixel as a block of `times` x `times`: larger, with nothing added."""
    return pixels.repeat(times, 0).repeat(times, 1)


FULL = _SUB * _SUB * 16
"""What `coverage` gives where a figure covers a pixel and its neighbours wholly."""


@lru_cache(4096)
def coverage(shape: str, radius: int, x: int, y: int, side: int) -> Ints:
    """How much of each pixel the shape covers, softened: whole numbers, 0 to FULL, `side` x `side`.

    Its box has the half side `radius` about (x, y), in quarters of a pixel.
    """
    at = 2 * np.arange(side * _SUB, dtype=np.int64) + 1  # eighths of a pixel: the middles of the samples
    inside = _inside(shape, (at - 2 * x)[None, :], (at - 2 * y)[:, None], 2 * radius)
    cover: Ints = inside.reshape(side, _SUB, side, _SUB).sum((1, 3))
    for axis in (0, 1):
        cover = 2 * cover + np.roll(cover, 1, axis) + np.roll(cover, -1, axis)
    cover.setflags(write=False)
    return cover


def _inside(shape: str, x: Ints, y: Ints, r: int) -> Ints:
    match shape:
        case "ring":
            squared = x * x + y * y
            found = (squared <= r * r) & (4 * squared >= r * r)
        case "square":
            found = np.maximum(abs(x), abs(y)) <= r
        case "triangle":
            found = (2 * abs(x) <= y + r) & (y <= r)
        case _:
            found = (np.minimum(abs(x), abs(y)) * 10 <= 3 * r) & (np.maximum(abs(x), abs(y)) <= r)
    return found.astype(np.int64)


def _tint(rng: np.random.Generator) -> RGB:
    a, b, c = (int(v) for v in rng.integers(-_TINT, _TINT + 1, 3))
    return a, b, c


def _tinted(colour: RGB, tint: RGB) -> Ints:
    return np.array([min(max(c + t, 0), 255) for c, t in zip(colour, tint, strict=True)], np.int64)
