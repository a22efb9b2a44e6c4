"""What l1_canny, l1_depth and l1_pose share: how like a picture's feature map is to the condition given for it.

As ICE-Bench's evaluator does it: the picture is brought to the condition's size first, the feature is read off it, and
1 - mean |feature - grey(condition)| / 255 is the number, in [0, 1]; 1 where they are the same.
"""

import numpy as np
from PIL import Image

PREPARED = "image in the condition's size (bicubic, antialiased, PIL), where they differ"
"""The first step of each of them, in words."""
COMPARED = (
    "1 - mean |feature - condition| / 255 in float64, the condition in grey by (299 R + 587 G + 114 B) / 1000 (PIL)"
)
"""The last step of each of them, in words."""


def as_condition(image: Image.Image, condition: Image.Image) -> Image.Image:
    """The image in the condition's size, which the feature is then read off."""
    size = condition.size
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def likeness(feature_L: np.ndarray, condition: Image.Image) -> float:
    """1 - mean |feature - grey| / 255 in [0, 1]; `feature_L` is (height, width) in the condition's own size."""
    grey = np.asarray(condition.convert("L"), np.float64)
    assert feature_L.dtype == np.uint8, feature_L.dtype
    assert feature_L.shape == grey.shape, (feature_L.shape, grey.shape)
    return float(1 - np.abs(feature_L.astype(np.float64) - grey).mean() / 255)
