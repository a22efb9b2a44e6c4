"""Translation of a result against its source in whole pixels; shared by the aligned metrics.

Edit models shift their results by some pixels (reported by users of diffusers and Qwen-Image), so that a pixelwise
comparison counts every edge. The translation is the peak of the phase correlation of the two grey images (Kuglin and
Hines 1975; scikit-image's `phase_cross_correlation`), both under a Hann window, with edited pixels replaced by those of
the source. It is applied only if it is at most a sixteenth of a side and reduces the L1 distance; rotation and scaling
are not corrected.
"""

import numpy as np
from skimage.registration import phase_cross_correlation

from local_bench.judges.metrics.base import LoadedSubject, Unscorable
from local_bench.judges.metrics.l1_raw import distance, kept, pixels

ALIGNED = (
    "; moved against the source by the whole pixels of the phase correlation's peak (grey, Hann window, edited pixels "
    "taken from the source) where that is at most 1/16 of a side and lowers L1, then only the overlap"
)
MOST = 16


def overlap(seen: LoadedSubject) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Image (H', W', 3), source (H', W', 3) and the mask of unedited pixels (H', W') in the overlap of both images."""
    image, source, keep = pixels(seen.image_as_source), pixels(seen.source), kept(seen)
    moved = _cut(image, source, keep, _shift(image, source, keep))
    try:
        better = distance(*moved) < distance(image, source, keep)
    except Unscorable:
        better = False  # one side has nothing to compare
    return moved if better else (image, source, keep)


def _shift(image: np.ndarray, source: np.ndarray, keep: np.ndarray) -> tuple[int, int]:
    """(rows, columns) by which the image is shifted down and right against the source; (0, 0) if that is too far."""
    height, width = keep.shape
    window = np.outer(np.hanning(height), np.hanning(width))
    filled = np.where(keep[..., None], image, source)
    grey = [(pixels.mean(2) - pixels.mean()) * window for pixels in (source, filled)]
    if not all(pixels.any() for pixels in grey):
        return 0, 0
    found, _, _ = phase_cross_correlation(*grey)
    rows, columns = (round(float(step)) for step in found)
    return (rows, columns) if abs(rows) <= height // MOST and abs(columns) <= width // MOST else (0, 0)


def _cut(
    image: np.ndarray, source: np.ndarray, keep: np.ndarray, shift: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """`shift` is the offset from coordinates of the image to those of the source."""
    ours, theirs = zip(*(_pair(step) for step in shift), strict=True)
    return image[ours], source[theirs], keep[theirs]


def _pair(step: int) -> tuple[slice, slice]:
    """Slices of the image and of the source on one axis after a translation by `step`."""
    if step >= 0:
        return slice(0, -step or None), slice(step, None)
    return slice(-step, None), slice(0, step)
