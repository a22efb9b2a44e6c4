"""Hard rules on real files: every kind, and files with wrong names or headers."""

import random
import struct
import zlib
from contextlib import nullcontext
from pathlib import Path
from typing import get_args

import pytest
from PIL import Image
from pydantic import ValidationError

from local_bench.core import hardrules
from local_bench.core.errors import ImageError
from local_bench.core.hardrules import HardRules
from local_bench.core.images import load_image
from local_bench.core.yamlfile import read_yaml
from local_bench.judges import rules
from local_bench.judges.rules import check_rules, rules_score

ORIENTATION, X_RESOLUTION, Y_RESOLUTION, UNIT = 0x0112, 0x011A, 0x011B, 0x0128


def saved(tmp_path, name="picture.png", size=(60, 40), **options):
    path = tmp_path / name
    Image.radial_gradient("L").resize(size).convert("RGB").save(path, **options)
    return path


def exif(**tags) -> Image.Exif:
    filled = Image.Exif()
    for name, value in tags.items():
        filled[globals()[name]] = value
    return filled


def met(path, **rules) -> dict[str, bool | None]:
    return {o.rule: o.met for o in check_rules(path, HardRules.model_validate(rules))}


def specs(path, **rules) -> dict[str, bool | None]:
    return met(path, visual_specs=rules)


KINDS = ("PNG", "JPG", "WEBP", "GIF", "TIFF", "PDF", "EPS", "PSD", "SVG")


@pytest.mark.parametrize(
    ("name", "content", "kind"),
    [
        *(("a", format, format) for format in ("PNG", "WEBP", "GIF", "TIFF", "PDF", "EPS")),
        ("a.png", "JPEG", "JPG"),
        ("a.psd", "PNG", "PNG"),
        ("a", b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        ("a", b"\xef\xbb\xbf <svg/>", "SVG"),
        ("a.png", b"8BPS\0\1", "PSD"),
        *(("a.png", content, None) for content in (b"", b"a letter", b"<html><svg/></html>", b"RIFF\0\0\0\0WAVE")),
    ],
)
def test_the_type_follows_the_content_and_not_the_name(tmp_path, name, content, kind):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        saved(tmp_path, name, format=content)
    for required in KINDS:
        assert met(path, file_type=[required]) == {"file_type": required == kind}
    assert met(path, file_type=["PSD", kind or "PSD"]) == {"file_type": kind is not None}
    if kind is None:
        (outcome,) = check_rules(path, HardRules(file_type=["PNG", "SVG"]))
        assert outcome.sentence == "the file is of no kind that we know; PNG or SVG was asked for"
    assert met(path, file_type=["AI"]) == {"file_type": None if kind in ("PDF", "EPS") else False}  # AI is one of them


def test_sides_and_the_file_s_length_are_exact(tmp_path):
    path = saved(tmp_path, size=(60, 40))
    assert specs(path, width_px=60, height_px=40) == {"width_px": True, "height_px": True}
    assert specs(path, width_px=61, height_px=39) == {"width_px": False, "height_px": False}
    assert specs(path, min_width_px=60, min_height_px=40) == {"min_width_px": True, "min_height_px": True}
    assert specs(path, min_width_px=61, min_height_px=41) == {"min_width_px": False, "min_height_px": False}
    for spared, holds in ((0, True), (1, False)):
        assert met(path, file_size={"max_bytes": path.stat().st_size - spared}) == {"max_bytes": holds}


@pytest.mark.parametrize(
    ("size", "shape", "holds"),
    [
        ((1920, 1080), "16:9", True),
        ((1920, 1088), "16:9", True),
        ((1920, 1104), "16:9", False),
        ((1080, 1920), "16:9", False),
        ((1080, 1920), "9:16", True),
        ((100, 101), "square", True),
        ((100, 102), "square", False),
        *((size, "1:1", True) for size in ((1010, 1000), (990, 1000), (1000, 1010))),
        *((size, "1:1", False) for size in ((1011, 1000), (989, 1000))),
        ((100, 101), "portrait", True),
        ((100, 101), "landscape", False),
        ((100, 100), "portrait", False),
        ((100, 100), "landscape", False),
        ((101, 100), "landscape", True),
    ],
)
def test_an_aspect_ratio_holds_within_one_per_cent(tmp_path, size, shape, holds):
    assert specs(saved(tmp_path, size=size), aspect_ratio=shape) == {"aspect_ratio": holds}


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
def test_sides_are_those_that_a_viewer_shows(tmp_path, format):
    for orientation in range(1, 9):
        path = saved(tmp_path, "turned", format=format, exif=exif(ORIENTATION=orientation))
        size = load_image(path).size
        assert size == ((60, 40) if orientation < 5 else (40, 60))
        assert specs(path, width_px=size[0], height_px=size[1]) == {"width_px": True, "height_px": True}


@pytest.mark.parametrize(
    ("name", "options", "dpi"),
    [
        ("a.png", {"dpi": (300, 300)}, 300),
        ("a.png", {"dpi": (300, 72)}, 72),
        ("a.jpg", {"dpi": (72, 72)}, 72),
        ("a.jpg", {"exif": exif(X_RESOLUTION=240.0, Y_RESOLUTION=240.0, UNIT=2)}, 240),
        ("a.jpg", {"exif": exif(X_RESOLUTION=100.0, Y_RESOLUTION=100.0, UNIT=3)}, 254),
        ("a.webp", {"exif": exif(X_RESOLUTION=300.0, UNIT=2)}, 300),
        ("a.png", {"exif": exif(X_RESOLUTION=300.0, Y_RESOLUTION=300.0)}, 300),
        *((name, {}, None) for name in ("a.png", "a.jpg", "a.webp")),
        ("a.jpg", {"exif": exif(ORIENTATION=1)}, None),  # Pillow returns 72 here
        ("a.jpg", {"exif": exif(X_RESOLUTION=300.0, Y_RESOLUTION=300.0, UNIT=1)}, None),
        ("a.jpg", {"exif": exif(X_RESOLUTION=0.0, Y_RESOLUTION=0.0, UNIT=2)}, None),
    ],
)
def test_the_resolution_is_what_the_header_states(tmp_path, name, options, dpi):
    path = saved(tmp_path, name, **options)
    for asked, holds in ((dpi, True), (dpi + 1, False)) if dpi else ((72, None),):
        (outcome,) = check_rules(path, HardRules.model_validate({"visual_specs": {"min_dpi": asked}}))
        assert outcome.met is holds
        assert dpi or "states no resolution" in outcome.sentence


def test_dots_per_centimetre_in_a_jpeg_are_read(tmp_path):
    path = saved(tmp_path, "a.jpg", dpi=(118, 118))
    content = bytearray(path.read_bytes())
    assert content[6:11] == b"JFIF\0"
    content[13] = 2  # the unit: dots a centimetre
    path.write_bytes(content)
    assert [specs(path, min_dpi=dpi)["min_dpi"] for dpi in (299, 301)] == [True, False]


@pytest.mark.parametrize(
    ("size", "dpi", "rules", "holds"),
    [
        # 100 x 50 mm at 300 dpi are 1181.1 x 590.6 pixels; a pixel is spared for rounding.
        *(
            (size, 300, {"width_mm": 100, "height_mm": 50, "min_dpi": 300}, size in ((1182, 591), (1181, 590)))
            for size in ((1182, 591), (1181, 590), (1180, 590), (1181, 589), (1250, 591))
        ),
        # Without a resolution the aspect ratio is checked.
        ((210, 297), None, {"width_mm": 210, "height_mm": 297}, True),
        ((210, 297), None, {"width_mm": 148.5, "height_mm": 210}, True),
        ((210, 297), None, {"width_mm": 297, "height_mm": 210}, False),
        ((210, 297), None, {"width_mm": 210}, None),
        ((210, 297), None, {"height_mm": 20, "min_dpi": 300}, True),
        ((210, 297), None, {"height_mm": 40, "min_dpi": 300}, False),
    ],
)
def test_sides_in_mm_are_checked_in_pixels(tmp_path, size, dpi, rules, holds):
    outcomes = specs(saved(tmp_path, size=size, **({"dpi": (dpi, dpi)} if dpi else {})), **rules)
    assert outcomes["size_mm"] is holds
    assert dpi is None or outcomes["min_dpi"] is True


EVERYTHING = {
    "file_type": ["PNG"],
    "visual_specs": {"width_px": 60, "min_height_px": 1, "aspect_ratio": "3:2", "width_mm": 9, "min_dpi": 72},
    "file_size": {"max_bytes": 100_000},
}
PIXEL_RULES = ("width_px", "min_height_px", "size_mm", "aspect_ratio", "min_dpi")


def png_header(width: int, height: int, extra: bytes = b"") -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    text = chunk(b"zTXt", extra) if extra else b""
    return b"\x89PNG\r\n\x1a\n" + header + text + chunk(b"IDAT", zlib.compress(b"")) + chunk(b"IEND", b"")


TEXT_BOMB = b"note\0\0" + zlib.compress(bytes(50_000_000))


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (png_header(60, 40)[:20], "damaged"),
        (png_header(60, 40, TEXT_BOMB), "damaged (Decompressed data too large"),
        (png_header(30_000, 30_000), "more pixels than are safe"),
        (png_header(11_000, 10_000), "11000x10000 pixels, more than the 100,000,000"),
        (None, ""),  # a GIF, whose pixels are not read
    ],
)
def test_an_unsafe_file_has_its_type_and_open_pixel_rules(tmp_path, content, message):
    path = saved(tmp_path, "a.gif")
    if content:
        path.write_bytes(content)
    outcomes = {o.rule: o for o in check_rules(path, HardRules.model_validate(EVERYTHING))}
    expected = {"file_type": content is not None, **dict.fromkeys(PIXEL_RULES), "max_bytes": True}
    assert {rule: o.met for rule, o in outcomes.items()} == expected
    assert all(message in outcomes[rule].sentence for rule in PIXEL_RULES)


@pytest.mark.parametrize(("format", "holds"), [("PNG", None), ("WEBP", None), ("JPEG", True)])
def test_a_damaged_exif_block_is_read_as_by_the_loader(tmp_path, format, holds):
    """Damage in a PNG and a WebP; in a JPEG, Pillow has met it before and passes over it."""
    path = saved(tmp_path, "delivered", format=format, exif=b"Exif\0\0no tiff at all")
    (outcome,) = check_rules(path, HardRules.model_validate({"visual_specs": {"width_px": 60}}))
    assert outcome.met is holds
    with nullcontext() if holds else pytest.raises(ImageError, match="damaged"):
        assert load_image(path).size == (60, 40)
    assert holds or "damaged" in outcome.sentence


@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_invalid_headers_are_not_fatal(tmp_path):
    """Bytes of real headers struck at random, CRCs of PNG's chunks left wrong or not: a finding, never an exception."""
    draw = random.Random(0)
    tags = exif(ORIENTATION=6, X_RESOLUTION=300.0, Y_RESOLUTION=300.0, UNIT=2)
    results = set()
    for format in ("PNG", "JPEG", "WEBP"):
        content = saved(tmp_path, "whole", format=format, exif=tags).read_bytes()
        for _ in range(150):
            struck = bytearray(content)
            for _ in range(draw.randint(1, 8)):
                struck[draw.randrange(min(len(struck), 250))] = draw.randrange(256)
            path = tmp_path / "struck"
            path.write_bytes(bytes(struck))
            results |= set(met(path, **EVERYTHING).values())
    assert results == {True, False, None}


def test_a_missing_file_leaves_every_rule_open(tmp_path):
    for path in (tmp_path / "nowhere.png", tmp_path):
        outcomes = check_rules(path, HardRules.model_validate(EVERYTHING))
        assert [o.rule for o in outcomes] == ["file_type", *PIXEL_RULES, "max_bytes"]
        assert all(o.met is None and "cannot be read" in o.sentence for o in outcomes)


def test_pixels_are_never_decoded(tmp_path, monkeypatch):
    paths = [saved(tmp_path, name, dpi=(300, 300)) for name in ("a.png", "a.jpg", "a.webp")]
    paths.append(saved(tmp_path, "cut.png", size=(600, 400)))
    paths[-1].write_bytes(paths[-1].read_bytes()[:400])  # it has the sides of its header
    for owner in ("Image.Image", "ImageFile.ImageFile", "PngImagePlugin.PngImageFile", "WebPImagePlugin.WebPImageFile"):
        monkeypatch.setattr(f"PIL.{owner}.load", lambda *_: pytest.fail("the pixels were decoded"))
    for path in paths:
        width, height = (600, 400) if path.stem == "cut" else (60, 40)
        assert specs(path, width_px=width, height_px=height) == {"width_px": True, "height_px": True}


@pytest.mark.parametrize(
    ("rules", "value", "unscored"),
    [
        ({"file_type": ["PNG"], "visual_specs": {"width_px": 60, "height_px": 41}}, 2 / 3, None),
        (
            {"visual_specs": {"width_px": 1, "min_dpi": 9}},
            None,
            "min_dpi: the file states no resolution; at least 9 dpi were asked for",
        ),
    ],
)
def test_the_score_is_the_share_of_rules_met_and_open_where_one_is(tmp_path, rules, value, unscored):
    path = saved(tmp_path)
    score = rules_score(check_rules(path, HardRules.model_validate(rules)))
    assert (score.name, score.value, score.unscored) == ("rules", value, unscored)
    for nothing in ({}, {"file_type": []}, {"visual_specs": {}, "file_size": {}}):
        outcomes = check_rules(path, HardRules.model_validate(nothing))
        assert outcomes == []
        assert rules_score(outcomes).applies is False


@pytest.mark.parametrize(
    "rules",
    [
        {"file_type": ["INDD"]},
        {"file_type": "PNG"},
        {"visual_specs": {"width_px": 0}},
        {"visual_specs": {"width_px": 1.5}},
        {"visual_specs": {"aspect_ratio": "16:0"}},
        {"visual_specs": {"aspect_ratio": "0.0:1"}},
        {"visual_specs": {"aspect_ratio": "1:1.4:2"}},
        {"visual_specs": {"aspect_ratio": "wide"}},
        {"visual_specs": {"min_dpi": float("nan")}},
        {"visual_specs": {"dpi": 300}},
        {"max_bytes": 5},
    ],
)
def test_invalid_rules_are_refused(rules):
    with pytest.raises(ValidationError):
        HardRules.model_validate(rules)


def test_the_enrichment_rubric_uses_these_rule_names():
    written, _ = read_yaml(Path(rules.__file__).parent / "vlm" / "rubrics" / "deliverables.yaml")
    schema = written["writes"]["properties"]["deliverables"]["items"]["properties"]["rules"]["properties"]
    assert set(schema) == set(HardRules.model_fields)
    for name, model in (("visual_specs", hardrules.VisualSpecs), ("file_size", hardrules.FileSize)):
        assert set(schema[name]["properties"]) == set(model.model_fields)
    assert set(schema["file_type"]["items"]["enum"]) == set(get_args(hardrules.FileType))
