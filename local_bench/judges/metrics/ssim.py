"""SSIM against the source (Wang et al., IEEE TIP 2004) as pyiqa's `ssim`: ICE-Bench's controllability of deblurring.

ICE-Bench B.6 (eq. 10). The image is first resized to the source's size. In [0, 1], higher is better, 1 for equal
images. The window is separable, and two one-dimensional passes are many times faster than pyiqa's two-dimensional one;
on the same luma they agree to 1e-7 (its window is rounded to float32). Luma is exact here (see `luma`), so the score is
the same on every CPU; pyiqa's float32 luma of .5 is not.
"""

import numpy as np
from PIL import Image
from scipy.ndimage import correlate1d

from local_bench.judges.metrics.base import HostMetric, LoadedSubject, MetricSpec, Unscorable
from local_bench.judges.metrics.luma import LUMA, luma

SSIM_ = "ssim"
WINDOW = 11
_GAUSSIAN = np.exp(-((np.arange(WINDOW) - WINDOW // 2) ** 2) / (2 * 1.5**2))
_GAUSSIAN /= _GAUSSIAN.sum()
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
PREPARED = (
    f"image to the source's size by Pillow bicubic with antialiasing on RGB8; {LUMA}, "
    "float64; Gaussian window 11, sigma 1.5, valid borders, K 0.01 and 0.03, no downsampling, contrast term not below 0"
)


def make(name: str) -> "Ssim":
    return Ssim(name)


class Ssim(HostMetric):
    """`ssim`."""

    def __init__(self, name: str) -> None:
        self.spec = MetricSpec(
            name, True, PREPARED, "ICE-Bench eq. 10; pyiqa 0.1.16 `ssim` (Wang et al. 2004)", ("source",), 0.0, 1.0
        )

    def measure(self, seen: LoadedSubject) -> float:
        return similarity(seen.image_as_source, seen.source)


def similarity(image: Image.Image | np.ndarray, source: Image.Image | np.ndarray) -> float:
    """SSIM of two RGB8 images of equal size. Unscorable if a side is below the window's 11 pixels."""
    x, y = luma(image), luma(source)
    if min(x.shape) < WINDOW:
        raise Unscorable(f"the picture is smaller than {WINDOW} pixels on a side")
    mean_x, mean_y = _smooth(x), _smooth(y)
    var_x, var_y = _smooth(x * x) - mean_x**2, _smooth(y * y) - mean_y**2
    covariance = _smooth(x * y) - mean_x * mean_y
    contrast = np.maximum((2 * covariance + _C2) / (var_x + var_y + _C2), 0)
    light = (2 * mean_x * mean_y + _C1) / (mean_x**2 + mean_y**2 + _C1)
    return float((light * contrast).mean())


def _smooth(x: np.ndarray) -> np.ndarray:
    """The window's weighted mean around each pixel that has a complete window."""
    for axis in (0, 1):
        x = correlate1d(x, _GAUSSIAN, axis)
    return x[WINDOW // 2 : -(WINDOW // 2), WINDOW // 2 : -(WINDOW // 2)]
