"""Metrics computed from pixels on the CPU, one row of `METRICS` each, and the formulas that they share.

Where there is a source, the image is first resized to its size by Pillow's bicubic filter with antialiasing, as in
ICE-Bench's evaluator (arXiv 2503.14482, ali-vilab/ICE-Bench).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from local_bench.judges.metrics.base import HostMetric, LoadedSubject, MetricSpec, Need, Unscorable

EDITED_ABOVE = 128
"""Mask grey values above this mark pixels to be changed."""
CANNY_LOW, CANNY_HIGH = 100, 200
LEVELS = 256
EPSILON = 1e-8
WINDOW = 11
MAX_SHIFT = 16
"""A translation is at most this fraction of a side, as a divisor."""
_GAUSSIAN = np.exp(-((np.arange(WINDOW) - WINDOW // 2) ** 2) / (2 * 1.5**2))
_GAUSSIAN /= _GAUSSIAN.sum()
_C1, _C2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2

LUMA = "luma (299 R + 587 G + 114 B) / 1000 of RGB8 rounded to an integer, .5 to even"
TO_CONDITION = "image in the condition's size (bicubic, antialiased, PIL), where they differ"
"""Description of the first step of metrics that compare a feature map with a condition image, and `COMPARED` of the
last."""
COMPARED = (
    "1 - mean |feature - condition| / 255 in float64, the condition in grey by (299 R + 587 G + 114 B) / 1000 (PIL)"
)
_TO_SOURCE = "image to the source's size by Pillow bicubic with antialiasing on RGB8; "
_L1 = (
    f"{_TO_SOURCE}mask to that size by nearest neighbour, edited where grey > {EDITED_ABOVE}; differences of RGB8 / "
    "255 in float64"
)
_SSIM = (
    f"{_TO_SOURCE}{LUMA}, float64; Gaussian window 11, sigma 1.5, valid borders, K 0.01 and 0.03, no downsampling, "
    "contrast term not below 0"
)
_ALIGNED = (
    "; moved against the source by the whole pixels of the phase correlation's peak (grey, Hann window, edited pixels "
    "taken from the source) where that is at most 1/16 of a side and lowers L1, then only the overlap"
)


@dataclass(frozen=True)
class PixelMetric(HostMetric):
    """A metric and the function that computes it."""

    spec: MetricSpec
    compute: Callable[[LoadedSubject], float]

    def measure(self, seen: LoadedSubject) -> float:
        return self.compute(seen)


def make(name: str) -> PixelMetric:
    return METRICS[name]


# ---- differences from the source


def l1_raw(seen: LoadedSubject) -> float:
    """Mean of |image - source| / 255 over the channels of the pixels outside the mask: changes outside the edited
    region (ICE-Bench B.4; eq. 7 uses 1 - L1).

    The evaluator cannot run if the mask's size differs from the source's, and gives NaN if the mask marks everything:
    here such a mask is resized by nearest neighbour, and an empty comparison is unscored.
    """
    return _distance(_float(seen.image_as_source), _float(seen.source), _kept(seen))


def l1_aligned(seen: LoadedSubject) -> float:
    """`l1_raw` over the overlap after correction of a translation; never above it, and in no published table."""
    return _distance(*_overlap(seen))


def psnr(seen: LoadedSubject) -> float:
    """pyiqa's `psnr`: 10 log10(1 / (MSE + 1e-8)) on RGB in [0, 1]; 80 for equal images."""
    image, source = (_float(pixels) / 255 for pixels in (seen.image_as_source, seen.source))
    return float(10 * np.log10(1 / (((image - source) ** 2).mean() + EPSILON)))


def ssim(seen: LoadedSubject) -> float:
    """SSIM (Wang et al., IEEE TIP 2004) as pyiqa's `ssim`: ICE-Bench's controllability of deblurring (B.6, eq. 10)."""
    return similarity(seen.image_as_source, seen.source)


def ssim_aligned(seen: LoadedSubject) -> float:
    """`ssim` over the overlap after correction of a translation, which minimises L1, so that the value can be below
    `ssim` if structure and colour disagree. In no published table."""
    image, source, _ = _overlap(seen)
    return similarity(image.astype(np.uint8), source.astype(np.uint8))


def similarity(image: Image.Image | np.ndarray, source: Image.Image | np.ndarray) -> float:
    """SSIM of two RGB8 images of equal size. Unscorable if a side is below the window's 11 pixels.

    Two one-dimensional passes are many times faster than pyiqa's two-dimensional window; on the same luma they agree to
    1e-7 (its window is rounded to float32).
    """
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
    from scipy.ndimage import correlate1d

    for axis in (0, 1):
        x = correlate1d(x, _GAUSSIAN, axis)
    return x[WINDOW // 2 : -(WINDOW // 2), WINDOW // 2 : -(WINDOW // 2)]


def _float(image: Image.Image) -> np.ndarray:
    """(H, W, 3) float64 in [0, 255]."""
    return np.asarray(image, np.float64)


def _kept(seen: LoadedSubject) -> np.ndarray:
    """(H, W) of the source's size: True for pixels to be left unchanged."""
    width, height = seen.source.size
    if seen.mask is None:
        return np.ones((height, width), bool)
    return np.asarray(seen.mask.resize((width, height), Image.Resampling.NEAREST)) <= EDITED_ABOVE


def _distance(image: np.ndarray, source: np.ndarray, keep: np.ndarray) -> float:
    """Mean of |image - source| / 255 over the pixels in `keep`. Unscorable if there are none."""
    if not keep.any():
        raise Unscorable("the mask leaves nothing to compare")
    return float(np.abs(image - source)[keep].mean() / 255)


# ---- similarity to a condition image


def l1_canny(seen: LoadedSubject) -> float:
    """Agreement with an edge map: 1 - mean |Canny(image) - L(condition)| / 255 (ICE-Bench B.6, eq. 9, for
    Edge-guided Generation; Canny 1986 by OpenCV)."""
    import cv2

    return likeness(cv2.Canny(np.asarray(seen.image_as_source), CANNY_LOW, CANNY_HIGH), seen.source)


def l1_colorize(seen: LoadedSubject) -> float:
    """Preservation of the grey source by a colourised image: 1 - mean |L(image) - L(source)| / 255 (ICE-Bench B.6, eq.
    9, for Image Colorization)."""
    return likeness(np.asarray(seen.image_as_source.convert("L")), seen.source)


def as_condition(image: Image.Image, condition: Image.Image) -> Image.Image:
    """The image in the condition's size, from which the feature map is computed."""
    size = condition.size
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def likeness(feature_L: np.ndarray, condition: Image.Image) -> float:
    """1 - mean |feature - grey(condition)| / 255 in [0, 1]; `feature_L` is (height, width) in the condition's size."""
    grey = np.asarray(condition.convert("L"), np.float64)
    assert feature_L.dtype == np.uint8, feature_L.dtype
    assert feature_L.shape == grey.shape, (feature_L.shape, grey.shape)
    return float(1 - np.abs(feature_L.astype(np.float64) - grey).mean() / 255)


# ---- the image alone


def colorfulness(seen: LoadedSubject) -> float:
    """ICE-Bench's metric for colourisation (B.3, s_color of eq. 4), after Hasler and Suesstrunk 2003:
    sqrt(std_rg^2 + std_yb^2) + 0.3 sqrt(mean_rg^2 + mean_yb^2) with rg = |R - G| and yb = |(R + G) / 2 - B| on [0, 1];
    the absolute values are the benchmark's, not the paper's. 0 for grey."""
    image = seen.image_as_source if seen.has_source else seen.image
    red, green, blue = np.moveaxis(_float(image) / 255, 2, 0)
    rg, yb = np.abs(red - green), np.abs((red + green) / 2 - blue)
    return float(np.hypot(rg.std(), yb.std()) + 0.3 * np.hypot(rg.mean(), yb.mean()))


def entropy(seen: LoadedSubject) -> float:
    """Entropy of the grey-level histogram in bits (Shannon 1948); pyiqa's `entropy`: -sum p log2(p + 1e-8)."""
    counts = np.bincount(luma(seen.image).astype(np.int64).ravel(), minlength=LEVELS)
    shares = counts / counts.sum()
    return float(-(shares * np.log2(shares + EPSILON)).sum())


def luma(image: Image.Image | np.ndarray) -> np.ndarray:
    """(H, W) float64, integers in [0, 255]: (299 R + 587 G + 114 B) / 1000 of an RGB8 image (Y of YIQ), .5 to even.

    pyiqa's `to_y_channel` computes it in float32, where a luma of exactly .5 (about one colour in a thousand) is
    rounded up or down by the last bit of a matrix product, and so by the CPU's instruction set.
    """
    red, green, blue = np.moveaxis(np.asarray(image, np.int64), 2, 0)
    thousandths = 299 * red + 587 * green + 114 * blue
    rounded: np.ndarray = np.rint(thousandths / 1000)  # a correctly rounded quotient is .5 only where the exact one is
    return rounded


# ---- translation


def _overlap(seen: LoadedSubject) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image (H', W', 3), source (H', W', 3) and the mask of unedited pixels (H', W') in the overlap of both images.

    Edit models shift their results by some pixels, so that a pixelwise comparison counts every edge. The translation is
    the peak of the phase correlation of the grey images (Kuglin and Hines 1975) under a Hann window, with edited pixels
    replaced by those of the source. It is applied only if it is small and reduces the L1 distance.
    """
    image, source, keep = _float(seen.image_as_source), _float(seen.source), _kept(seen)
    rows, columns = (_slices(step) for step in _shift(image, source, keep))
    of_image, of_source = (rows[0], columns[0]), (rows[1], columns[1])
    moved = image[of_image], source[of_source], keep[of_source]
    try:
        better = _distance(*moved) < _distance(image, source, keep)
    except Unscorable:
        better = False  # one side has nothing to compare
    return moved if better else (image, source, keep)


def _shift(image: np.ndarray, source: np.ndarray, keep: np.ndarray) -> tuple[int, int]:
    """(rows, columns) by which the image is shifted down and right against the source; (0, 0) if that is too far."""
    from skimage.registration import phase_cross_correlation

    height, width = keep.shape
    window = np.outer(np.hanning(height), np.hanning(width))
    filled = np.where(keep[..., None], image, source)
    grey = [(pixels.mean(2) - pixels.mean()) * window for pixels in (source, filled)]
    if not all(pixels.any() for pixels in grey):
        return 0, 0
    shift, _, _ = phase_cross_correlation(*grey)
    rows, columns = (round(float(step)) for step in shift)
    return (rows, columns) if abs(rows) <= height // MAX_SHIFT and abs(columns) <= width // MAX_SHIFT else (0, 0)


def _slices(step: int) -> tuple[slice, slice]:
    """Slices of the image and of the source on one axis after a translation by `step`."""
    return (slice(0, -step or None), slice(step, None)) if step >= 0 else (slice(-step, None), slice(0, step))


def _row(
    compute: Callable[[LoadedSubject], float],
    higher_is_better: bool,
    preprocessing: str,
    source: str,
    needs: tuple[Need, ...] = ("source",),
    highest: float | None = 1.0,
) -> PixelMetric:
    name = compute.__name__
    return PixelMetric(MetricSpec(name, higher_is_better, preprocessing, source, needs, 0.0, highest), compute)


_EQUATION_9 = "ICE-Bench eq. 9 (ali-vilab/ICE-Bench l1_dist)"
METRICS = {
    metric.spec.name: metric
    for metric in (
        _row(l1_raw, False, _L1, "ICE-Bench B.4, L1 of eq. 7 (ali-vilab/ICE-Bench l1_dist)"),
        _row(l1_aligned, False, _L1 + _ALIGNED, "l1_raw (ICE-Bench B.4) after phase correlation"),
        _row(psnr, True, f"{_TO_SOURCE}RGB8 / 255, float64", "pyiqa 0.1.16 `psnr`, in float64", highest=80.0),
        _row(ssim, True, _SSIM, "ICE-Bench eq. 10; pyiqa 0.1.16 `ssim` (Wang et al. 2004)"),
        _row(ssim_aligned, True, _SSIM + _ALIGNED, "ssim (Wang et al. 2004) after phase correlation"),
        _row(
            l1_canny,
            True,
            "image to the condition's size by Pillow bicubic with antialiasing on RGB8; OpenCV Canny on the three "
            f"channels, thresholds {CANNY_LOW} and {CANNY_HIGH}, aperture 3, L1 gradient; condition to Pillow's 8-bit "
            "luma",
            _EQUATION_9,
        ),
        _row(l1_colorize, True, f"{_TO_SOURCE}both to Pillow's 8-bit luma (ITU-R 601-2); mean in float64", _EQUATION_9),
        _row(
            colorfulness,
            True,
            "where there is a source, image to its size by Pillow bicubic with antialiasing on RGB8, else as it is; "
            "RGB8 / 255, float64",
            "ICE-Bench B.3 (ali-vilab/ICE-Bench colorfulness)",
            needs=(),
            highest=None,
        ),
        _row(
            entropy,
            True,
            f"{LUMA}; no resize; float64",
            "Shannon 1948; pyiqa 0.1.16 `entropy`, in float64",
            needs=(),
            highest=8.0,
        ),
    )
}
