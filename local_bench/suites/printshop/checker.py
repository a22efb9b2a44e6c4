"""Detects the contents of an image from its pixels, without a model; the source of ground truth.

The background is the median of the border. Connected regions that differ from it are pieces. A piece's colour is the
palette colour on whose line from the background its strongest pixels are, which is robust to blur. The fraction of that
colour at each pixel is a soft mask; scaled to its bounding box, it is compared (soft intersection over union) with the
four shapes, drawn sharp and blurred. Black or white pieces that are not background are text.

Attributes that cannot be determined are None; `confidence` is the margin of the least certain attribute.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise, product

import numpy as np
from numpy.typing import NDArray
from scipy import ndimage

from local_bench.suites.printshop.scene import (
    BACKGROUNDS,
    COLOURS,
    PLACES,
    SHAPES,
    SIDE,
    SIZES,
    Figure,
    FigureVariation,
    Pixels,
    Scene,
    Variation,
    draw,
    is_scene,
)

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]
Window = tuple[slice, slice]


@dataclass(frozen=True)
class DetectedFigure:
    """A detected figure; attributes that cannot be determined are None."""

    shape: str | None
    colour: str | None
    place: str | None
    size: str | None
    confidence: float
    """0 to 1, of the least certain of the four attributes; 0 if one is None."""


@dataclass(frozen=True)
class DetectedScene:
    """The detected contents of an image. Figures are ordered from left to right."""

    background: str | None
    figures: tuple[DetectedFigure, ...]
    writing: bool
    """Whether there is black or white text on the background."""
    confidence: float
    """0 to 1, of the least certain attribute; 0 if one is None or there is no figure."""

    def scene(self) -> Scene | None:
        """The scene, or None if it is not complete or not valid."""
        figures = []
        for seen in self.figures:
            if seen.shape is None or seen.colour is None or seen.place is None or seen.size is None:
                return None
            figures.append(Figure(seen.shape, seen.colour, seen.place, seen.size))
        if self.background is None or not is_scene(tuple(figures)):
            return None
        return Scene(self.background, tuple(figures))


_DIFFERS = 40.0
"""RGB distance from the background beyond which a pixel belongs to a piece; the palette's colours are 117 apart."""
_LEAST_AREA_PX = 48
"""Minimum area of a figure; a small cross has 130, and smaller pieces are ignored."""
_FAINTEST = 60.0
"""Minimum distance of a figure's strongest pixels from the background: half of the palette's smallest distance."""
_LEAST_WRITING_PX = 24
_LEAST_SPECK_PX = 6
_AROUND_PX = 3
_CORNERS_PX = 0.75
"""Difference between a triangle's nominal box and its box at half coverage, due to thin corners."""
_TOO_WIDE_PX = 31
_LEAST_FIT = 0.62
_LEAST_LEAD = 0.04
_FARTHEST_PX = 6.5
_BOX = 16
_INKS = np.array([*COLOURS.values(), (20, 20, 20), (245, 245, 245)], np.float64)
"""The figures' colours, then black and white."""
_BETWEEN_SIZES = (SIZES["small"][1] + SIZES["large"][0]) / 8
"""Half the side of a box, in pixels, between small and large."""


def detect(pixels: Pixels) -> DetectedScene:
    """Detect the contents of a 64x64 RGB8 image, or of an integer multiple of that size. ValueError for other sizes."""
    high, wide, channels = pixels.shape
    times = high // SIDE
    if high != wide or channels != 3 or times < 1 or high % SIDE:
        raise ValueError(f"an image of {wide}x{high} is not {SIDE}x{SIDE} or a multiple of it")
    levels: Floats = pixels.astype(np.float64).reshape(SIDE, times, SIDE, times, 3).mean((1, 3))
    noise = float(np.median(abs(np.diff(levels, axis=1)))) / (0.6745 * np.sqrt(2))  # images are mostly flat
    if noise >= 4:
        sigma = 0.8 if noise < 12 else 1.2 if noise < 30 else 1.7
        levels = ndimage.gaussian_filter(levels, (sigma, sigma, 0), mode="nearest").round(6)
    border = np.concatenate([edge.reshape(-1, 3) for edge in (levels[:2], levels[-2:], levels[:, :2], levels[:, -2:])])
    ground: Floats = np.median(border, 0)
    background, certain = _nearest(_apart(np.array(list(BACKGROUNDS.values()), np.float64), ground), tuple(BACKGROUNDS))
    figures, writing = [], 0
    for window, piece in _pieces(levels, ground):
        area = int(piece.sum())
        if area < _LEAST_SPECK_PX:
            continue
        colour, sure, strong = _colour(levels[window][piece], ground)
        if colour == "ink":
            writing += area
        elif area >= _LEAST_AREA_PX and _apart(strong, ground) >= _FAINTEST:
            share = _share(levels[window], piece, ground, strong)
            figures.append(_figure(share, window[1].start, colour, sure))
    figures.sort(key=lambda pair: pair[0])
    seen = tuple(figure for _, figure in figures)
    confidence = min([certain, *(figure.confidence for figure in seen)]) if seen else 0.0
    return DetectedScene(background, seen, writing >= _LEAST_WRITING_PX, confidence)


def _pieces(levels: Floats, ground: Floats) -> Iterator[tuple[Window, Bools]]:
    """Yield connected non-background pieces: a window and the mask inside it. A piece as wide as two figures is
    split at its thinnest column."""
    apart = _apart(levels, ground)
    labels, count = ndimage.label(apart > _DIFFERS)
    for label, (rows, columns) in enumerate(ndimage.find_objects(labels, count), 1):
        cuts = [columns.start, columns.stop]
        width = columns.stop - columns.start
        if width > _TOO_WIDE_PX and rows.stop - rows.start > _BOX:
            across = (apart * (labels == label)).sum(0)[columns]
            cuts.insert(1, columns.start + width // 3 + int(np.argmin(across[width // 3 : width - width // 3])))
        for left, right in pairwise(cuts):
            window = (_widened(rows.start, rows.stop), _widened(left, right))
            mask = labels[window] == label
            mask[:, : left - window[1].start] = False
            mask[:, right - window[1].start :] = False
            yield window, mask


def _widened(start: int, stop: int) -> slice:
    return slice(max(start - _AROUND_PX, 0), min(stop + _AROUND_PX, SIDE))


def _colour(inside: Floats, ground: Floats) -> tuple[str | None, float, Floats]:
    """The colour (or `ink`) of a piece's pixels [n, 3], its confidence, and the level of the strongest pixels."""
    apart = _apart(inside, ground)
    most = np.partition(apart, -1 - len(apart) // 20)[-1 - len(apart) // 20]
    strong: Floats = np.median(inside[apart >= 0.85 * most], 0)
    way = _INKS - ground
    share = np.clip(((strong - ground) * way).sum(1) / np.maximum((way * way).sum(1), 1), 0.6, 1.1)
    off = _apart(ground + share[:, None] * way, strong) + 40 * abs(1 - share)
    off[(way * way).sum(1) < 60**2] = np.inf
    ink = off[-2:].min()
    colour, certain = _nearest(np.append(off[:-2], ink), (*COLOURS, "ink"))
    return colour, certain, strong


def _share(levels: Floats, piece: Bools, ground: Floats, strong: Floats) -> Floats:
    """The fraction of the piece's colour at each pixel near it, else 0, without the last digits that BLAS varies."""
    way = strong - ground
    share: Floats = np.clip((levels - ground) @ way / max(float(way @ way), 1.0), 0, 1).round(9)
    share *= ndimage.binary_dilation(piece, iterations=2)
    return share


def _figure(share: Floats, start: int, colour: str | None, sure: float) -> tuple[float, DetectedFigure]:
    """The centre column and the detected figure in a window that starts at column `start`."""
    rows, columns = np.nonzero(share > 0.5)
    if not len(rows):  # a multicoloured piece without a pixel of its mean colour
        return float(start), DetectedFigure(None, None, None, None, 0.0)
    top, bottom, left, right = int(rows.min()), int(rows.max()) + 1, int(columns.min()), int(columns.max()) + 1
    form, forms = _boxed(share, top, bottom, left, right), _forms()
    fits = np.minimum(forms, form).sum(1) / np.maximum(forms, form).sum(1)
    best = fits.reshape(len(SHAPES), -1).max(1)
    second, first = (float(of_shape) for of_shape in np.sort(best)[-2:])
    fit = min(1.0, (first - second) * 4)
    shape: str | None = SHAPES[int(best.argmax())]
    if first < _LEAST_FIT or first - second < _LEAST_LEAD:  # no shape fits, or two fit equally well
        shape, fit = None, 0.0
    middle = start + (left + right) / 2
    distances = [abs(column - middle) for column in PLACES.values()]
    place = tuple(PLACES)[distances.index(min(distances))] if min(distances) <= _FARTHEST_PX else None
    beyond = max(bottom - top, right - left) / 2 + (_CORNERS_PX if shape == "triangle" else 0) - _BETWEEN_SIZES
    size = None if abs(beyond) < 0.25 else "large" if beyond > 0 else "small"
    complete = None not in (shape, colour, place, size)
    certain = min(sure, fit, 1 - min(distances) / 8, 1.0, abs(beyond) / 1.5)
    return middle, DetectedFigure(shape, colour, place, size, max(0.0, certain) if complete else 0.0)


def _boxed(share: Floats, top: int, bottom: int, left: int, right: int) -> Floats:
    """The box's contents, scaled to 16x16 and flattened."""
    at = (np.arange(_BOX) + 0.5) / _BOX
    rows, columns = top + at * (bottom - top) - 0.5, left + at * (right - left) - 0.5
    grid = np.meshgrid(rows, columns, indexing="ij")
    boxed: Floats = ndimage.map_coordinates(share, grid, order=1, mode="nearest").ravel()
    return boxed


@cache
def _forms() -> Floats:
    """Templates of the shapes in their boxes, sharp and blurred, small and large: [shapes x 6, 256]."""
    forms = []
    for shape, size, sigma in product(SHAPES, SIZES, (0.0, 1.2, 2.2)):
        scene = Scene("white", (Figure(shape, "blue", "centre", size),))
        sharp = draw(scene, Variation((0, 0, 0), (FigureVariation(0, 0, 3, (0, 0, 0)),))).astype(np.float64)
        levels = ndimage.gaussian_filter(sharp, (sigma, sigma, 0))
        piece = _apart(levels, levels[0, 0]) > _DIFFERS
        share = _share(levels, piece, levels[0, 0], _colour(levels[piece], levels[0, 0])[2])
        rows, columns = np.nonzero(share > 0.5)
        forms.append(_boxed(share, int(rows.min()), int(rows.max()) + 1, int(columns.min()), int(columns.max()) + 1))
    return np.stack(forms)


def _apart(levels: Floats, level: Floats) -> Floats:
    """RGB distances of levels from a level (or elementwise)."""
    difference = levels - level
    apart: Floats = np.sqrt((difference * difference).sum(-1))
    return apart


def _nearest(distances: Floats, names: tuple[str, ...]) -> tuple[str | None, float]:
    """The nearest name and its confidence; None if all are far or two are about equally near."""
    first, second = np.sort(distances)[:2]
    certain = float(1 - first / max(second, 1e-9))
    if first > 75 or certain < 0.15:
        return None, 0.0
    return names[int(distances.argmin())], certain
