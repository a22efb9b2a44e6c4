"""How the judge is shown images: resized here, once, to its pixel budget, so that vLLM has nothing left to resize."""

import base64
import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from local_bench.core.images import fit_pixels, png_bytes
from local_bench.core.types import Collage
from local_bench.judges.vlm.protocols import Shown

PREPARATION: dict[str, Any] = {"filter": "bicubic", "format": "png", "sheet": 1}
"""Part of who a judge is; `collage` is the version of how several images are laid on one."""
GAP = 20
"""White pixels between the images of a sheet (IDEA-Bench)."""
CARD_SIDE = 512
"""The card that shows a count instead of pictures (IDEA-Bench)."""


@dataclass(frozen=True)
class Prepared:
    """A picture as it is sent: a PNG file and its sha256, which names it to vLLM's caches."""

    png: bytes
    sha256: str

    @property
    def data_uri(self) -> str:
        return "data:image/png;base64," + base64.b64encode(self.png).decode()


def prepare(shown: Shown, load: Callable[[str], Image.Image], multiple: int) -> Prepared:
    """`shown` as a PNG with sides that are multiples of `multiple`; `load` gives an image by its pixel digest."""
    if shown.collage is None:
        (sha256,) = shown.images
        picture = load(sha256)
    elif shown.collage.count is not None:
        picture = count_card(shown.collage.count)
    else:
        picture = stitched([load(sha256) for sha256 in shown.images], shown.collage)
    png = png_bytes(fit_pixels(picture, shown.max_pixels, multiple, shown.min_pixels))
    return Prepared(png, hashlib.sha256(png).hexdigest())


def stitched(images: Sequence[Image.Image], collage: Collage) -> Image.Image:
    """The images in rows on white, those of the rows above brought to the height of the last row's first."""
    assert sum(collage.rows) == len(images)
    rows, at = [], 0
    for n in collage.rows:
        rows.append(list(images[at : at + n]))
        at += n
    height = next(row for row in reversed(rows) if row)[0].height
    rows = [[_to_height(image, height) for image in row] for row in rows[:-1]] + rows[-1:]
    rows = [row for row in rows if row]
    size = (
        max(sum(image.width for image in row) + GAP * (len(row) - 1) for row in rows),
        sum(max(image.height for image in row) for row in rows) + GAP * (len(rows) - 1),
    )
    canvas = Image.new("RGB", size, "white")
    top = 0
    for row in rows:
        left = 0
        for image in row:
            canvas.paste(image, (left, top))
            left += image.width + GAP
        top += max(image.height for image in row) + GAP
    return canvas


def count_card(count: int) -> Image.Image:
    """A white square with the number in its middle."""
    card = Image.new("RGB", (CARD_SIDE, CARD_SIDE), "white")
    middle = (CARD_SIDE / 2, CARD_SIDE / 2)
    ImageDraw.Draw(card).text(middle, str(count), "black", ImageFont.load_default(CARD_SIDE // 3), anchor="mm")
    return card


def _to_height(image: Image.Image, height: int) -> Image.Image:
    width = max(1, round(image.width * height / image.height))
    return image if image.height == height else image.resize((width, height), Image.Resampling.BICUBIC)
