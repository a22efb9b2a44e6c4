"""FLUX.1 Kontext: instruction-based editing, or text-to-image, through diffusers' `FluxKontextPipeline`.

The pipeline accepts latents instead of an image. Each distinct source is therefore encoded once by the VAE, at the
result's size, and a batch is never resized to the aspect ratio of its first image.
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import FluxKontextPipeline

from local_bench.generators.base import EncodedPrompt, InputImage, Item
from local_bench.generators.flux import Flux
from local_bench.generators.sampler import Sampler
from local_bench.generators.staged import resized


class FluxKontext(Flux):
    pipeline = FluxKontextPipeline

    def encode_image(self, input_image: InputImage, sampler: Sampler) -> EncodedPrompt:
        config = self.pipe.vae.config
        latents = self.to_latents(resized(self.pipe, input_image, sampler))
        latents = (latents - config.shift_factor) * config.scaling_factor
        return EncodedPrompt({"image": latents.cpu()})  # (1, 16, height / 8, width / 8)

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        sampler = items[0].request.sampler
        arguments = super().call(items, generators)
        # the planned size is a multiple of 16: the pipeline's default area must not change it
        arguments |= {"max_area": sampler.height * sampler.width, "_auto_resize": False}
        if items[0].input_images:
            image = torch.cat([item.input_images[0].tensors["image"] for item in items])
            arguments["image"] = image.to(self.machine.device, self.machine.dtype)
        return arguments
