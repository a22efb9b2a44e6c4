"""FLUX.1 Kontext: edits a picture as told, or draws from words alone, through diffusers' `FluxKontextPipeline`.

The pipeline takes a picture's latents in its place, so each distinct source is read once by the VAE, at the size of the
result, and no batch is ever squashed to the aspect of its first picture.
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import FluxKontextPipeline

from local_bench.generators.base import EncodedPrompt, Item, Picture
from local_bench.generators.flux import Flux
from local_bench.generators.sampler import Sampler
from local_bench.generators.staged import resized


class FluxKontext(Flux):
    pipeline = FluxKontextPipeline

    def encode_picture(self, picture: Picture, sampler: Sampler) -> EncodedPrompt:
        config = self.pipe.vae.config
        latents = self.to_latents(resized(self.pipe, picture, sampler))
        latents = (latents - config.shift_factor) * config.scaling_factor
        return EncodedPrompt({"image": latents.cpu()})  # (1, 16, height / 8, width / 8)

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        sampler = items[0].brief.sampler
        asked = super().call(items, generators)
        # the size is the plan's, a multiple of 16: the pipeline's own area must not change it
        asked |= {"max_area": sampler.height * sampler.width, "_auto_resize": False}
        if items[0].pictures:
            image = torch.cat([item.pictures[0].tensors["image"] for item in items])
            asked["image"] = image.to(self.machine.device, self.machine.dtype)
        return asked
