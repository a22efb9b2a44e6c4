"""From examples to the model's input tensors: prompt, images, collages of auxiliary images, tokens."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image
from torch.nn.utils.rnn import pad_sequence

from local_bench.core.errors import UserError
from local_bench.core.images import fit_pixels
from local_bench.core.money import usd
from local_bench.judges.payment.data import Example, Load, PaymentConfig

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


Batch = dict[str, torch.Tensor]
"""Encoded examples by the model's arguments: `input_ids`, `attention_mask` and `mm_token_type_ids` (examples, tokens),
padded on the right; `pixel_values` (patches of all images, values of a patch), `image_grid_thw` (images, 3)."""


class TooLong(UserError):
    """The prompt does not fit even without the brief."""


@dataclass
class Encoder:
    """Encodes examples with the processor of a judge. Small inputs are kept in memory."""

    processor: Any
    config: PaymentConfig
    load: Load
    _kept: dict[tuple[str, str], Batch] = field(default_factory=dict, init=False)
    _kept_bytes: int = field(default=0, init=False)

    def batch(self, examples: Sequence[Example], device: torch.device) -> Batch:
        """Raises TooLong and ImageError."""
        each = [self.encode(example) for example in examples]
        joined = {name: torch.cat([encoded[name] for encoded in each]) for name in ("pixel_values", "image_grid_thw")}
        padding = {"input_ids": self.processor.tokenizer.pad_token_id, "attention_mask": 0, "mm_token_type_ids": 0}
        for name, value in padding.items():
            rows = [encoded[name][0] for encoded in each]
            joined[name] = pad_sequence(rows, batch_first=True, padding_value=value)
        return {name: tensor.to(device) for name, tensor in joined.items()}

    def encode(self, example: Example) -> Batch:
        """One example, without padding."""
        key = example.work_id, example.image
        if key in self._kept:
            return self._kept[key]
        images, captions = self._images(example)
        of_images, tokenizer = self.processor.image_processor, self.processor.tokenizer
        largest = max(image.width * image.height for image in images)  # they already have their final sizes
        size = {"shortest_edge": (of_images.patch_size * of_images.merge_size) ** 2, "longest_edge": largest}
        brief, limit = example.brief, self.config.max_tokens
        while True:
            text = self._text(example, brief, captions)
            try:
                encoded = self.processor(images=images, text=text, images_kwargs={"size": size}, return_tensors="pt")
            except ValueError as e:  # an aspect ratio of more than 200:1
                raise UserError(f"an image cannot be processed ({e}): leave it out") from e
            n_tokens = encoded["input_ids"].shape[1]
            if n_tokens <= limit:
                break
            of_brief = tokenizer(brief, add_special_tokens=False)["input_ids"]
            if not of_brief:
                raise TooLong(
                    f"the task {example.task_id} takes {n_tokens} tokens without its brief, more than {limit}: raise "
                    "max_tokens, or lower image_pixels"
                )
            brief = tokenizer.decode(of_brief[: max(0, len(of_brief) - (n_tokens - limit) - 1)])
        batch, size = dict(encoded), encoded["pixel_values"].nbytes
        if self._kept_bytes + size <= _CACHE_BYTES:
            self._kept[key] = batch
            self._kept_bytes += size
        return batch

    def _images(self, example: Example) -> tuple[list[Image.Image], list[str]]:
        kinds: list[tuple[str, list[Image.Image], int]] = [
            ("candidate", [self.load(example.image)], self.config.image_pixels),
            ("source", [self.load(example.source)] if example.source else [], self.config.image_pixels),
            ("siblings", collages([self.load(sha) for sha in example.siblings]), self.config.collage_pixels),
            ("references", collages([self.load(sha) for sha in example.references]), self.config.collage_pixels),
        ]
        images, captions, judge = [], [], self.config.judge
        for kind, of_kind, limit in kinds:
            most = min(limit, judge.judge_max_pixels)
            least = min(judge.judge_min_pixels, most)
            images += [fit_pixels(image, most, judge.patch, least) for image in of_kind]
            captions += [CAPTIONS[kind]] * len(of_kind)
        return images, captions

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


def _client(text: str) -> str:
    """The client's text without control tokens such as `<|image_pad|>`."""
    return text.replace("<|", "< |")
