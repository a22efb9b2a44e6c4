"""The scenes of the miniature, one or two figures on a background, and their rendering as 64x64 RGB8 images.

The shapes were chosen to remain distinguishable after the blur of a small autoencoder: the two most similar (ring and
cross, triangle and cross) differ by 0.32 of the box's area after a blur of a twentieth of its side, where a disc and a
square differ by 0.22. The colours, including backgrounds, have RGB distances of at least 117.

Images are drawn with integer arithmetic, so that bytes are equal on every machine. A figure is sampled at 4x4 points
per pixel and its coverage smoothed with a (1 2 1) filter along both axes, which gives edges that a small autoencoder
can reproduce. A random *variation* sets exact positions, sizes and colours; a scene and a variation determine one
image.
"""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

SHAPES = ("ring", "square", "triangle", "cross")
COLOURS = {
    "red": (220, 35, 35),
    "green": (40, 165, 60),
    "blue": (40, 80, 220),
    "yellow": (240, 215, 40),
    "purple": (150, 30, 190),
    "pink": (245, 130, 190),
}
BACKGROUNDS = {
    "white": (245, 245, 245),
    "black": (20, 20, 20),
    "grey": (128, 128, 128),
    "cyan": (110, 205, 230),
}
PLACES = {"left": 16, "centre": 32, "right": 48}
"""Centre column of a figure, in pixels of 64."""
SIZES = {"small": (32, 36), "large": (46, 52)}
"""Half side of a figure's box in quarters of a pixel: minimum and maximum."""


@dataclass(frozen=True)
class Figure:
    """One coloured shape at one position."""

    shape: str
    colour: str
    place: str
    size: str = "large"

    def __post_init__(self) -> None:
        assert self.shape in SHAPES, self.shape
        assert self.colour in COLOURS, self.colour
        assert self.place in PLACES, self.place
        assert self.size in SIZES, self.size


@dataclass(frozen=True)
class Scene:
    """A background with one figure, or with two figures of different shapes, left and right, in that order."""

    background: str
    figures: tuple[Figure, ...]

    def __post_init__(self) -> None:
        assert self.background in BACKGROUNDS, self.background
        object.__setattr__(self, "figures", tuple(sorted(self.figures, key=lambda f: PLACES[f.place])))
        assert is_scene(self.figures), self.figures


def is_scene(figures: tuple[Figure, ...]) -> bool:
    """Whether these figures, sorted by position, are a valid scene."""
    if len(figures) == 2:
        return [f.place for f in figures] == ["left", "right"] and figures[0].shape != figures[1].shape
    return len(figures) == 1


def scene_from(data: dict[str, Any]) -> Scene:
    """The scene with these names, as in `sources.json`."""
    return Scene(data["background"], tuple(Figure(**figure) for figure in data["figures"]))


SIDE = 64
Pixels = NDArray[np.uint8]
Ints = NDArray[np.int64]
RGB = tuple[int, int, int]

_SUB = 4


@dataclass(frozen=True)
class FigureVariation:
    """Random offset of one figure from its nominal position, size and colour."""

    right: int
    """In quarters of a pixel."""
    down: int
    larger: int
    """In quarters of a pixel above the minimum of its size class; clipped at the maximum."""
    tint: RGB


@dataclass(frozen=True)
class Variation:
    """Random variation of an image; one figure variation per figure, in the scene's order."""

    tint: RGB
    figures: tuple[FigureVariation, ...]


def draw(scene: Scene, variation: Variation) -> Pixels:
    """Render the image: uint8, 64x64x3. Equal arguments give equal bytes."""
    assert len(variation.figures) == len(scene.figures)
    image = np.empty((SIDE, SIDE, 3), np.int64)
    image[:] = _tinted(BACKGROUNDS[scene.background], variation.tint)
    for figure, offset in zip(scene.figures, variation.figures, strict=True):
        least, most = SIZES[figure.size]
        radius = min(least + offset.larger, most)
        x, y = PLACES[figure.place] * _SUB + offset.right, SIDE // 2 * _SUB + offset.down
        reach = radius // _SUB + 3
        left, top = x // _SUB - reach, y // _SUB - reach
        side = 2 * reach + 1
        cover = coverage(figure.shape, radius, x - left * _SUB, y - top * _SUB, side)[..., None]  # [side, side, 1]
        x0, y0, x1, y1 = max(left, 0), max(top, 0), min(left + side, SIDE), min(top + side, SIDE)
        cover = cover[y0 - top : y1 - top, x0 - left : x1 - left]
        window = image[y0:y1, x0:x1]
        colour = _tinted(COLOURS[figure.colour], offset.tint)
        image[y0:y1, x0:x1] = (window * (FULL - cover) + colour * cover + FULL // 2) // FULL
    return image.astype(np.uint8)


FULL = _SUB * _SUB * 16
"""The value of `coverage` for a fully covered neighbourhood."""


@lru_cache(4096)
def coverage(shape: str, radius: int, x: int, y: int, side: int) -> Ints:
    """Smoothed coverage of each pixel by the shape: integers from 0 to FULL, `side` x `side`.

    Its box has half side `radius` and centre (x, y), in quarters of a pixel.
    """
    at = 2 * np.arange(side * _SUB, dtype=np.int64) + 1  # eighths of a pixel: the centres of the samples
    across, down, r = (at - 2 * x)[None, :], (at - 2 * y)[:, None], 2 * radius
    match shape:
        case "ring":
            squared = across * across + down * down
            inside = (squared <= r * r) & (4 * squared >= r * r)
        case "square":
            inside = np.maximum(abs(across), abs(down)) <= r
        case "triangle":
            inside = (2 * abs(across) <= down + r) & (down <= r)
        case _:
            thin, long = np.minimum(abs(across), abs(down)), np.maximum(abs(across), abs(down))
            inside = (thin * 10 <= 3 * r) & (long <= r)
    cover: Ints = inside.astype(np.int64).reshape(side, _SUB, side, _SUB).sum((1, 3))
    for axis in (0, 1):
        cover = 2 * cover + np.roll(cover, 1, axis) + np.roll(cover, -1, axis)
    cover.setflags(write=False)
    return cover


def _tinted(colour: RGB, tint: RGB) -> Ints:
    return np.array([min(max(c + t, 0), 255) for c, t in zip(colour, tint, strict=True)], np.int64)
