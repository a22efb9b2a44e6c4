"""Loading, digests and storage of images (invariant 7).

Every image is converted to canonical pixels: PNG, JPEG or WebP only, at most `MAX_PIXELS` by its header, EXIF
orientation applied, colours converted to sRGB, alpha composited on white, 8-bit RGB. It is identified by the digest of
these pixels.
"""

import hashlib
import io
import math
import re
import struct
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

import numpy as np
from PIL import Image, ImageCms, ImageDraw, ImageFont, ImageOps, UnidentifiedImageError

from local_bench.core.errors import ImageError, RunImageError
from local_bench.core.files import require_regular, write_atomic
from local_bench.core.types import Collage

FORMATS = ("PNG", "JPEG", "WEBP")
MAX_PIXELS = 100_000_000
MAX_IMAGE_BYTES = 1_000_000_000
"""Of a file; more than an uncompressed image of MAX_PIXELS with 16 bits per channel needs."""
ALPHA_ON = (255, 255, 255)
warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # the cap below is stricter
_DIGEST = re.compile(r"[0-9a-f]{64}")
_SRGB = ImageCms.createProfile("sRGB")


def load_image(path: Path, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Load the image at `path` as canonical RGB8 pixels. Raises ImageError."""
    with _opened(path, max_pixels) as stored:
        colours, alpha = _colours_and_alpha(ImageOps.exif_transpose(stored))
        if (profile := stored.info.get("icc_profile")) and colours.mode in ("RGB", "L", "CMYK"):
            with suppress(ImageCms.PyCMSError, OSError):  # an unreadable profile is ignored, as in browsers
                source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
                colours = ImageCms.profileToProfile(colours, source, _SRGB, outputMode="RGB") or colours
        rgb = colours.convert("RGB")
        if alpha is not None:
            ground = Image.new("RGB", rgb.size, ALPHA_ON)
            ground.paste(rgb, mask=alpha)
            rgb = ground
        return Image.frombytes("RGB", rgb.size, rgb.tobytes())  # drops all metadata


def load_mask(path: Path, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Load the mask at `path` as RGB8 pixels: the stored colours without regard to alpha channel or colour profile, as
    `Image.open(path).convert("L")` does; 16-bit values are scaled, EXIF orientation is applied.

    Raises ImageError, also for a mask in which only the alpha channel varies, because its meaning is ambiguous.
    """
    with _opened(path, max_pixels) as stored:
        colours, alpha = _colours_and_alpha(ImageOps.exif_transpose(stored))
        colours = colours.convert("RGB")
        one_colour = all(low == high for low, high in colours.getextrema())  # type: ignore[misc]  # a pair for each band
        if alpha is not None and one_colour and len(set(alpha.getextrema())) > 1:
            raise ImageError(
                f"{path} is a mask whose colour is the same everywhere, and only its transparency varies: save it "
                "without an alpha channel, white where the image is to be changed"
            )
        return Image.frombytes("RGB", colours.size, colours.tobytes())


def load_task_mask(path: Path) -> Image.Image:
    """As `load_mask`. ImageError also for a mask that is not black, but nowhere as bright as one half, where pipelines
    and metrics divide it (of the values 0 and 1, for example)."""
    mask = load_mask(path)
    brightest = int(np.asarray(mask.convert("L")).max())
    if 0 < brightest < 128:
        raise ImageError(
            f"{path} is a mask whose brightest value is {brightest} of 255, so that it marks nothing: save it with 255 "
            "where the image is to be changed"
        )
    return mask


@contextmanager
def _opened(path: Path, max_pixels: int) -> Iterator[Image.Image]:
    """The decoded file. Raises ImageError for a missing, too large or damaged file and for other formats."""
    require_regular(path, ImageError, "add the image or correct the path", max_bytes=MAX_IMAGE_BYTES)
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > max_pixels:
                raise ImageError(
                    f"{path} has {image.width}x{image.height} pixels, more than the {max_pixels:,} allowed: "
                    "make it smaller"
                )
            raw = image.tile[0].args if image.format == "PNG" and image.tile else None
            image.load()
            _scale_transparency(image, str(raw))
            yield image
    except FileNotFoundError:
        raise ImageError(f"{path} does not exist: add the image or correct the path") from None
    except UnidentifiedImageError:
        raise ImageError(f"{path} is not a readable {', '.join(FORMATS)} file: convert or replace it") from None
    except Image.DecompressionBombError:
        raise ImageError(f"{path} claims more pixels than are safe to decode: make it smaller") from None
    except (OSError, SyntaxError, ValueError, struct.error) as e:
        raise ImageError(f"{path} is damaged ({e}): replace it") from e


def _scale_transparency(image: Image.Image, raw: str) -> None:
    """Scale the transparent colour of a PNG (its tRNS chunk), which has the file's bit depth, to that of the decoded
    pixels. `raw` is Pillow's name of the file's layout."""
    colour = image.info.get("transparency")
    if isinstance(colour, int) and raw in ("L;2", "L;4"):
        image.info["transparency"] = colour * {"L;2": 85, "L;4": 17}[raw]
    elif isinstance(colour, tuple) and raw == "RGB;16B":
        image.info["transparency"] = tuple(value >> 8 for value in colour)


def _colours_and_alpha(image: Image.Image) -> tuple[Image.Image, Image.Image | None]:
    """The colours in 8 bits per channel, in the image's own colour space (L, RGB, CMYK …), and the alpha channel, from
    whatever makes pixels transparent; None without transparency."""
    if image.mode in ("I;16", "I;16B", "I"):
        grey, colour = image.point(lambda v: v / 257).convert("L"), image.info.get("transparency")
        grey.info.pop("transparency", None)
        values = np.asarray(image)
        return grey, None if colour is None else Image.fromarray(np.where(values == colour, 0, 255).astype(np.uint8))
    alpha = image.convert("RGBA").getchannel("A") if image.has_transparency_data else None
    if image.mode in ("1", "L", "LA", "La"):
        return image.convert("LA").getchannel("L"), alpha
    if image.mode in ("P", "PA", "RGBA", "RGBa"):
        return image.convert("RGBA").convert("RGB"), alpha
    if alpha is not None:
        image.info.pop("transparency", None)
    return image, alpha


def pixel_digest(image: Image.Image) -> str:
    """sha256 over width, height (two big-endian uint32) and the RGB8 bytes, row by row."""
    assert image.mode == "RGB", image.mode
    return hashlib.sha256(struct.pack(">II", *image.size) + image.tobytes()).hexdigest()


def image_path(images: Path, pixels_sha256: str) -> Path:
    """The path of the image with that digest in the folder `images`. Raises ImageError for anything but a lower-case
    hexadecimal digest: the value may come from an untrusted ledger and could be a path to another folder."""
    if not (isinstance(pixels_sha256, str) and _DIGEST.fullmatch(pixels_sha256)):
        raise ImageError(f"{str(pixels_sha256)[:80]!r} is not the digest of an image: use the run's own ledger")
    return images / image_name(pixels_sha256)


def image_name(pixels_sha256: str) -> str:
    """The path of an image relative to its folder of images, which are divided by the digest's first two digits."""
    return f"{pixels_sha256[:2]}/{pixels_sha256}.png"


def png_bytes(image: Image.Image) -> bytes:
    """The image as a PNG file without metadata (level 1: fast, lossless)."""
    buffer = io.BytesIO()
    image.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


def store_image(images: Path, image: Image.Image) -> str:
    """Store an RGB image atomically under its pixel digest and return the digest. Raises StorageError."""
    sha256 = pixel_digest(image)
    write_atomic(image_path(images, sha256), png_bytes(image))
    return sha256


def load_verified(path: Path, pixels_sha256: str, max_pixels: int = MAX_PIXELS) -> Image.Image:
    """Load a stored image of a run and verify its pixel digest. Raises RunImageError if the file is missing, damaged
    (it cannot be decoded) or altered (it has other pixels)."""
    try:
        image = load_image(path, max_pixels)
    except ImageError as e:
        raise RunImageError(str(e), "damaged" if path.exists() else "missing") from e
    if pixel_digest(image) != pixels_sha256:
        raise RunImageError(f"{path} is altered (its pixels do not have the digest in its name): restore it", "altered")
    return image


def fit_pixels(image: Image.Image, max_pixels: int, multiple: int, min_pixels: int = 1) -> Image.Image:
    """Resize (bicubic) to sides that are multiples of `multiple` and to between `min_pixels` and `max_pixels`.

    The aspect ratio is preserved up to rounding. If no such size exists, `max_pixels` takes precedence, and the longer
    side is reduced if necessary.
    """
    pixels = image.width * image.height
    scale = min(1.0, (max_pixels / pixels) ** 0.5) if pixels >= min_pixels else (min_pixels / pixels) ** 0.5
    width, height = (max(multiple, int(side * scale) // multiple * multiple) for side in image.size)
    if width * height < min_pixels:
        wider, higher = (math.ceil(side * scale / multiple) * multiple for side in image.size)
        if wider * higher <= max_pixels:
            width, height = wider, higher
    if width * height > max_pixels:
        most = max(multiple, max_pixels // min(width, height) // multiple * multiple)
        width, height = min(width, most), min(height, most)
    return image if (width, height) == image.size else image.resize((width, height), Image.Resampling.BICUBIC)


GAP = 20
"""White pixels between the images of a collage."""
CARD_SIDE = 512
"""Side of the card that shows a count instead of images, in pixels."""


def stitched(images: Sequence[Image.Image], collage: Collage) -> Image.Image:
    """The images in rows on white; images of the upper rows are resized to the height of the last row's first image."""
    assert sum(collage.rows) == len(images)
    unplaced = iter(images)
    rows = [list(islice(unplaced, n)) for n in collage.rows]
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
