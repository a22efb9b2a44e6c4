"""The scenes of the miniature: one or two figures on a background.

The shapes were chosen to remain distinguishable after the blur of a small autoencoder: the two most similar (ring and
cross, triangle and cross) differ by 0.32 of the box's area after a blur of a twentieth of its side, where a disc and a
square differ by 0.22. The colours, including backgrounds, have RGB distances of at least 117.
"""

from dataclasses import dataclass
from typing import Any

from local_bench.core.identity import canonical_json, digest

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

    def to_json(self) -> dict[str, Any]:
        """The scene as plain data."""
        return {"background": self.background, "figures": [vars(figure) for figure in self.figures]}

    @property
    def canonical(self) -> str:
        """Canonical JSON of the scene."""
        return canonical_json(self.to_json())

    @property
    def digest(self) -> str:
        """sha256 (64 hex digits) of `canonical`."""
        return digest(self.to_json())


def is_scene(figures: tuple[Figure, ...]) -> bool:
    """Whether these figures, sorted by position, are a valid scene."""
    if len(figures) == 2:
        return [f.place for f in figures] == ["left", "right"] and figures[0].shape != figures[1].shape
    return len(figures) == 1


def scene_from(data: dict[str, Any]) -> Scene:
    """The scene of `Scene.to_json`."""
    return Scene(data["background"], tuple(Figure(**figure) for figure in data["figures"]))
