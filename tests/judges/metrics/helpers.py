"""Images, and metrics taken of them as a run takes them."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter

from local_bench.core.types import Score, ScoresComputed
from local_bench.judges.metrics.base import Array, FeatureInput, ImageFile, Metric, Network, Subject, Unscorable
from local_bench.judges.metrics.evaluator import Evaluator, Event, FeatureExtractor, Wanted
from local_bench.judges.metrics.registry import Weights, make_metric, metric_card, metric_names
from local_bench.models.cards import card, cards
from local_bench.models.weights import resolve, resolve_parts

_FRESH = itertools.count()
"""So that no call finds what an earlier one has read."""
metric_of = functools.cache(make_metric)


@functools.cache
def weights_of(name: str) -> Weights:
    described = card(name, "metric")
    return Weights(described, resolve(described), resolve_parts(described))


def saved(image: Image.Image, path: Path) -> ImageFile:
    image.save(path)
    return ImageFile(path)


def noise(seed: int, size: tuple[int, int] = (96, 80)) -> Image.Image:
    """Smooth coloured noise, (width, height)."""
    width, height = size
    pixels = np.random.default_rng(seed).integers(0, 256, (height // 8, width // 8, 3), dtype=np.uint8)
    return Image.fromarray(pixels).resize(size, Image.Resampling.BICUBIC)


def without_halves(pixels: np.ndarray) -> np.ndarray:
    """(H, W, 3) uint8 of the same image, moved by a step of blue wherever luma would be exactly .5."""
    pixels = pixels.astype(np.uint8)
    half = (pixels.astype(int) @ np.array([299, 587, 114])) % 1000 == 500
    pixels[half, 2] ^= 1
    return pixels


def make_image(folder: Path, seed: int, size: tuple[int, int] = (96, 80)) -> ImageFile:
    """A saved image of noise; another seed is another image."""
    return saved(noise(seed, size), folder / f"{seed}-{size[0]}x{size[1]}.png")


def drawing(size: tuple[int, int] = (160, 128)) -> Image.Image:
    """The fixed image of the golden values: a sky, a sun, a building."""
    width, height = size
    down, across = np.mgrid[0:height, 0:width]
    sky = np.stack([80 + down // 2, 120 + across // 4, 220 - down // 3], 2)
    image = Image.fromarray(sky.clip(0, 255).astype(np.uint8))
    draw = ImageDraw.Draw(image)
    draw.ellipse([width // 8, height // 8, width // 3, height // 3 + 10], fill=(250, 210, 40))
    draw.rectangle(
        [width // 2, height // 2, width - 20, height - 10], fill=(150, 60, 40), outline=(20, 20, 20), width=3
    )
    draw.polygon(
        [(width // 2 - 8, height // 2), (width * 3 // 4, height // 4), (width - 12, height // 2)], fill=(90, 20, 30)
    )
    return image


def drawn(path: Path, size: tuple[int, int] = (160, 128)) -> ImageFile:
    return saved(drawing(size), path)


def blurred(image: Image.Image, radius: float = 3) -> Image.Image:
    return image.filter(ImageFilter.GaussianBlur(radius))


def read(
    network: Network, inputs: Sequence[FeatureInput], batch_size: int | None = None, device: str = "cpu"
) -> list[Array]:
    """The arrays of feature inputs, as an evaluator reads them; Unscorable where one has none."""
    with (
        ThreadPoolExecutor(2) as pool,
        FeatureExtractor(network, pool, 2, device, {"test": next(_FRESH)}, batch_size) as reader,
    ):
        arrays_read = [arrays[key] for key, arrays in reader.read((each, (each,)) for each in inputs)]
    for item in arrays_read:
        if isinstance(item, Unscorable):
            raise item
    return arrays_read


def run_all(evaluator: Evaluator, wanted: Sequence[Wanted]) -> Iterator[Event]:
    """The events of all groups."""
    for group in evaluator.groups():
        yield from evaluator.run_group(group, wanted)


def score(metric: Metric, subjects: Sequence[Subject], batch_size: int | None = None) -> list[Score]:
    """One score a subject, in order."""
    name = metric.spec.name
    survey = Evaluator({name: metric}, "cpu", {"test": next(_FRESH)}, 2, batch_size)
    rows = [
        row
        for step in run_all(survey, [(s, (name,)) for s in subjects])
        if isinstance(step, ScoresComputed)
        for row in step.rows
    ]
    arrays_read = dict(rows)
    assert len(rows) == len(arrays_read) == len(subjects)
    return [arrays_read[subject.key] for subject in subjects]


def values(metric: Metric, subjects: Sequence[Subject], batch_size: int | None = None) -> list[float | None]:
    return [item.value for item in score(metric, subjects, batch_size)]


def alone(key: str, image: ImageFile, **belongs: object) -> Subject:
    return Subject(key, image, **belongs)  # type: ignore[arg-type]


def assert_the_same_bytes_in_any_batch(network: Network, inputs: Sequence[FeatureInput]) -> list[Array]:
    """The float32 arrays of the inputs alone, which no neighbour and no order changes."""
    single = read(network, inputs, 1)
    expected = [array.tobytes() for array in single]
    assert [array.tobytes() for array in read(network, inputs, len(inputs))] == expected
    assert [array.tobytes() for array in read(network, inputs[::-1], 3)[::-1]] == expected
    network.open("cpu")
    prepared = [network.prepare([image.load() for image in item.images], None) for item in inputs]
    assert [array.tobytes() for array in network.run(prepared[::-1])[::-1]] == expected
    network.close()
    assert {array.dtype.name for array in single} == {"float32"}
    assert len(set(expected)) > 1
    return single


def small_cards() -> dict[str, str]:
    """Metrics that are read off a network, with a small card of its family."""
    small = [c for c in cards().values() if c.role == "metric" and c.name.startswith("tiny-")]
    arrays_read = {}
    for name in metric_names():
        described = metric_card(name)
        if described is None:
            continue
        exact = f"tiny-{described.name.removeprefix('pyiqa:')}"
        names = [c.name for c in small if c.family == described.family and (c.family != "pyiqa" or c.name == exact)]
        assert names, f"{name}: the family {described.family} has no small card"
        arrays_read[name] = names[0]
    return arrays_read
