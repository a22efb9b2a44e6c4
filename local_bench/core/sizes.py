"""The size of a picture that takes another one's aspect."""


def size_like(width: int, height: int, area: int, multiple: int) -> tuple[int, int]:
    """(height, width) of about `area` pixels in the aspect of width x height, both multiples of `multiple`."""
    ratio = width / height
    wide = max(multiple, round((area * ratio) ** 0.5 / multiple) * multiple)
    high = max(multiple, round((area / ratio) ** 0.5 / multiple) * multiple)
    return high, wide
