"""Removes metadata from PNG files, which could name the model that made an image."""

import struct

from local_bench.core.errors import ImageError

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_KEPT = {b"IHDR", b"PLTE", b"IDAT", b"IEND", b"tRNS"}


def without_metadata(data: bytes) -> bytes:
    """The PNG file `data` with the chunks that contain pixels only. ImageError for another format or a truncated
    file."""
    if not data.startswith(_SIGNATURE):
        raise ImageError("the image is not a PNG file")
    parts, at = [_SIGNATURE], len(_SIGNATURE)
    while at + 12 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        end = at + 12 + length
        kind = data[at + 4 : at + 8]
        if end > len(data):
            break
        if kind in _KEPT:
            parts.append(data[at:end])
        at = end
        if kind == b"IEND":
            return b"".join(parts)
    raise ImageError("the image is truncated")
