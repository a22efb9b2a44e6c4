"""OmniGen: one transformer for text, input images and generation, through diffusers' `OmniGenPipeline`.

It has no separate text encoder, so nothing is encoded beforehand. It pads and masks the prompts of a batch, so it runs
with batch size 1. The placeholder tags of input images are prepended to the prompt, which is otherwise unchanged.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from diffusers import OmniGenPipeline

from local_bench.generators.base import EncodedPrompt, GenerationRequest, Item
from local_bench.generators.staged import Staged

_CANONICAL_PROMPT = "A poster for a small theatre, with the title in large letters above a drawing of the stage."


class OmniGen(Staged):
    pipeline = OmniGenPipeline
    encoders = ()
    masks = True

    def load_encoder(self) -> None:
        """Do nothing: there is no encoder."""

    def encode_text(self, request: GenerationRequest) -> EncodedPrompt:
        return EncodedPrompt({})

    def canonical(self, item: Item) -> Item:
        item = super().canonical(item)
        return replace(item, request=replace(item.request, prompt=_CANONICAL_PROMPT))

    def denoise(self, items: Sequence[Item]) -> torch.Tensor:
        # the VAE samples an input image's latents with torch's global generator: use the image's own seed
        with torch.random.fork_rng():
            torch.manual_seed(items[0].seed)
            return super().denoise(items)

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        (item,) = items
        request = item.request
        images = [input_image.pixels for input_image in request.input_images]
        tags = "".join(f"<img><|image_{i}|></img>" for i in range(1, len(images) + 1))
        arguments = super().call(items, generators) | {"prompt": [tags + request.prompt]}
        if images:
            arguments["input_images"] = [images]
            arguments["img_guidance_scale"] = request.sampler.image_guidance_scale
        return arguments
