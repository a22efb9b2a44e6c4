"""Collages of several images, as IDEA-Bench presents them to its judge (sec. 3.3.2)."""

from collections.abc import Sequence

from PIL import Image, ImageDraw, ImageFont

from local_bench.core.types import Collage

GAP = 20
"""White pixels between the images of a collage."""
CARD_SIDE = 512
"""Side of the card that shows a count instead of images, in pixels."""


def stitched(images: Sequence[Image.Image], collage: Collage) -> Image.Image:
    """The images in rows on white; images of the upper rows are resized to the height of the last row's first image."""
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
    """A white square with the number in its centre."""
    card = Image.new("RGB", (CARD_SIDE, CARD_SIDE), "white")
    middle = (CARD_SIDE / 2, CARD_SIDE / 2)
    ImageDraw.Draw(card).text(middle, str(count), "black", ImageFont.load_default(CARD_SIDE // 3), anchor="mm")
    return card


def _to_height(image: Image.Image, height: int) -> Image.Image:
    width = max(1, round(image.width * height / image.height))
    return image if image.height == height else image.resize((width, height), Image.Resampling.BICUBIC)
