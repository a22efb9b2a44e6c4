"""The size of a picture that takes another one's aspect, or what an order's rules say."""

from local_bench.core.hardrules import VisualSpecs


def size_by_rules(specs: VisualSpecs, area: int, multiple: int) -> tuple[int, int] | None:
    """(height, width) that an order's rules ask of a model: the sides in pixels themselves where both are multiples of
    `multiple` and not more than `area` together, else their shape, or the shape that is stated, at about `area`. None
    where the rules say nothing of it."""
    if specs.pixels is not None:
        width, height = specs.pixels
        if width % multiple == height % multiple == 0 and width * height <= area:
            return height, width
    return None if specs.aspect is None else size_like(specs.aspect, 1, area, multiple)


def size_like(width: float, height: float, area: int, multiple: int) -> tuple[int, int]:
    """(height, width) of about `area` pixels in the aspect of width x height, both multiples of `multiple`."""
    ratio = width / height
    wide = max(multiple, round((area * ratio) ** 0.5 / multiple) * multiple)
    high = max(multiple, round((area / ratio) ** 0.5 / multiple) * multiple)
    return high, wide
