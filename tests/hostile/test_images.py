"""Images and weights: damaged, enormous, of other formats, at every reader of them."""

import io
import json
import struct
import zlib
from collections.abc import Iterable, Iterator
from itertools import product
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

from tests.hostile.harness import Case, faults_of, run, sampled
from tests.hostile.inputs import CARD, CONFIG, base, write
from tests.hostile.values import RAW


def encoded(kind: str, mode: str = "RGB", size: tuple[int, int] = (32, 24), **how: object) -> bytes:
    buffer = io.BytesIO()
    Image.new(mode, size, 3).save(buffer, kind, **how)
    return buffer.getvalue()


def chunk(name: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(*chunks: bytes, width: int = 8, height: int = 8, depth: int = 8, colour: int = 2) -> bytes:
    header = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + header + b"".join(chunks) + chunk(b"IEND", b"")


def images() -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of files that are images only in part."""
    for kind in ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "ICO"):
        data = encoded(kind)
        yield kind, data
        for at in (1, 8, 20, len(data) // 2, len(data) - 1):
            yield f"{kind} cut at {at}", data[:at]
            yield f"{kind} flipped at {at}", data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]
        yield f"{kind} and more", data + b"<script>" * 100
    idat = chunk(b"IDAT", zlib.compress(b"\0" * 10_000))
    for width, height in ((0, 0), (1, 0), (2**31 - 1, 1), (2**31 - 1, 2**31 - 1), (100_000, 100_000), (20_000, 20_000)):
        yield f"PNG of {width}x{height}", png(idat, width=width, height=height)
    for depth, colour in product((1, 3, 16, 255), (0, 2, 3, 99)):
        yield f"PNG depth {depth} colour {colour}", png(idat, depth=depth, colour=colour)
    chunks = {
        "a damaged profile": chunk(b"iCCP", b"a\0\0" + zlib.compress(b"x")),
        "damaged EXIF": chunk(b"eXIf", b"MM\0*" + b"\xff" * 40),
        "an odd palette": chunk(b"PLTE", b"abcd"),
        "empty transparency": chunk(b"tRNS", b""),
    }
    yield from (
        (f"PNG with {name}", png(extra, idat, colour=3 if "palette" in name else 2)) for name, extra in chunks.items()
    )
    yield "PNG without data", png()
    yield "PNG with a long chunk", png()[:33] + struct.pack(">I", 2**31 - 1) + b"IDAT"
    info = PngImagePlugin.PngInfo()
    info.add_text("a\x9b", "\x1b[31m" * 100)
    yield "PNG with escapes", encoded("PNG", pnginfo=info)
    for mode in ("1", "L", "LA", "P", "RGBA", "I;16"):
        yield f"PNG {mode}", encoded("PNG", mode)
    yield "JPEG CMYK", encoded("JPEG", "CMYK")
    exif = Image.Exif()
    for orientation in (0, 6, 255):
        exif[0x0112] = orientation
        yield f"JPEG turned {orientation}", encoded("JPEG", exif=exif.tobytes())
    frames = [Image.new("RGB", (32, 24), colour) for colour in ("red", "blue", "green")]
    for kind in ("WEBP", "PNG"):
        yield f"animated {kind}", encoded(kind, save_all=True, append_images=frames)
    yield "SVG", b'<svg xmlns="http://www.w3.org/2000/svg"><image href="file:///etc/passwd"/></svg>'
    yield "EPS", b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 100000 100000\n"
    yield from RAW.items()


def bombs() -> Iterator[tuple[str, bytes]]:
    bomb = zlib.compress(b"\0" * 30_000_000)
    idat = chunk(b"IDAT", zlib.compress(b"\0" * 10_000))
    yield "PNG with a text bomb", png(chunk(b"zTXt", b"a\0\0" + bomb), idat)
    yield "PNG with a profile bomb", png(chunk(b"iCCP", b"a\0\0" + bomb), idat)


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    base()
    return tmp_path


READERS = {
    "measure": ("pictures/a.png", ["measure", "pictures", "--metrics", "entropy,colorfulness", "--json"]),
    "import": ("manifest/mug.png", ["plan", "manifest.yaml", "--json"]),
    "ice source": ("ice/images/i2.png", ["suites", "show", "ice-bench", "--path", "ice/data.jsonl", "--json"]),
    "ice mask": ("ice/masks/i3.png", ["suites", "show", "ice-bench", "--path", "ice/data.jsonl", "--json"]),
    "hype source": ("hype/mug-1/001.png", ["suites", "show", "hype-edit-1", "--path", "hype/public.json", "--json"]),
}


@pytest.mark.parametrize("reader", READERS)
def test_images(reader, here):
    file, argv = READERS[reader]
    write("manifest/m.jsonl", {"task_id": "mug", "file": "mug.png"})
    assert run(argv, statuses=(0,)).faults == []
    Path(file).write_bytes(b"not an image")
    outcome = run(argv)
    assert Path(file).name in outcome.err + outcome.out  # the reader does read this file

    sample = sampled(cases(f"{reader}:", argv, Path(file), images()), 16)
    assert not faults_of([*sample, *cases(f"{reader}:", argv, Path(file), bombs())])


def cases(what: str, argv: list[str], file: Path, contents: Iterable[tuple[str, bytes]]) -> list[Case]:
    """The command with each content of the file."""
    return [Case(f"{what} {name}", argv, lambda data=data: file.write_bytes(data) and None) for name, data in contents]


def headers() -> Iterator[tuple[str, bytes]]:
    """(name, bytes) of safetensors files."""

    def with_header(text: bytes, data: bytes = b"\0" * 16) -> bytes:
        return struct.pack("<Q", len(text)) + text + data

    tensor = {"dtype": "F32", "shape": [2, 2], "data_offsets": [0, 16]}
    yield "whole", with_header(json.dumps({"a": tensor}).encode())
    for length in (0, 1, 2**31, 2**63, 2**64 - 1, 100_000_001):
        yield f"header of {length}", struct.pack("<Q", length) + b"{}"
    for name, raw in RAW.items():
        yield f"header {name}", with_header(raw)
        yield f"file {name}", raw
    for key, values in {
        "dtype": ["F33", 3, None, "f32", ""],
        "shape": [[-1, 2], [2**63, 2**63], "2", None, [1.5], [], [10**30]],
        "data_offsets": [[16, 0], [0, 2**63], [0], [-16, 0], [8, 24], None, [0, 15]],
    }.items():
        for value in values:
            yield f"{key} = {value!r}", with_header(json.dumps({"a": tensor | {key: value}}).encode())
    yield "overlap", with_header(json.dumps({"a": tensor, "b": tensor}).encode())
    hole = tensor | {"data_offsets": [20, 36]}
    yield "hole", with_header(json.dumps({"a": tensor, "b": hole}).encode(), b"\0" * 40)
    yield "metadata", with_header(json.dumps({"__metadata__": {"a": 3}, "a": tensor}).encode())
    empty = tensor | {"shape": [0], "data_offsets": [0, 0]}
    yield "many", with_header(json.dumps({f"t{i}": empty for i in range(5000)}).encode(), b"")


def test_weights(here):
    """A model's folder with damaged files: `show` and `plan` report one sentence."""
    write("local-bench/models/mine.yaml", CARD | {"architecture": {}})
    index = {"_class_name": "FluxPipeline", "transformer": ["diffusers", "FluxTransformer2DModel"]}
    write("local-bench/models/weights/model_index.json", index)
    weights = Path("local-bench/models/weights/transformer")
    write(str(weights / "config.json"), {"_class_name": "FluxTransformer2DModel"})
    write("c.yaml", CONFIG | {"models": [{"card": "mine"}]})

    file = weights / "diffusion_pytorch_model.safetensors"
    commands = (["models", "show", "mine", "--json"], ["generate", "c.yaml", "--run-dir", "x"])
    configs = ("transformer/config.json", "model_index.json", f"transformer/{file.name}.index.json")
    tables = [cases("weights", argv, file, headers()) for argv in commands]
    tables += [cases(config, commands[0], weights.parent / config, RAW.items()) for config in configs]
    for name, data in headers():
        if name in ("whole", "file empty"):
            file.write_bytes(data)
            for argv in commands:
                assert ("safetensors is damaged" in run(argv).err) == (name != "whole"), argv
    assert not faults_of(case for table in tables for case in sampled(table, 12))
