"""Agreement of an image with an edge map: 1 - mean |Canny(image) - L(condition)| / 255.

ICE-Bench B.6 (eq. 9) for Edge-guided Generation; Canny 1986 by OpenCV with thresholds 100 and 200. In [0, 1], higher is
better, 1 if the edges equal those of the condition.
"""

import cv2
import numpy as np

from local_bench.judges.metrics.base import HostMetric, LoadedSubject, MetricSpec
from local_bench.judges.metrics.conditions import likeness

L1_CANNY = "l1_canny"
LOW, HIGH = 100, 200


def make(name: str) -> "L1Canny":
    return L1Canny(name)


class L1Canny(HostMetric):
    """`l1_canny`."""

    def __init__(self, name: str) -> None:
        prepared = (
            "image to the condition's size by Pillow bicubic with antialiasing on RGB8; OpenCV Canny on the three "
            f"channels, thresholds {LOW} and {HIGH}, aperture 3, L1 gradient; condition to Pillow's 8-bit luma"
        )
        source = "ICE-Bench eq. 9 (ali-vilab/ICE-Bench l1_dist)"
        self.spec = MetricSpec(name, True, prepared, source, ("source",), 0.0, 1.0)

    def measure(self, seen: LoadedSubject) -> float:
        return likeness(cv2.Canny(np.asarray(seen.image_as_source), LOW, HIGH), seen.source)
