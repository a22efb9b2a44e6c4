"""Random scenes, and the split into training and held-out scenes.

The split is determined by sha256 digests, so it is the same on every machine:

- of scenes with two figures, a tenth of the *pairs* of shapes and colours (in any order, with any size and background)
  is held out, which tests composition.
- of scenes with one figure, a tenth of the (scene, wording) combinations is held out.
"""

from collections.abc import Mapping, Sequence
from typing import Literal, TypeVar

import numpy as np

from local_bench.core.identity import digest
from local_bench.suites.printshop.scene import BACKGROUNDS, COLOURS, PLACES, SHAPES, SIZES, Figure, Scene

Split = Literal["train", "held_out", "any"]
T = TypeVar("T")


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
    return len(scene.figures) == 1 and _one_in_ten({"scene": scene.to_json(), "wording": wording})


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
