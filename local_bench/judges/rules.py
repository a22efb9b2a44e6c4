"""Checks the hard rules of a task on the delivered file: type, dimensions, aspect ratio, resolution and file size.

The rules are those that ServImage extracts from a brief (appendix E.1); the rubric `deliverables` writes them. Only the
file's first bytes and its header are read, not its pixels: a file with truncated pixels has a width and height here
(the image loader refuses it), and metadata after the pixels is ignored.
"""

import math
import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from PIL import ExifTags, Image, UnidentifiedImageError
from typing_extensions import TypedDict

from local_bench.core.errors import ImageError
from local_bench.core.files import open_regular
from local_bench.core.hardrules import FileType, HardRules, VisualSpecs, aspect_of
from local_bench.core.images import FORMATS, MAX_PIXELS
from local_bench.core.types import Score

RULES = "rules"
"""The name of the score."""
ASPECT_TOLERANCE = 0.01
MM_PIXELS_SPARE = 1.0
DPI_SPARE = 0.5
CM_PER_INCH = 2.54
MM_PER_INCH = 25.4

_BEGINNINGS: tuple[tuple[bytes, FileType], ...] = (
    (b"\x89PNG\r\n\x1a\n", "PNG"),
    (b"\xff\xd8\xff", "JPG"),
    (b"GIF87a", "GIF"),
    (b"GIF89a", "GIF"),
    (b"II*\0", "TIFF"),
    (b"MM\0*", "TIFF"),
    (b"8BPS", "PSD"),
    (b"%PDF-", "PDF"),
    (b"%!PS-Adobe", "EPS"),
    (b"\xc5\xd0\xd3\xc6", "EPS"),
)
_LIKE_AI = ("PDF", "EPS")
"""Types whose first bytes an Illustrator file can also have."""
_EXIF_PER_INCH = {2: 1.0, 3: CM_PER_INCH}
_JFIF_PER_INCH = {1: 1.0, 2: CM_PER_INCH}


@dataclass(frozen=True)
class RuleOutcome:
    """The result of one rule for one file."""

    rule: str
    """Its key, or `size_mm` for the two sides in mm."""
    met: bool | None
    """None: it cannot be determined from this file."""
    sentence: str
    """What the file has, and what is required."""


class FileFacts(TypedDict):
    """What the hard rules need to know of a file besides its width and height."""

    type: FileType | None
    bytes: int
    dpi: float | None


OF_FILE = ("file_type", "max_bytes", "min_dpi")
"""The rules that a copy with the same pixels does not decide."""


@dataclass(frozen=True)
class _Header:
    width: int
    """Pixels, EXIF orientation applied."""
    height: int
    dpi: float | None
    """The lower of both directions; None if the file has none."""


_UNREAD = _Header(1, 1, None)
_Finding = tuple[bool | None, str]


def file_facts(path: Path) -> FileFacts:
    """The type of the content, not of the name, the size and the resolution. ImageError if there is no such file."""
    with open_regular(path, ImageError, missing="put the image there") as file:
        size, kind = os.fstat(file.fileno()).st_size, _kind(file.read(4096))
    header = _header(path)
    return FileFacts(type=kind, bytes=size, dpi=None if isinstance(header, str) else header.dpi)


def check_rules(path: Path, rules: HardRules, delivered: FileFacts | None = None) -> list[RuleOutcome]:
    """Check every rule of the task on the file at `path`; empty if there are none. `delivered`: the facts of the file
    that was delivered, if the one at `path` is a copy of its pixels.

    The type is that of the content, not of the name. Width and height are those after EXIF orientation. Tolerances:
    `width_px`, `height_px`, their minima and `max_bytes` are exact; `aspect_ratio` 1 %; `min_dpi` half a dot per inch,
    the rounding error of a PNG; sizes in mm must agree in aspect ratio to 1 % if both are given and, with `min_dpi`, in
    pixels (mm / 25.4 * dpi) less 1. The result is None for one size in mm without `min_dpi`, which cannot be checked;
    for `min_dpi` if the file has no resolution; and for every rule about pixels if the file is missing, not a PNG, JPEG
    or WebP, has a damaged header, or has more pixels than are safe to open.
    """
    specs, most = rules.visual_specs, rules.file_size.max_bytes
    try:
        facts = delivered or file_facts(path)
    except ImageError as e:
        of_pixels = [rule for rule, *_ in _pixel_rules(_UNREAD, specs)]
        names = ["file_type"] * bool(rules.file_type) + of_pixels + ["max_bytes"] * (most is not None)
        return [RuleOutcome(rule, None, f"the file cannot be read ({e})") for rule in names]
    outcomes = []
    if rules.file_type:
        outcomes.append(RuleOutcome("file_type", *_type(facts["type"], rules.file_type)))
    header = _header(path)
    fault = header if isinstance(header, str) else None
    seen = _UNREAD if isinstance(header, str) else replace(header, dpi=facts["dpi"])
    for rule, met, sentence in _pixel_rules(seen, specs):
        outcomes.append(RuleOutcome(rule, None if fault else met, fault or sentence))
    if most is not None:
        size = facts["bytes"]
        outcomes.append(
            RuleOutcome("max_bytes", size <= most, f"the file has {size:,} bytes; at most {most:,} required")
        )
    return outcomes


def rules_score(outcomes: Sequence[RuleOutcome]) -> Score:
    """The fraction of rules that are met, in [0, 1]; unscored if one of them cannot be determined, not applicable
    without rules."""
    if not outcomes:
        return Score(RULES, None, applies=False)
    for outcome in outcomes:
        if outcome.met is None:
            return Score(RULES, None, f"{outcome.rule}: {outcome.sentence}")
    return Score(RULES, sum(outcome.met is True for outcome in outcomes) / len(outcomes))


def _kind(head: bytes) -> FileType | None:
    for beginning, kind in _BEGINNINGS:
        if head.startswith(beginning):
            return kind
    if head[:4] == b"RIFF" and head[8:12] == b"WEBP":
        return "WEBP"
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    return "SVG" if text.startswith((b"<svg", b"<?xml", b"<!--", b"<!DOCTYPE svg")) and b"<svg" in text else None


def _type(kind: FileType | None, required: Sequence[FileType]) -> _Finding:
    wanted = f"{' or '.join(required)} was asked for"
    if kind is None:
        return False, f"the file is of no kind that we know; {wanted}"
    if kind not in required and "AI" in required and kind in _LIKE_AI:
        return None, f"the file begins as a {kind}, and so may an AI file; {wanted}"
    return kind in required, f"the file is a {kind}; {wanted}"


def _pixel_rules(header: _Header, specs: VisualSpecs) -> Iterator[tuple[str, bool | None, str]]:
    sides = (("width_px", header.width, "wide"), ("height_px", header.height, "high"))
    for rule, pixels, way in sides:
        if (exactly := getattr(specs, rule)) is not None:
            yield rule, pixels == exactly, f"it is {pixels} pixels {way}; {exactly} required"
    for rule, pixels, way in sides:
        if (least := getattr(specs, f"min_{rule}")) is not None:
            yield f"min_{rule}", pixels >= least, f"it is {pixels} pixels {way}; at least {least} required"
    if specs.width_mm is not None or specs.height_mm is not None:
        yield "size_mm", *_size_mm(header, specs)
    if (shape := specs.aspect_ratio) is not None:
        yield "aspect_ratio", _has_shape(header, shape), f"it is {header.width}x{header.height}; {shape} required"
    if (dpi := specs.min_dpi) is not None:
        yield "min_dpi", *_dense(header, dpi)


def _has_shape(header: _Header, shape: str) -> bool:
    if shape == "portrait":
        return header.height > header.width
    if shape == "landscape":
        return header.width > header.height
    return _near(header, aspect_of(shape))


def _near(header: _Header, aspect: float) -> bool:
    return abs(header.width / header.height / aspect - 1) <= ASPECT_TOLERANCE + 1e-9  # 1010 x 1000 is 1 % off 1:1


def _size_mm(header: _Header, specs: VisualSpecs) -> _Finding:
    is_now = f"it is {header.width}x{header.height} pixels"
    sides = [(specs.width_mm, header.width, "wide"), (specs.height_mm, header.height, "high")]
    wanted = " and ".join(f"{mm:g} mm {way}" for mm, _, way in sides if mm is not None)
    if specs.width_mm is not None and specs.height_mm is not None:
        if not _near(header, specs.width_mm / specs.height_mm):
            return False, f"{is_now}, another shape than {wanted}"
    elif specs.min_dpi is None:
        return None, f"{is_now}; {wanted} says nothing about pixels without min_dpi"
    if specs.min_dpi is None:
        return True, f"{is_now}, the shape of {wanted}"
    needed = {way: mm / MM_PER_INCH * specs.min_dpi for mm, _, way in sides if mm is not None}
    met = all(pixels >= needed[way] - MM_PIXELS_SPARE for _, pixels, way in sides if way in needed)
    required = " and ".join(f"{pixels:.0f} {way}" for way, pixels in needed.items())
    return met, f"{is_now}; {wanted} at {specs.min_dpi:g} dpi takes {required}"


def _dense(header: _Header, least: float) -> _Finding:
    if header.dpi is None:
        return None, f"the file states no resolution; at least {least:g} dpi were asked for"
    return header.dpi + DPI_SPARE >= least, f"the file states {header.dpi:g} dpi; at least {least:g} were asked for"


def _header(path: Path) -> _Header | str:
    """The file's header, or a sentence that says why it cannot be read."""
    try:
        with Image.open(path, formats=FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                return (
                    f"it claims {image.width}x{image.height} pixels, more than the {MAX_PIXELS:,} that are safe to open"
                )
            exif = Image.Image.getexif(image)  # PNG's own decodes all pixels to find EXIF data after them
            turned = exif.get(ExifTags.Base.Orientation, 1) in (5, 6, 7, 8)
            width, height = (image.height, image.width) if turned else image.size
            return _Header(width, height, _dpi(image, exif))
    except UnidentifiedImageError:
        return f"its sides cannot be read: it is not a whole {', '.join(FORMATS)} file"
    except Image.DecompressionBombError:
        return "it claims more pixels than are safe to open"
    except (OSError, SyntaxError, ValueError, struct.error) as e:
        return f"its header is damaged ({e})"


def _dpi(image: Image.Image, exif: Image.Exif) -> float | None:
    """Dots per inch in the file: PNG's pHYs, JPEG's density, else EXIF; not Pillow's defaults."""
    dpi: Any = None
    if image.format == "PNG":
        dpi = image.info.get("dpi")
    elif (per_inch := _JFIF_PER_INCH.get(image.info.get("jfif_unit", 0))) is not None:
        dpi = [density * per_inch for density in image.info["jfif_density"]]
    stated = [_positive(value) for value in dpi or ()]
    if not stated or None in stated:
        per_inch = _EXIF_PER_INCH.get(exif.get(ExifTags.Base.ResolutionUnit, 2))
        x = exif.get(ExifTags.Base.XResolution)
        densities = [_positive(value) for value in (x, exif.get(ExifTags.Base.YResolution, x))]
        stated = [value and per_inch and value * per_inch for value in densities]
    positive = [value for value in stated if value]
    return min(positive) if len(positive) == 2 else None


def _positive(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError, ZeroDivisionError):
        return None
    return number if math.isfinite(number) and number > 0 else None
