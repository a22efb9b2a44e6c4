import io
import struct
import zlib

import numpy as np
import pytest
from PIL import Image, ImageCms

from local_bench.core.errors import ImageError
from local_bench.core.images import (
    fit_pixels,
    image_path,
    load_image,
    load_mask,
    load_task_mask,
    pixel_digest,
    store_image,
)


def make_image(width=6, height=4) -> Image.Image:
    return Image.fromarray(np.arange(width * height * 3, dtype=np.uint8).reshape(height, width, 3), "RGB")


def test_a_stored_image_is_unchanged_and_named_by_its_digest(tmp_path):
    sha = store_image(tmp_path, make_image())
    back = load_image(image_path(tmp_path, sha))
    assert back.tobytes() == make_image().tobytes()
    assert pixel_digest(back) == sha


def test_the_digest_is_of_pixels_and_shape_not_of_the_file(tmp_path):
    make_image().save(tmp_path / "a.png", compress_level=9)
    make_image().save(tmp_path / "b.webp", lossless=True)
    assert pixel_digest(load_image(tmp_path / "a.png")) == pixel_digest(load_image(tmp_path / "b.webp"))
    assert pixel_digest(make_image(6, 4)) != pixel_digest(make_image(4, 6))


def test_exif_orientation_is_applied(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # rotate 90 degrees clockwise to show
    make_image(6, 4).save(tmp_path / "turned.png", exif=exif)
    turned = load_image(tmp_path / "turned.png")
    assert turned.size == (4, 6)
    assert turned.tobytes() == make_image(6, 4).transpose(Image.Transpose.ROTATE_270).tobytes()
    assert not turned.getexif()


@pytest.mark.parametrize("mode", ["RGBA", "LA", "P"])
def test_alpha_is_composited_on_white(tmp_path, mode):
    clear = Image.new("RGBA", (3, 3), (200, 0, 0, 0)).convert(mode)
    if mode == "P":
        clear.info["transparency"] = clear.getpixel((0, 0))
    clear.save(tmp_path / "clear.png")
    assert load_image(tmp_path / "clear.png").getpixel((1, 1)) == (255, 255, 255)


def test_a_profile_is_brought_to_srgb(tmp_path):
    lab_like = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    make_image().save(tmp_path / "tagged.png", icc_profile=lab_like)
    assert load_image(tmp_path / "tagged.png").size == (6, 4)
    make_image().save(tmp_path / "broken.png", icc_profile=b"no profile at all")
    assert load_image(tmp_path / "broken.png").tobytes() == make_image().tobytes()


def png(width: int, height: int, depth: int, kind: int, row: bytes, transparent: bytes) -> bytes:
    """A PNG of equal rows, of that bit depth and colour type, with a transparent colour (its tRNS chunk)."""

    def chunk(name: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    parts = [(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)), (b"tRNS", transparent)]
    parts += [(b"IDAT", zlib.compress((b"\0" + row) * height if row else b"")), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunk(name, data) for name, data in parts if data or name != b"tRNS")


GREY, RGB = 0, 2


def stored(image: Image.Image, format: str) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, format)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("depth", "kind", "row", "transparent", "colours", "shown"),
    [
        (1, GREY, bytes([0b01_000000]), (0,), [0, 255], [255, 255]),
        (2, GREY, bytes([0b01_10_0000]), (1,), [85, 170], [255, 170]),
        (4, GREY, bytes([0x3A]), (3,), [51, 170], [255, 170]),
        (8, GREY, bytes([10, 20]), (10,), [10, 20], [255, 20]),
        (16, GREY, struct.pack(">HH", 1000, 1001), (1000,), [3, 3], [255, 3]),
        (8, RGB, bytes([1, 1, 1, 9, 9, 9]), (1, 1, 1), [1, 9], [255, 9]),
        (16, RGB, struct.pack(">6H", *[1000] * 3, *[40000] * 3), (1000,) * 3, [3, 156], [255, 156]),
    ],
)
def test_a_transparent_colour_is_composited_on_white(tmp_path, depth, kind, row, transparent, colours, shown):
    """In every bit depth; a mask has the stored colours."""
    data = png(2, 2, depth, kind, row, struct.pack(f">{len(transparent)}H", *transparent))
    (tmp_path / "image.png").write_bytes(data)
    assert np.asarray(load_image(tmp_path / "image.png")).tolist() == [[[v] * 3 for v in shown]] * 2
    if len(set(colours)) > 1:
        assert np.asarray(load_mask(tmp_path / "image.png")).tolist() == [[[v] * 3 for v in colours]] * 2


def grey_profile(gamma: float) -> bytes:
    """An ICC profile of a grey space with that gamma."""
    curve = b"curv" + bytes(4) + struct.pack(">IH", 1, round(gamma * 256)) + bytes(2)
    white = b"XYZ " + bytes(4) + struct.pack(">iii", 63190, 65536, 54061)
    start = 128 + 4 + 24
    size = start + len(white) + len(curve)
    header = struct.pack(">I4sI4s4s4s", size, b"lcms", 0x02100000, b"mntr", b"GRAY", b"XYZ ")
    header += bytes(12) + b"acsp" + bytes(28) + white[8:] + bytes(48)
    table = struct.pack(">I", 2) + b"wtpt" + struct.pack(">II", start, len(white))
    table += b"kTRC" + struct.pack(">II", start + len(white), len(curve))
    return header + table + white + curve


@pytest.mark.parametrize("mode", ["L", "LA", "I;16"])
def test_a_grey_profile_applies_with_an_alpha_channel_too(tmp_path, mode):
    ramp = Image.linear_gradient("L").resize((16, 16))
    stored = Image.fromarray(np.asarray(ramp).astype(np.uint16) * 257) if mode == "I;16" else ramp.convert(mode)
    stored.save(tmp_path / "tagged.png", icc_profile=grey_profile(1.0))
    ramp.save(tmp_path / "untagged.png")
    linear, plain = (np.asarray(load_image(tmp_path / f"{name}.png"))[:, 0, 0] for name in ("tagged", "untagged"))
    assert linear[8] > plain[8] + 40  # the middle of a linear ramp is light in sRGB
    ramp.save(tmp_path / "grey.png", icc_profile=grey_profile(1.0))
    assert (linear == np.asarray(load_image(tmp_path / "grey.png"))[:, 0, 0]).all()


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (png(20_000, 20_000, 8, RGB, b"", b""), "pixels"),
        (png(11_000, 10_000, 8, RGB, b"", b""), "more than the 100,000,000 allowed"),
        (stored(Image.effect_noise((64, 64), 80), "PNG")[:2000], "damaged"),
        (stored(make_image(), "GIF"), "not a readable PNG, JPEG, WEBP"),
        (b"%PDF-1.7", "not a readable"),
        (b"", "not a readable"),
        (b"<svg xmlns='http://www.w3.org/2000/svg'/>", "not a readable"),
        (None, "does not exist"),
    ],
)
def test_an_invalid_image_is_an_error(tmp_path, content, message):
    path = tmp_path / "bad.png"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ImageError, match=message) as caught:
        load_image(path)
    assert str(path) in str(caught.value)


def test_fitting_keeps_within_the_budget_and_the_grid():
    fitted = fit_pixels(make_image().resize((1000, 500)), 512 * 256, 32)
    assert fitted.size == (512, 256)
    assert fit_pixels(fitted, 512 * 256, 32) is fitted
    assert fit_pixels(make_image(), 512, 32).size == (32, 32)


@pytest.mark.parametrize("mode", ["LA", "RGBA", "P"])
def test_a_mask_is_its_stored_colours_regardless_of_alpha(tmp_path, mode):
    """Transparent black is black: laid on white, it would mark everything for change."""
    mask = Image.new("LA", (4, 2), (0, 0))
    mask.paste((255, 255), (2, 0, 4, 2))
    in_mode = {"LA": mask, "RGBA": mask.convert("RGBA"), "P": mask.convert("RGBA").quantize(4)}[mode]
    in_mode.save(tmp_path / "m.png")
    assert np.asarray(load_mask(tmp_path / "m.png").convert("L")).tolist() == [[0, 0, 255, 255]] * 2


def test_an_opaque_mask_keeps_its_digest_and_sixteen_bits_are_scaled(tmp_path):
    Image.linear_gradient("L").save(tmp_path / "soft.png")
    assert pixel_digest(load_mask(tmp_path / "soft.png")) == pixel_digest(load_image(tmp_path / "soft.png"))
    Image.fromarray(np.array([[0, 257, 65535]], np.uint16)).save(tmp_path / "deep.png")
    for load in (load_mask, load_image):
        assert np.asarray(load(tmp_path / "deep.png").convert("L")).tolist() == [[0, 1, 255]]


@pytest.mark.parametrize("brightest", [0, 1, 127, 128, 255])
def test_a_tasks_mask_that_is_nowhere_white_is_refused(tmp_path, brightest):
    """Saved with 0 and 1, or as 10 bits in 16, it was a black mask: nothing was filled, and nobody said so."""
    mask = Image.new("L", (4, 2), 0)
    mask.paste(brightest, (2, 0, 4, 2))
    mask.save(tmp_path / "m.png")
    if brightest not in (1, 127):
        assert load_task_mask(tmp_path / "m.png").getextrema()[0] == (0, brightest)
        return
    with pytest.raises(ImageError, match=f"m.png is a mask whose brightest value is {brightest} of 255, so that it ma"):
        load_task_mask(tmp_path / "m.png")


@pytest.mark.parametrize("colour", [0, 255])
def test_a_mask_that_varies_in_its_alpha_alone_is_refused(tmp_path, colour):
    mask = Image.new("LA", (4, 2), (colour, 0))
    mask.paste((colour, 255), (2, 0, 4, 2))
    mask.save(tmp_path / "m.png")
    with pytest.raises(ImageError, match="only its transparency varies: save it without an alpha channel"):
        load_mask(tmp_path / "m.png")
