"""SSIM against the source after correction of a translation; a variant of `ssim`.

The same formula as `ssim`, over the overlap of the two images (see `alignment`); the translation minimises L1, so the
value can be below `ssim` if structure and colour disagree. In [0, 1], higher is better. It is in no published table.
"""

import numpy as np

from local_bench.judges.metrics.alignment import ALIGNED, overlap
from local_bench.judges.metrics.base import HostMetric, LoadedSubject, MetricSpec
from local_bench.judges.metrics.ssim import PREPARED, similarity

SSIM_ALIGNED = "ssim_aligned"


def make(name: str) -> "SsimAligned":
    return SsimAligned(name)


class SsimAligned(HostMetric):
    """`ssim_aligned`."""

    def __init__(self, name: str) -> None:
        self.spec = MetricSpec(
            name, True, PREPARED + ALIGNED, "ssim (Wang et al. 2004) after phase correlation", ("source",), 0.0, 1.0
        )

    def measure(self, seen: LoadedSubject) -> float:
        image, source, _ = overlap(seen)
        return similarity(image.astype(np.uint8), source.astype(np.uint8))
