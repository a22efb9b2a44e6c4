"""From examples to the model's input tensors: prompt, images, collages of auxiliary images, tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image

from local_bench.core.errors import UserError
from local_bench.core.images import fit_pixels
from local_bench.core.money import usd
from local_bench.judges.payment.config import PaymentConfig
from local_bench.judges.payment.examples import Example, Load
from local_bench.models.cards import ModelCard

CAPTIONS = {
    "candidate": "The delivered image:",
    "source": "The client's image to edit:",
    "siblings": "The other images delivered for the order:",
    "references": "The client's reference images:",
}
PER_COLLAGE = 9
MAX_COLLAGES = 2
"""Per kind of auxiliary images; further images are left out."""
_CACHE_BYTES = 1_000_000_000


class TooLong(UserError):
    """The prompt does not fit even without the brief."""


@dataclass(frozen=True)
class Encoded:
    """The tensors of one example."""

    input_ids: torch.Tensor
    """(tokens,)"""
    pixel_values: torch.Tensor
    """(patches of all images, values of a patch)"""
    grid_thw: torch.Tensor
    """(images, 3)"""


@dataclass(frozen=True)
class Batch:
    """Encoded examples, padded on the right."""

    input_ids: torch.Tensor
    """(examples, tokens)"""
    mask: torch.Tensor
    """(examples, tokens) 1 for tokens, 0 for padding."""
    image_tokens: torch.Tensor
    """(examples, tokens) 1 for the tokens of images."""
    pixel_values: torch.Tensor
    grid_thw: torch.Tensor


@dataclass
class Encoder:
    """Encodes examples with the processor of a judge. Small inputs are kept in memory."""

    processor: Any
    config: PaymentConfig
    card: ModelCard
    load: Load
    _kept: dict[tuple[str, str], Encoded] = field(default_factory=dict, init=False)
    _kept_bytes: int = field(default=0, init=False)

    def batch(self, examples: Sequence[Example], device: torch.device) -> Batch:
        """Raises TooLong and ImageError."""
        return collate([self.encode(example) for example in examples], self._mark, self._pad, device)

    def encode(self, example: Example) -> Encoded:
        key = example.work_id, example.image
        if key in self._kept:
            return self._kept[key]
        images, captions = self._images(example)
        pixels, grid = self._pixels(images)
        merge = self.processor.image_processor.merge_size**2
        encoded = Encoded(self._tokens(example, captions, (grid.prod(dim=1) // merge).tolist()), pixels, grid)
        size = pixels.element_size() * pixels.numel()
        if self._kept_bytes + size <= _CACHE_BYTES:
            self._kept[key] = encoded
            self._kept_bytes += size
        return encoded

    @property
    def _mark(self) -> int:
        return int(self.processor.tokenizer.convert_tokens_to_ids("<|image_pad|>"))

    @property
    def _pad(self) -> int:
        return int(self.processor.tokenizer.pad_token_id)

    def _images(self, example: Example) -> tuple[list[Image.Image], list[str]]:
        kinds: list[tuple[str, list[Image.Image], int]] = [
            ("candidate", [self.load(example.image)], self.config.image_pixels),
            ("source", [self.load(example.source)] if example.source else [], self.config.image_pixels),
            ("siblings", collages([self.load(sha) for sha in example.siblings]), self.config.collage_pixels),
            ("references", collages([self.load(sha) for sha in example.references]), self.config.collage_pixels),
        ]
        images, captions = [], []
        for kind, found, limit in kinds:
            most = min(limit, self.card.judge_max_pixels)
            least = min(self.card.judge_min_pixels, most)
            images += [fit_pixels(image, most, self.card.patch, least) for image in found]
            captions += [CAPTIONS[kind]] * len(found)
        return images, captions

    def _pixels(self, images: list[Image.Image]) -> tuple[torch.Tensor, torch.Tensor]:
        """Patches and grid; the images already have their final sizes."""
        processor = self.processor.image_processor
        largest = max(image.width * image.height for image in images)
        size = {"shortest_edge": (processor.patch_size * processor.merge_size) ** 2, "longest_edge": largest}
        try:
            made = processor(images=images, size=size, return_tensors="pt")
        except ValueError as e:  # an aspect ratio of more than 200:1
            raise UserError(f"an image cannot be processed ({e}): leave it out") from e
        return made["pixel_values"], made["image_grid_thw"]

    def _tokens(self, example: Example, captions: list[str], sizes: list[int]) -> torch.Tensor:
        brief, tokenizer = example.brief, self.processor.tokenizer
        while True:
            ids = torch.tensor(tokenizer(self._text(example, brief, captions), add_special_tokens=False)["input_ids"])
            repeats = torch.ones_like(ids)
            repeats[ids == self._mark] = torch.tensor(sizes)
            over = int(repeats.sum()) - self.config.max_tokens
            if over <= 0:
                return ids.repeat_interleave(repeats)
            of_brief = tokenizer(brief, add_special_tokens=False)["input_ids"]
            if not of_brief:
                raise TooLong(
                    f"the task {example.task_id} takes {over + self.config.max_tokens} tokens without its brief, more "
                    f"than {self.config.max_tokens}: raise max_tokens, or lower image_pixels"
                )
            brief = tokenizer.decode(of_brief[: max(0, len(of_brief) - over - 1)])

    def _text(self, example: Example, brief: str, captions: list[str]) -> str:
        prompt = self.config.prompt
        text = prompt.text.format(
            title=_client(example.title),
            brief=_client(brief),
            deliverable=_client(example.deliverable),
            points="\n".join(f"- {_client(point)}" for point in example.points),
            price=usd(example.price_micro_usd),
        )
        pieces: list[dict[str, str]] = []
        for i, caption in enumerate(captions):
            if i == 0 or caption != captions[i - 1]:
                pieces.append({"type": "text", "text": caption})
            pieces.append({"type": "image"})
        messages = [
            {"role": "system", "content": [{"type": "text", "text": prompt.system}]},
            {"role": "user", "content": [*pieces, {"type": "text", "text": text}]},
        ]
        rendered: str = self.processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        return rendered


def collages(images: Sequence[Image.Image]) -> list[Image.Image]:
    """At most MAX_COLLAGES grids of at most PER_COLLAGE images each; a single image is returned as it is."""
    images = images[: PER_COLLAGE * MAX_COLLAGES]
    count = math.ceil(len(images) / PER_COLLAGE)
    size = math.ceil(len(images) / count) if count else 0
    return [grid(images[i * size : (i + 1) * size]) for i in range(count)]


def grid(images: Sequence[Image.Image]) -> Image.Image:
    """The images on white in a grid of square cells, as large as the first image's longer side."""
    if len(images) == 1:
        return images[0]
    side = max(images[0].size)
    columns = math.ceil(math.sqrt(len(images)))
    rows = math.ceil(len(images) / columns)
    canvas = Image.new("RGB", (columns * side, rows * side), "white")
    for i, image in enumerate(images):
        scale = side / max(image.size)
        size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
        cell = image if size == image.size else image.resize(size, Image.Resampling.BICUBIC)
        left, top = i % columns * side + (side - size[0]) // 2, i // columns * side + (side - size[1]) // 2
        canvas.paste(cell, (left, top))
    return canvas


def collate(encoded: Sequence[Encoded], mark: int, pad: int, device: torch.device) -> Batch:
    """`mark`: the id of image tokens; `pad`: of padding."""
    longest = max(len(one.input_ids) for one in encoded)
    ids = torch.full((len(encoded), longest), pad)
    mask = torch.zeros_like(ids)
    for row, one in enumerate(encoded):
        ids[row, : len(one.input_ids)] = one.input_ids
        mask[row, : len(one.input_ids)] = 1
    return Batch(
        ids.to(device),
        mask.to(device),
        ((ids == mark) & (mask == 1)).int().to(device),
        torch.cat([one.pixel_values for one in encoded]).to(device),
        torch.cat([one.grid_thw for one in encoded]).to(device),
    )


def _client(text: str) -> str:
    """The client's text without control tokens such as `<|image_pad|>`."""
    return text.replace("<|", "< |")
