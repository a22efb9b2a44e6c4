"""The hard rules of a task (ServImage, appendix E.1): requirements on the file rather than the content."""

import re
from typing import Literal

from pydantic import Field, field_validator

from local_bench.core.yamlfile import Strict

FileType = Literal["AI", "EPS", "PDF", "SVG", "PSD", "PNG", "JPG", "WEBP", "TIFF", "GIF"]

_SIDE = r"(?=[0-9.]*[1-9])[0-9]{1,4}(?:\.[0-9]{1,4})?"
ASPECT = re.compile(rf"^(?:{_SIDE}:{_SIDE}|square|portrait|landscape)$")
"""`16:9`, `1:1.4`, or a name."""
_NAMED_ASPECTS = {"square": 1.0, "portrait": 3 / 4, "landscape": 4 / 3}
"""The generated aspect ratio of each name; every vertical or horizontal format satisfies `portrait` or `landscape`."""


class VisualSpecs(Strict):
    """Requirements on the image; each key is a separate rule, except that the two sides in mm are one rule."""

    width_px: int | None = Field(None, gt=0)
    height_px: int | None = Field(None, gt=0)
    min_width_px: int | None = Field(None, gt=0)
    min_height_px: int | None = Field(None, gt=0)
    width_mm: float | None = Field(None, gt=0, allow_inf_nan=False)
    height_mm: float | None = Field(None, gt=0, allow_inf_nan=False)
    aspect_ratio: str | None = None
    """Width to height, as `16:9` or `1:1.4`, or `square`, `portrait`, `landscape`."""
    min_dpi: float | None = Field(None, gt=0, allow_inf_nan=False)

    @field_validator("aspect_ratio")
    @classmethod
    def _is_an_aspect(cls, given: str | None) -> str | None:
        if given is not None and not ASPECT.fullmatch(given):
            raise ValueError("give width to height as 16:9 or 1:1.4, or square, portrait or landscape")
        return given

    @property
    def pixels(self) -> tuple[int, int] | None:
        """The required (width, height), exact or minimum; None unless both are specified."""
        width, height = self.width_px or self.min_width_px, self.height_px or self.min_height_px
        return None if width is None or height is None else (width, height)

    @property
    def aspect(self) -> float | None:
        """Width over height from the sides in pixels, else from the aspect ratio, else from the sides in mm; None if
        none is specified."""
        if self.pixels is not None:
            return self.pixels[0] / self.pixels[1]
        if self.aspect_ratio is not None:
            return aspect_of(self.aspect_ratio)
        if self.width_mm is not None and self.height_mm is not None:
            return self.width_mm / self.height_mm
        return None


class FileSize(Strict):
    """Requirements on the file size."""

    max_bytes: int | None = Field(None, gt=0)


def aspect_of(stated: str) -> float:
    """Width over height of a string that matches `ASPECT`."""
    if stated in _NAMED_ASPECTS:
        return _NAMED_ASPECTS[stated]
    across, _, down = stated.partition(":")
    return float(across) / float(down)


class HardRules(Strict):
    """The hard rules of one deliverable; every key is optional."""

    file_type: list[FileType] = Field(default=[])
    """The allowed file types."""
    visual_specs: VisualSpecs = VisualSpecs()
    file_size: FileSize = FileSize()
