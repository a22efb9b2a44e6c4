"""Prepares images for the judge: each is resized once to the judge's pixel budget, so that vLLM does not resize it."""

import base64
import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from PIL import Image

from local_bench.core.images import count_card, fit_pixels, png_bytes, stitched
from local_bench.judges.vlm.protocols import Shown

PREPARATION: dict[str, Any] = {"filter": "bicubic", "format": "png", "sheet": 1}
"""Part of a judge's identity; `sheet` is the version of `core.images.stitched`."""


@dataclass(frozen=True)
class Prepared:
    """An image as sent to the judge: a PNG file and its sha256, the key for vLLM's caches."""

    png: bytes
    sha256: str

    @property
    def data_uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


def prepare(shown: Shown, load: Callable[[str], Image.Image], multiple: int) -> Prepared:
    """Encode `shown` as a PNG whose sides are multiples of `multiple`; `load` returns an image by its pixel digest."""
    if shown.collage is None:
        (sha256,) = shown.images
        image = load(sha256)
    elif shown.collage.count is not None:
        image = count_card(shown.collage.count)
    else:
        image = stitched([load(sha256) for sha256 in shown.images], shown.collage)
    png = png_bytes(fit_pixels(image, shown.max_pixels, multiple, shown.min_pixels))
    return Prepared(png, hashlib.sha256(png).hexdigest())
