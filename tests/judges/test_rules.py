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
from local_bench.judges.rules import RuleOutcome, check_rules, rules_score

ORIENTATION, X_RESOLUTION, Y_RESOLUTION, UNIT = 0x0112, 0x011A, 0x011B, 0x0128


def make_image(width=60, height=40, mode="RGB") -> Image.Image:
    return Image.radial_gradient("L").resize((width, height)).convert(mode)


def saved(tmp_path, name="picture.png", size=(60, 40), **options):
    path = tmp_path / name
    make_image(*size).save(path, **options)
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


@pytest.mark.parametrize(
    ("name", "format", "kind"),
    [
        ("a.png", "PNG", "PNG"),
        ("a.jpg", "JPEG", "JPG"),
        ("a.webp", "WEBP", "WEBP"),
        ("a.gif", "GIF", "GIF"),
        ("a.tif", "TIFF", "TIFF"),
        ("a.pdf", "PDF", "PDF"),
        ("a.eps", "EPS", "EPS"),
        ("a.png", "JPEG", "JPG"),
        ("a.psd", "PNG", "PNG"),
    ],
)
def test_the_type_follows_the_content_and_not_the_name(tmp_path, name, format, kind):
    path = saved(tmp_path, name, format=format)
    for required in ("PNG", "JPG", "WEBP", "GIF", "TIFF", "PDF", "EPS", "PSD", "SVG"):
        assert met(path, file_type=[required]) == {"file_type": required == kind}
    assert met(path, file_type=["PSD", kind]) == {"file_type": True}


@pytest.mark.parametrize(
    ("content", "kind"),
    [
        (b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"/>', "SVG"),
        (b"\xef\xbb\xbf <svg/>", "SVG"),
        (b"8BPS\0\1", "PSD"),
    ],
)
def test_kinds_that_pillow_does_not_write(tmp_path, content, kind):
    path = tmp_path / "delivered"
    path.write_bytes(content)
    assert met(path, file_type=[kind]) == {"file_type": True}
    assert met(path, file_type=["PNG"]) == {"file_type": False}


@pytest.mark.parametrize("content", [b"", b"a letter", b"<html><svg/></html>", b"RIFF\0\0\0\0WAVE"])
def test_a_file_of_no_kind_does_not_meet_the_rule(tmp_path, content):
    path = tmp_path / "delivered.png"
    path.write_bytes(content)
    (outcome,) = check_rules(path, HardRules(file_type=["PNG", "SVG"]))
    assert outcome == RuleOutcome("file_type", False, "the file is of no kind that we know; PNG or SVG was asked for")


def test_an_ai_file_is_read_as_pdf(tmp_path):
    assert met(saved(tmp_path, "a.ai", format="PDF"), file_type=["AI"]) == {"file_type": None}
    assert met(saved(tmp_path, "a.ai", format="PDF"), file_type=["AI", "PDF"]) == {"file_type": True}
    assert met(saved(tmp_path, "a.ai", format="PNG"), file_type=["AI"]) == {"file_type": False}


def test_sides_are_exact(tmp_path):
    path = saved(tmp_path, size=(60, 40))
    assert specs(path, width_px=60, height_px=40) == {"width_px": True, "height_px": True}
    assert specs(path, width_px=61, height_px=39) == {"width_px": False, "height_px": False}
    assert specs(path, min_width_px=60, min_height_px=40) == {"min_width_px": True, "min_height_px": True}
    assert specs(path, min_width_px=61, min_height_px=41) == {"min_width_px": False, "min_height_px": False}


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
        ("a.jpg", {"dpi": (300, 300)}, 300),
        ("a.jpg", {"dpi": (72, 72)}, 72),
        ("a.jpg", {"exif": exif(X_RESOLUTION=240.0, Y_RESOLUTION=240.0, UNIT=2)}, 240),
        ("a.jpg", {"exif": exif(X_RESOLUTION=100.0, Y_RESOLUTION=100.0, UNIT=3)}, 254),
        ("a.webp", {"exif": exif(X_RESOLUTION=300.0, UNIT=2)}, 300),
        ("a.png", {"exif": exif(X_RESOLUTION=300.0, Y_RESOLUTION=300.0)}, 300),
    ],
)
def test_the_resolution_is_what_the_header_states(tmp_path, name, options, dpi):
    path = saved(tmp_path, name, **options)
    assert specs(path, min_dpi=dpi) == {"min_dpi": True}
    assert specs(path, min_dpi=dpi + 1) == {"min_dpi": False}


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("a.png", {}),
        ("a.jpg", {}),
        ("a.webp", {}),
        ("a.jpg", {"exif": exif(ORIENTATION=1)}),  # Pillow returns 72 here
        ("a.jpg", {"exif": exif(X_RESOLUTION=300.0, Y_RESOLUTION=300.0, UNIT=1)}),
        ("a.jpg", {"exif": exif(X_RESOLUTION=0.0, Y_RESOLUTION=0.0, UNIT=2)}),
    ],
)
def test_a_file_that_states_no_resolution_leaves_it_open(tmp_path, name, options):
    path = saved(tmp_path, name, **options)
    (outcome,) = check_rules(path, HardRules.model_validate({"visual_specs": {"min_dpi": 72}}))
    assert outcome.met is None
    assert "states no resolution" in outcome.sentence


def test_dots_per_centimetre_in_a_jpeg_are_read(tmp_path):
    path = saved(tmp_path, "a.jpg", dpi=(118, 118))
    content = bytearray(path.read_bytes())
    assert content[6:11] == b"JFIF\0"
    content[13] = 2  # the unit: dots a centimetre
    path.write_bytes(bytes(content))
    assert specs(path, min_dpi=299) == {"min_dpi": True}
    assert specs(path, min_dpi=301) == {"min_dpi": False}


@pytest.mark.parametrize(
    ("size", "holds"),
    [((1182, 591), True), ((1181, 590), True), ((1180, 590), False), ((1181, 589), False), ((1250, 591), False)],
)
def test_sides_in_mm_are_checked_in_pixels(tmp_path, size, holds):
    """100 x 50 mm at 300 dpi are 1181.1 x 590.6 pixels; a pixel is spared for rounding."""
    found = specs(saved(tmp_path, size=size, dpi=(300, 300)), width_mm=100, height_mm=50, min_dpi=300)
    assert found == {"size_mm": holds, "min_dpi": True}


def test_sides_in_mm_without_a_resolution_check_the_aspect_ratio(tmp_path):
    path = saved(tmp_path, size=(210, 297))
    assert specs(path, width_mm=210, height_mm=297) == {"size_mm": True}
    assert specs(path, width_mm=148.5, height_mm=210) == {"size_mm": True}
    assert specs(path, width_mm=297, height_mm=210) == {"size_mm": False}
    assert specs(path, width_mm=210) == {"size_mm": None}
    assert specs(path, height_mm=20, min_dpi=300)["size_mm"] is True
    assert specs(path, height_mm=40, min_dpi=300)["size_mm"] is False


def test_the_file_s_length_is_exact(tmp_path):
    path = saved(tmp_path)
    size = path.stat().st_size
    assert met(path, file_size={"max_bytes": size}) == {"max_bytes": True}
    assert met(path, file_size={"max_bytes": size - 1}) == {"max_bytes": False}


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
    ],
)
def test_an_unsafe_png_has_its_type_and_open_pixel_rules(tmp_path, content, message):
    path = tmp_path / "bad.png"
    path.write_bytes(content)
    outcomes = {o.rule: o for o in check_rules(path, HardRules.model_validate(EVERYTHING))}
    assert {rule: o.met for rule, o in outcomes.items()} == {
        "file_type": True,
        **dict.fromkeys(PIXEL_RULES),
        "max_bytes": True,
    }
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
    found = set()
    for format in ("PNG", "JPEG", "WEBP"):
        content = saved(tmp_path, "whole", format=format, exif=tags).read_bytes()
        for _ in range(150):
            struck = bytearray(content)
            for _ in range(draw.randint(1, 8)):
                struck[draw.randrange(min(len(struck), 250))] = draw.randrange(256)
            path = tmp_path / "struck"
            path.write_bytes(bytes(struck))
            found |= set(met(path, **EVERYTHING).values())
    assert found == {True, False, None}


def test_a_gif_s_pixels_are_not_read(tmp_path):
    found = met(saved(tmp_path, "a.gif"), **EVERYTHING)
    assert found == {"file_type": False, **dict.fromkeys(PIXEL_RULES), "max_bytes": True}


def test_a_truncated_image_has_the_sides_of_its_header(tmp_path):
    path = saved(tmp_path, size=(600, 400))
    path.write_bytes(path.read_bytes()[:400])
    assert specs(path, width_px=600, height_px=400) == {"width_px": True, "height_px": True}


def test_a_missing_file_leaves_every_rule_open(tmp_path):
    for path in (tmp_path / "nowhere.png", tmp_path):
        outcomes = check_rules(path, HardRules.model_validate(EVERYTHING))
        assert [o.rule for o in outcomes] == ["file_type", *PIXEL_RULES, "max_bytes"]
        assert all(o.met is None and "cannot be read" in o.sentence for o in outcomes)


def test_pixels_are_never_decoded(tmp_path, monkeypatch):
    paths = [saved(tmp_path, name, dpi=(300, 300)) for name in ("a.png", "a.jpg", "a.webp")]

    def refuse(*_):
        raise AssertionError("the pixels were decoded")

    monkeypatch.setattr(Image.Image, "load", refuse)
    for module in ("ImageFile.ImageFile", "PngImagePlugin.PngImageFile", "WebPImagePlugin.WebPImageFile"):
        monkeypatch.setattr(f"PIL.{module}.load", refuse)
    for path in paths:
        assert specs(path, width_px=60, height_px=40) == {"width_px": True, "height_px": True}


def test_the_score_is_the_share_of_rules_met(tmp_path):
    path = saved(tmp_path)
    rules = HardRules.model_validate({"file_type": ["PNG"], "visual_specs": {"width_px": 60, "height_px": 41}})
    score = rules_score(check_rules(path, rules))
    assert (score.name, score.value, score.unscored) == ("rules", 2 / 3, None)


def test_the_score_is_open_where_one_rule_is_and_does_not_apply_without_rules(tmp_path):
    path = saved(tmp_path)
    open_one = rules_score(check_rules(path, HardRules.model_validate({"visual_specs": {"width_px": 1, "min_dpi": 9}})))
    assert open_one.value is None
    assert open_one.unscored == "min_dpi: the file states no resolution; at least 9 dpi were asked for"
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
