"""Peak signal-to-noise ratio against the source, in dB; pyiqa's `psnr`: 10 log10(1 / (MSE + 1e-8)) on RGB in [0, 1].

In [0, 80], higher is better; 80 for equal images, due to the small term that keeps it finite.
"""

import numpy as np

from local_bench.judges.metrics.base import HostMetric, LoadedSubject, MetricSpec

PSNR = "psnr"
EPSILON = 1e-8
_PREPARED = "image to the source's size by Pillow bicubic with antialiasing on RGB8; RGB8 / 255, float64"


def make(name: str) -> "Psnr":
    return Psnr(name)


class Psnr(HostMetric):
    """`psnr`."""

    def __init__(self, name: str) -> None:
        self.spec = MetricSpec(name, True, _PREPARED, "pyiqa 0.1.16 `psnr`, in float64", ("source",), 0.0, 80.0)

    def measure(self, seen: LoadedSubject) -> float:
        image, source = (np.asarray(pixels, np.float64) / 255 for pixels in (seen.image_as_source, seen.source))
        return float(10 * np.log10(1 / (((image - source) ** 2).mean() + EPSILON)))
