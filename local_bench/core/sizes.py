"""Image sizes from an aspect ratio or from a task's hard rules."""

from local_bench.core.hardrules import VisualSpecs


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
