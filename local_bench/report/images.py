"""Thumbnails embedded in the page as data URIs."""

import base64
import io
from collections.abc import Callable
from dataclasses import dataclass

from PIL import Image

from local_bench.core.errors import ImageError
from local_bench.report.text import is_digest

LONG_SIDE = 192


@dataclass(frozen=True)
class InlineImage:
    """An image as a data URI, with its size on the page in pixels."""

    src: str
    width: int
    height: int
    enlarged: bool
    """Whether a pixel of the image takes several on the page."""


def inline_image(load: Callable[[str], Image.Image], pixels_sha256: str | None) -> InlineImage | None:
    """The image loaded for that digest, with at most LONG_SIDE pixels per side; a small image is enlarged by an integer
    factor. None if it cannot be read."""
    if pixels_sha256 is None or not is_digest(pixels_sha256):
        return None
    try:
        image = load(pixels_sha256)
    except ImageError:
        return None
    image.thumbnail((LONG_SIDE, LONG_SIDE), Image.Resampling.LANCZOS, reducing_gap=2.0)
    buffer = io.BytesIO()
    times = LONG_SIDE // max(image.size)
    lossless = times > 1
    image.save(buffer, "WEBP", quality=80, method=2 if lossless else 4, lossless=lossless)
    data = base64.b64encode(buffer.getvalue()).decode()
    return InlineImage(f"data:image/webp;base64,{data}", image.width * times, image.height * times, times > 1)
