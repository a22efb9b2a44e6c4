"""Preservation of the grey source by a colourised image: 1 - mean |L(image) - L(source)| / 255.

ICE-Bench B.6 (eq. 9) for Image Colorization. In [0, 1], higher is better, 1 if the grey values equal those of the
source.
"""

import numpy as np

from local_bench.judges.metrics.base import HostMetric, LoadedSubject, MetricSpec
from local_bench.judges.metrics.conditions import likeness

L1_COLORIZE = "l1_colorize"


def make(name: str) -> "L1Colorize":
    return L1Colorize(name)


class L1Colorize(HostMetric):
    """`l1_colorize`."""

    def __init__(self, name: str) -> None:
        prepared = (
            "image to the source's size by Pillow bicubic with antialiasing on RGB8; both to Pillow's 8-bit luma "
            "(ITU-R 601-2); mean in float64"
        )
        source = "ICE-Bench eq. 9 (ali-vilab/ICE-Bench l1_dist)"
        self.spec = MetricSpec(name, True, prepared, source, ("source",), 0.0, 1.0)

    def measure(self, seen: LoadedSubject) -> float:
        return likeness(np.asarray(seen.image_as_source.convert("L")), seen.source)
