"""Shared by l1_canny, l1_depth and l1_pose: similarity of an image's feature map to its condition image.

As in ICE-Bench's evaluator: the image is resized to the condition's size, the feature map is computed, and the value is
1 - mean |feature - grey(condition)| / 255, in [0, 1]; 1 for equal maps.
"""

import numpy as np
from PIL import Image

PREPARED = "image in the condition's size (bicubic, antialiased, PIL), where they differ"
"""Description of the first preprocessing step."""
COMPARED = (
    "1 - mean |feature - condition| / 255 in float64, the condition in grey by (299 R + 587 G + 114 B) / 1000 (PIL)"
)
"""Description of the last step."""


def as_condition(image: Image.Image, condition: Image.Image) -> Image.Image:
    """The image in the condition's size, from which the feature map is computed."""
    size = condition.size
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def likeness(feature_L: np.ndarray, condition: Image.Image) -> float:
    """1 - mean |feature - grey| / 255 in [0, 1]; `feature_L` is (height, width) in the condition's own size."""
    grey = np.asarray(condition.convert("L"), np.float64)
    assert feature_L.dtype == np.uint8, feature_L.dtype
    assert feature_L.shape == grey.shape, (feature_L.shape, grey.shape)
    return float(1 - np.abs(feature_L.astype(np.float64) - grey).mean() / 255)
