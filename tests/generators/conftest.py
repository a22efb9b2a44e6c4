"""Every family on a small model of its real architecture, loaded once, with a few encoded requests."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from PIL import Image

from local_bench.core.environment import quiet_libraries
from local_bench.core.images import pixel_digest
from local_bench.generators.base import GenerationRequest, InputImage, Item, Machine
from local_bench.generators.numerics import set_determinism
from local_bench.generators.registry import Sampler
from local_bench.generators.staged import Staged, family
from local_bench.models.cards import ModelCard, card, cards
from local_bench.models.weights import resolve
from tests.small_references import small_references

SIDE = 64
STEPS = 3
PROMPTS = ["a red boot", "a blue box", "six birds!", "a doorknob"]
"""All ten bytes long: Qwen's batches hold prompts of one length."""
CARDS = {card.family: card.name for card in cards().values() if card.source.random}


@dataclass(frozen=True)
class Ready:
    """A family with its encoders dropped and its transformer loaded, and what it encoded before."""

    card: ModelCard
    weights: Path
    generator: Staged
    items: list[Item]

    @property
    def sampler(self) -> Sampler:
        return self.items[0].request.sampler

    def draw(self, items: list[Item]) -> list[bytes]:
        """RGB bytes of one batch."""
        return [image.tobytes() for image in self.generator.decode(self.generator.denoise(items), self.sampler)]


def small(name: str) -> tuple[ModelCard, Sampler]:
    """A family's small card, and its settings at 64 x 64 in three steps."""
    described = card(CARDS[name], "generator")
    settings = described.sampler.model_dump() | {"height": SIDE, "width": SIDE, "num_inference_steps": STEPS}
    return described, Sampler(**settings)


def make_image(kind: int, width: int = SIDE, height: int = SIDE) -> InputImage:
    """One of several simple images."""
    across, down = Image.linear_gradient("L").rotate(90 * kind), Image.radial_gradient("L")
    pixels = Image.merge("RGB", (across, down, Image.linear_gradient("L"))).resize((width, height))
    return InputImage(pixel_digest(pixels), pixels)


def request_for(described: ModelCard, sampler: Sampler, i: int) -> GenerationRequest:
    """The i-th prompt, with as many images as the model takes (at most two)."""
    input_images = tuple(make_image(i + k) for k in range(min(2, described.takes.pictures)))
    return GenerationRequest(PROMPTS[i], sampler, input_images, mask(i) if described.takes.mask else None)


def mask(kind: int, width: int = SIDE, height: int = SIDE) -> InputImage:
    """White in one of four quarters, with a soft edge, as a run stores it: RGB."""
    small = Image.new("L", (2, 2))
    small.putpixel((kind % 2, kind // 2 % 2), 255)
    pixels = small.resize((width, height), Image.Resampling.BILINEAR).convert("RGB")
    return InputImage(pixel_digest(pixels), pixels)


def encode(generator: Staged, requests: list[GenerationRequest], seed: int = 100) -> list[Item]:
    generator.load_encoder()
    items = []
    for i, request in enumerate(requests):
        seen = request.input_images if generator.traits.encodes_images else ()
        encoded = tuple(generator.encode_image(p, request.sampler) for p in seen)
        items.append(Item(request, generator.encode_text(request), encoded, seed + i))
    generator.drop_encoder()
    return items


@pytest.fixture(scope="session")
def machine() -> Machine:
    set_determinism(1)
    quiet_libraries()
    return Machine(torch.device("cpu"), torch.float32, "native")


@pytest.fixture(scope="package", autouse=True)
def references() -> Iterator[None]:
    """Small reference images for Qwen's editors."""
    with pytest.MonkeyPatch.context() as patch:
        small_references(patch.setattr)
        yield


@pytest.fixture(scope="session")
def ready(cache: Path, machine: Machine) -> Callable[[str], Ready]:
    """A family by its name, ready to draw."""
    made: dict[str, Ready] = {}

    def get(name: str) -> Ready:
        if name not in made:
            described, sampler = small(name)
            weights = resolve(described)
            generator = family(name)(described, weights, machine)
            items = encode(generator, [request_for(described, sampler, i) for i in range(len(PROMPTS))])
            generator.load_denoiser()
            made[name] = Ready(described, weights, generator, items)
        return made[name]

    return get
