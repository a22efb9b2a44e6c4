"""L1 distance to the source outside the mask: changes outside the edited region.

ICE-Bench B.4 (eq. 7 uses 1 - L1), as computed by its evaluator: mean of |image - source| / 255 over the three channels
of the pixels outside the mask (all pixels without a mask), after resizing the image to the source's size. In [0, 1], a
distance: lower is better, 0 for an unchanged source.

The evaluator cannot run if the mask's size differs from the source's, and gives NaN if the mask marks everything: here
such a mask is resized by nearest neighbour, and an empty comparison is unscored.
"""

import numpy as np
from PIL import Image

from local_bench.judges.metrics.base import HostMetric, LoadedSubject, MetricSpec, Unscorable

L1_RAW = "l1_raw"
EDITED_ABOVE = 128
"""Mask grey values above this mark pixels to be changed."""
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
    """(H, W) of the source's size: True for pixels to be left unchanged."""
    width, height = seen.source.size
    if seen.mask is None:
        return np.ones((height, width), bool)
    mask = seen.mask.resize((width, height), Image.Resampling.NEAREST)
    return np.asarray(mask) <= EDITED_ABOVE


def distance(image: np.ndarray, source: np.ndarray, keep: np.ndarray) -> float:
    """Mean of |image - source| / 255 over the pixels in `keep`. Unscorable if there are none."""
    if not keep.any():
        raise Unscorable("the mask leaves nothing to compare")
    return float(np.abs(image - source)[keep].mean() / 255)
