"""L1 distance to the source outside the mask: how much an edit changed of what it was to leave alone.

ICE-Bench B.4 (eq. 7 takes 1 - L1), as its evaluator computes it: mean of |image - source| / 255 over the pixels that
the mask does not mark (all of them without a mask) and the three channels, the image first in the source's size. In
[0, 1], a distance: lower is better, 0 for an untouched source.

The evaluator cannot run where the mask has another size than the source and gives NaN where it marks everything: here
such a mask is resized by nearest neighbour, and a comparison of nothing is unscored.
"""

import numpy as np
from PIL import Image

from local_bench.judges.metrics.base import HostMetric, LoadedSubject, MetricSpec, Unscorable

L1_RAW = "l1_raw"
EDITED_ABOVE = 128
"""A mask's grey value above this marks a pixel that was to be changed."""
PREPARED = (
    "image to the source's size by Pillow bicubic with antialiasing on RGB8; mask to that size by nearest neighbour, "
    f"edited where grey > {EDITED_ABOVE}; differences of RGB8 / 255 in float64"
)


def make(name: str) -> "L1Raw":
    return L1Raw(name)


class L1Raw(HostMetric):
    """`l1_raw`."""

    def __init__(self, name: str) -> None:
        self.spec = MetricSpec(
            name, False, PREPARED, "ICE-Bench B.4, L1 of eq. 7 (ali-vilab/ICE-Bench l1_dist)", ("source",), 0.0, 1.0
        )

    def measure(self, seen: LoadedSubject) -> float:
        return distance(pixels(seen.image_as_source), pixels(seen.source), kept(seen))


def pixels(image: Image.Image) -> np.ndarray:
    """(H, W, 3) float64 in [0, 255]."""
    return np.asarray(image, np.float64)


def kept(seen: LoadedSubject) -> np.ndarray:
    """(H, W) of the source's size: True where the source was to be left alone."""
    width, height = seen.source.size
    if seen.mask is None:
        return np.ones((height, width), bool)
    mask = seen.mask.resize((width, height), Image.Resampling.NEAREST)
    return np.asarray(mask) <= EDITED_ABOVE


def distance(image: np.ndarray, source: np.ndarray, keep: np.ndarray) -> float:
    """Mean of |image - source| / 255 where `keep`. Unscorable where that is nowhere."""
    if not keep.any():
        raise Unscorable("the mask leaves nothing to compare")
    return float(np.abs(image - source)[keep].mean() / 255)
