"""Luma as pyiqa's `to_y_channel` defines it (Y of YIQ, rounded to an integer), in exact integer arithmetic.

pyiqa computes it in float32, where a luma of exactly .5 is rounded up or down by the last bit of a matrix product, and
so by the CPU's instruction set. About one colour in a thousand is such a case. Here .5 is rounded to the even integer.
"""

import numpy as np
from PIL import Image

LUMA = "luma (299 R + 587 G + 114 B) / 1000 of RGB8 rounded to an integer, .5 to even"
"""Its description, for the preprocessing text of metrics."""


def luma(image: Image.Image | np.ndarray) -> np.ndarray:
    """(H, W) float64, integers in [0, 255]: (299 R + 587 G + 114 B) / 1000 of an RGB8 image, .5 to even."""
    red, green, blue = np.moveaxis(np.asarray(image, np.int64), 2, 0)
    thousandths = 299 * red + 587 * green + 114 * blue
    rounded: np.ndarray = np.rint(thousandths / 1000)  # a correctly rounded quotient is .5 only where the exact one is
    return rounded
