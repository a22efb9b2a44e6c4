"""Decodes people from OpenPose's maps (Cao et al. 2016, arXiv 1611.08050), and draws them as skeletons.

The steps and numbers are those of scepter 1.4's OpenposeAnnotator, which ICE-Bench's evaluator uses: joints are the
peaks of smoothed confidence maps, limbs are pairs of joints along which the affinity fields point, matched greedily by
score, and people are limbs that share joints.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import gaussian_filter

Maps = Callable[[int], NDArray[np.float32]]
"""The n-th map in the image's size, (height, width)."""

JOINTS = 18
"""Nose, neck; shoulder, elbow, wrist of the right and the left; hip, knee, ankle likewise; eyes, ears."""
LIMBS = (
    (1, 2), (1, 5), (2, 3), (3, 4), (5, 6), (6, 7), (1, 8), (8, 9), (9, 10), (1, 11), (11, 12), (12, 13),
    (1, 0), (0, 14), (14, 16), (0, 15), (15, 17), (2, 16), (5, 17),
)  # fmt: skip
"""The two joints of each limb; the last two limbs only extend existing people."""
FIELDS = (12, 20, 14, 16, 22, 24, 0, 2, 4, 6, 8, 10, 28, 30, 34, 32, 36, 18, 26)
"""The first of the two affinity maps of each limb; the second follows it."""
DRAWN = BEGINNING = 17
COLOURS = (
    (255, 0, 0), (255, 85, 0), (255, 170, 0), (255, 255, 0), (170, 255, 0), (85, 255, 0), (0, 255, 0), (0, 255, 85),
    (0, 255, 170), (0, 255, 255), (0, 170, 255), (0, 85, 255), (0, 0, 255), (85, 0, 255), (170, 0, 255), (255, 0, 255),
    (255, 0, 170), (255, 0, 85),
)  # fmt: skip
"""RGB, by joint and by limb."""
SIGMA, PEAK, ALONG, POINTS, ENOUGH = 3, 0.1, 0.05, 10, 8
RADIUS = HALF_WIDTH = 4
FEWEST, LEAST_MEAN = 4, 0.4
MOST_PAIRS = 1_000_000
"""Of the two joints of one limb; there are thousands of peaks only if a map is flat."""


class TooMany(Exception):
    """The maps have more peaks than can be matched to limbs."""


@dataclass(frozen=True)
class Joints:
    """All peaks of one joint's map, row by row."""

    positions: NDArray[np.int64]
    """(n, 2), x and y in pixels."""
    scores: NDArray[np.float64]
    """(n,)"""


@dataclass
class _Person:
    joints: list[int | None]
    """The index of the peak in each of the 18 maps."""
    score: float
    count: int
    """The number of joints added; a joint that replaces another is counted again."""


def joints(confidence: Maps) -> list[Joints]:
    """The peaks of the 18 confidence maps."""
    return [_peaks(confidence(part).astype(np.float64)) for part in range(JOINTS)]


def people(joints: Sequence[Joints], affinity: Maps, height: int) -> list[list[int | None]]:
    """For each person the index of the peak of each joint; `height` of the image in pixels. TooMany if there are too
    many peaks."""
    everyone: list[_Person] = []
    for limb in range(len(LIMBS)):
        _join(everyone, joints, limb, _connections(joints, affinity, limb, height))
    return [p.joints for p in everyone if p.count >= FEWEST and p.score / p.count >= LEAST_MEAN]


def draw(joints: Sequence[Joints], everyone: Sequence[Sequence[int | None]], height: int, width: int) -> np.ndarray:
    """The skeletons on black, (height, width, 3) uint8 RGB."""
    canvas = np.zeros((height, width, 3), np.uint8)
    for part, colour in enumerate(COLOURS):
        for person in everyone:
            if (at := person[part]) is not None:
                x, y = (int(v) for v in joints[part].positions[at])
                cv2.circle(canvas, (x, y), RADIUS, colour, thickness=-1)
    for (start, end), colour in zip(LIMBS[:DRAWN], COLOURS, strict=False):
        for person in everyone:
            if (a := person[start]) is not None and (b := person[end]) is not None:
                canvas = _limb(canvas, joints[start].positions[a], joints[end].positions[b], colour)
    return canvas


def _peaks(map_HW: NDArray[np.float64]) -> Joints:
    smooth = gaussian_filter(map_HW, sigma=SIGMA)
    framed = np.pad(smooth, 1)
    sides = (framed[:-2, 1:-1], framed[2:, 1:-1], framed[1:-1, :-2], framed[1:-1, 2:])
    is_peak = np.logical_and.reduce([smooth > PEAK, *(smooth >= side for side in sides)])
    rows, columns = np.nonzero(is_peak)
    return Joints(np.stack([columns, rows], 1), map_HW[rows, columns])


def _connections(joints: Sequence[Joints], affinity: Maps, limb: int, height: int) -> list[tuple[int, int, float]]:
    """(start, end, score) of this limb, best first; no joint occurs in two of them."""
    start, end = (joints[joint] for joint in LIMBS[limb])
    if not len(start.positions) or not len(end.positions):
        return []
    if len(start.positions) * len(end.positions) > MOST_PAIRS:
        raise TooMany
    field = np.stack([affinity(FIELDS[limb]), affinity(FIELDS[limb] + 1)], -1).astype(np.float64)
    away = (end.positions[None] - start.positions[:, None]).astype(np.float64)  # (starts, ends, 2)
    length = np.maximum(np.hypot(away[..., 0], away[..., 1]), 0.001)
    steps = np.linspace(start.positions[:, None].repeat(len(end.positions), 1), end.positions[None], POINTS)
    steps = np.rint(steps).astype(np.int64)  # (points, starts, ends, 2)
    along = (field[steps[..., 1], steps[..., 0]] * (away / length[..., None])).sum(-1)
    scores = along.mean(0) + np.minimum(0.5 * height / length - 1, 0)
    fit = ((along > ALONG).sum(0) > ENOUGH) & (scores > 0)
    candidates = [(int(i), int(j), float(scores[i, j])) for i, j in np.argwhere(fit)]
    chosen: list[tuple[int, int, float]] = []
    used: tuple[set[int], set[int]] = (set(), set())
    for i, j, score in sorted(candidates, key=lambda candidate: -candidate[2]):
        if i not in used[0] and j not in used[1]:
            chosen.append((i, j, score))
            used[0].add(i)
            used[1].add(j)
    return chosen


def _join(
    everyone: list[_Person], joints: Sequence[Joints], limb: int, connections: Sequence[tuple[int, int, float]]
) -> None:
    """Add a limb's connections to the existing people, or create new people."""
    start, end = LIMBS[limb]
    for a, b, score in connections:
        theirs = [person for person in everyone if person.joints[start] == a or person.joints[end] == b]
        gain = float(joints[end].scores[b]) + score
        if not theirs:
            if limb < BEGINNING:
                new = _Person([None] * JOINTS, float(joints[start].scores[a]) + gain, 2)
                new.joints[start], new.joints[end] = a, b
                everyone.append(new)
            continue
        first = theirs[0]
        if len(theirs) > 1 and not _share(first, theirs[1]):
            _merge(everyone, first, theirs[1], score)
        elif len(theirs) > 1 or first.joints[end] != b:
            first.joints[end] = b
            first.count += 1
            first.score += gain


def _share(person: _Person, other: _Person) -> bool:
    """Whether both have a common joint."""
    return any(a is not None and b is not None for a, b in zip(person.joints, other.joints, strict=True))


def _merge(everyone: list[_Person], into: _Person, other: _Person, score: float) -> None:
    into.joints = [a if a is not None else b for a, b in zip(into.joints, other.joints, strict=True)]
    into.count += other.count
    into.score += other.score + score
    everyone[:] = [person for person in everyone if person is not other]


def _limb(canvas: np.ndarray, a: NDArray[np.int64], b: NDArray[np.int64], colour: tuple[int, int, int]) -> np.ndarray:
    """A filled ellipse from joint to joint, blended with weight 0.6."""
    x, y = (a[0] - b[0]), (a[1] - b[1])
    middle = (int((a[0] + b[0]) / 2), int((a[1] + b[1]) / 2))
    angle = int(math.degrees(math.atan2(y, x)))
    outline = np.array(cv2.ellipse2Poly(middle, (int(math.hypot(x, y) / 2), HALF_WIDTH), angle, 0, 360, 1))
    over = cv2.fillConvexPoly(canvas.copy(), outline, colour)
    blended: np.ndarray = cv2.addWeighted(canvas, 0.4, over, 0.6, 0)
    return blended
