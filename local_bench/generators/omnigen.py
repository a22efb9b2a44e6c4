"""OmniGen: one transformer that reads words and pictures and draws, through diffusers' `OmniGenPipeline`.

It has no text encoder apart, so nothing is encoded before. It pads the words of a batch and masks them, so it
makes one image a call. The tags that stand for pictures in its input are put before the prompt; the words stay.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
from diffusers import OmniGenPipeline

from local_bench.generators.base import EncodedPrompt, GenerationRequest, Item
from local_bench.generators.device import Axes
from local_bench.generators.staged import Staged

_CANONICAL_PROMPT = "A poster for a small theatre, with the title in large letters above a drawing of the stage."


def _as_long_as_the_sequence(
    hidden_states: torch.Tensor,  # (B, tokens, width), words and pictures
    attention_mask: torch.Tensor,  # (B, 1, tokens, tokens)
    image_rotary_emb: tuple[torch.Tensor, torch.Tensor],  # (tokens, head) each
) -> Iterator[tuple[torch.Tensor, int]]:
    """Of the inputs of an `OmniGenBlock`."""
    yield hidden_states, 1
    yield attention_mask, attention_mask.dim() - 2
    yield attention_mask, attention_mask.dim() - 1
    for table in image_rotary_emb:
        yield table, table.dim() - 2


class OmniGen(Staged):
    pipeline = OmniGenPipeline
    encoders = ()
    masks = True
    varying: ClassVar[Axes | None] = staticmethod(_as_long_as_the_sequence)

    def load_encoder(self) -> None:
        """Nothing to load: the tokenizer serves the transformer itself."""

    def encode_text(self, brief: GenerationRequest) -> EncodedPrompt:
        return EncodedPrompt({})

    def canonical(self, item: Item) -> Item:
        return replace(item, brief=replace(item.brief, prompt=_CANONICAL_PROMPT))

    def denoise(self, items: Sequence[Item]) -> torch.Tensor:
        # the VAE samples what it sees of a picture from torch's global generator: set it to the image's own seed
        with torch.random.fork_rng():
            torch.manual_seed(items[0].seed)
            return super().denoise(items)

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        (item,) = items
        brief = item.brief
        pictures = [picture.pixels for picture in brief.pictures]
        tags = "".join(f"<img><|image_{i}|></img>" for i in range(1, len(pictures) + 1))
        asked = super().call(items, generators) | {"prompt": [tags + brief.prompt]}
        if pictures:
            asked["input_images"] = [pictures]
            asked["img_guidance_scale"] = brief.sampler.image_guidance_scale
        return asked
