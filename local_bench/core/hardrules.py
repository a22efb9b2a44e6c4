"""The hard rules of an order (ServImage, appendix E.1): what a delivered file must be beyond what it shows."""

from typing import Literal

from pydantic import Field

from local_bench.core.yamlfile import Strict

FileType = Literal["AI", "EPS", "PDF", "SVG", "PSD", "PNG", "JPG", "WEBP", "TIFF", "GIF"]


class VisualSpecs(Strict):
    """What is asked of the picture; each key is a rule of its own, but the two sides in mm are one."""

    width_px: int | None = Field(None, gt=0)
    height_px: int | None = Field(None, gt=0)
    min_width_px: int | None = Field(None, gt=0)
    min_height_px: int | None = Field(None, gt=0)
    width_mm: float | None = Field(None, gt=0, allow_inf_nan=False)
    height_mm: float | None = Field(None, gt=0, allow_inf_nan=False)
    aspect_ratio: str | None = Field(None, pattern=r"^([1-9][0-9]{0,3}:[1-9][0-9]{0,3}|square|portrait|landscape)$")
    """Width to height."""
    min_dpi: float | None = Field(None, gt=0, allow_inf_nan=False)


class FileSize(Strict):
    """What is asked of the file's length."""

    max_bytes: int | None = Field(None, gt=0)


class HardRules(Strict):
    """What an order demands of one delivered file beyond what it shows; every key may be left out."""

    file_type: list[FileType] = Field(default=[])
    """Any one of them satisfies."""
    visual_specs: VisualSpecs = VisualSpecs()
    file_size: FileSize = FileSize()
