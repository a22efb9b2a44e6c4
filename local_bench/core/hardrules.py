"""The hard rules of a task (ServImage, appendix E.1): requirements on the file rather than the content;
and image sizes from them or from an aspect ratio."""

import re
from decimal import Decimal
from math import ceil
from typing import Any, Literal, get_args

from pydantic import Field, field_validator

from local_bench.core.yamlfile import Strict

FileType = Literal["AI", "EPS", "PDF", "SVG", "PSD", "PNG", "JPG", "WEBP", "TIFF", "GIF"]

_SIDE = r"(?=[0-9.]*[1-9])[0-9]{1,4}(?:\.[0-9]{1,4})?"
ASPECT = re.compile(rf"^(?:{_SIDE}:{_SIDE}|square|portrait|landscape)$")
"""`16:9`, `1:1.4`, or a name."""
_MM_PER = {"mm": 1.0, "cm": 10.0, "in": 25.4, "inch": 25.4, "inches": 25.4}
_MOST_A_SIDE = 10**6
_PIXELS = ("px", "pixel", "pixels")
_ORIENTATIONS = {"vertical": "portrait", "竖版": "portrait", "horizontal": "landscape", "横版": "landscape"}
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
    def _is_an_aspect(cls, text: str | None) -> str | None:
        if text is not None and not ASPECT.fullmatch(text):
            raise ValueError("give width to height as 16:9 or 1:1.4, or square, portrait or landscape")
        return text

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


def published_rules(raw: dict[str, Any]) -> dict[str, Any]:
    """The unambiguous hard rules of one image in ServImage's published format, in our own format."""
    types, specs = raw.get("file_type"), raw.get("visual_specs")
    named = [types] if isinstance(types, str) else types if isinstance(types, list) else []
    types = [t.upper() for t in named if isinstance(t, str) and t.upper() in get_args(FileType)]
    rules: dict[str, Any] = {"file_type": list(dict.fromkeys(types))} if types else {}
    if isinstance(specs, dict) and (visual := _specs(specs)):
        rules["visual_specs"] = visual
    return HardRules.model_validate(rules).model_dump(exclude_defaults=True)


def _side(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float | Decimal) and 0 < value < _MOST_A_SIDE else None


def _specs(raw: dict[str, Any]) -> dict[str, Any]:
    """Aspect ratio, sides and resolution of one image, from its published specifications."""
    stated, sides, resolution = stated_aspect(raw), raw.get("dimensions"), raw.get("resolution")
    specs: dict[str, Any] = {} if stated is None else {"aspect_ratio": stated}
    if isinstance(resolution, dict) and (dpi := _side(resolution.get("min_dpi"))):
        specs["min_dpi"] = dpi
    if not isinstance(sides, dict) or sides.get("depth"):
        return specs
    unit = str(sides.get("unit") or "").lower()
    if not unit or unit in _PIXELS:  # without a unit it is in pixels: 1000, 2480 or 3500 in the published files
        least = {name: _side(sides.get(f"min_{name}")) for name in ("width", "height")}
        specs |= {f"min_{name}_px": ceil(side) for name, side in least.items() if side}
    if (size := stated_size(sides)) is None:
        return specs
    width, height = size
    if unit in _PIXELS:
        return specs | {"width_px": round(width), "height_px": round(height)}
    if unit in _MM_PER:
        return specs | {"width_mm": width * _MM_PER[unit], "height_mm": height * _MM_PER[unit]}
    aspect = f"{width:g}:{height:g}"
    return specs if stated or not ASPECT.fullmatch(aspect) else specs | {"aspect_ratio": aspect}


def stated_aspect(raw: dict[str, Any]) -> str | None:
    """The stated aspect ratio or orientation, in our own format; None for other text."""
    stated = raw.get("aspect_ratio")
    if not isinstance(stated, str):
        return None
    stated = _ORIENTATIONS.get(stated.lower(), stated.lower())
    return stated if ASPECT.fullmatch(stated) else None


def stated_size(sides: dict[str, Any]) -> tuple[float, float] | None:
    width, height = (_side(sides.get(name)) for name in ("width", "height"))
    return None if width is None or height is None else (width, height)


def size_by_rules(specs: VisualSpecs, area: int, multiple: int) -> tuple[int, int] | None:
    """The (height, width) that a model generates under a task's rules, or None if the rules specify neither size nor
    aspect ratio. The exact size in pixels if both sides are multiples of `multiple` and its area is at most `area`;
    otherwise a size of about `area` pixels with the specified aspect ratio."""
    if specs.pixels is not None:
        width, height = specs.pixels
        if width % multiple == height % multiple == 0 and width * height <= area:
            return height, width
    return None if specs.aspect is None else size_like(specs.aspect, 1, area, multiple)


def size_like(width: float, height: float, area: int, multiple: int) -> tuple[int, int]:
    """(height, width) with about `area` pixels and the aspect ratio width:height, both multiples of `multiple`."""
    ratio = width / height
    wide = max(multiple, round((area * ratio) ** 0.5 / multiple) * multiple)
    high = max(multiple, round((area / ratio) ** 0.5 / multiple) * multiple)
    return high, wide
