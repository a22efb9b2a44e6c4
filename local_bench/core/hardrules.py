"""The hard rules of an order (ServImage, appendix E.1): what a delivered file must be beyond what it shows."""

import re
from typing import Literal

from pydantic import Field, field_validator

from local_bench.core.yamlfile import Strict

FileType = Literal["AI", "EPS", "PDF", "SVG", "PSD", "PNG", "JPG", "WEBP", "TIFF", "GIF"]

_SIDE = r"(?=[0-9.]*[1-9])[0-9]{1,4}(?:\.[0-9]{1,4})?"
ASPECT = re.compile(rf"^(?:{_SIDE}:{_SIDE}|square|portrait|landscape)$")
"""`16:9`, `1:1.4`, or a word."""
_WORDS = {"square": 1.0, "portrait": 3 / 4, "landscape": 4 / 3}
"""What is made where a word gives no figures; any other upright or lying shape satisfies `portrait` or `landscape`."""


class VisualSpecs(Strict):
    """What is asked of the picture; each key is a rule of its own, but the two sides in mm are one."""

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
        """(width, height) that are asked for, exactly or at least; None unless both are."""
        width, height = self.width_px or self.min_width_px, self.height_px or self.min_height_px
        return None if width is None or height is None else (width, height)

    @property
    def aspect(self) -> float | None:
        """Width over height, by the sides in pixels, else by the stated aspect, else by the sides in mm; None where no
        rule says it."""
        if self.pixels is not None:
            return self.pixels[0] / self.pixels[1]
        if self.aspect_ratio is not None:
            return aspect_of(self.aspect_ratio)
        if self.width_mm is not None and self.height_mm is not None:
            return self.width_mm / self.height_mm
        return None


class FileSize(Strict):
    """What is asked of the file's length."""

    max_bytes: int | None = Field(None, gt=0)


def aspect_of(stated: str) -> float:
    """Width over height of what `ASPECT` matches."""
    if stated in _WORDS:
        return _WORDS[stated]
    across, _, down = stated.partition(":")
    return float(across) / float(down)


class HardRules(Strict):
    """What an order demands of one delivered file beyond what it shows; every key may be left out."""

    file_type: list[FileType] = Field(default=[])
    """Any one of them satisfies."""
    visual_specs: VisualSpecs = VisualSpecs()
    file_size: FileSize = FileSize()
