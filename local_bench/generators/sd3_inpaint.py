"""Stable Diffusion 3 and 3.5 inpainting, with the text-to-image weights, through `StableDiffusion3InpaintPipeline`.

After each step the latents outside the mask are replaced by the source's, with the noise of the next step.
The pipeline decodes without adding the VAE's shift factor, which it subtracts when it encodes (diffusers 0.42; the
text-to-image pipeline adds it). This module does the same, so that the bytes are those of the library.
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import StableDiffusion3InpaintPipeline

from local_bench.generators.base import Item
from local_bench.generators.masked import source_and_mask
from local_bench.generators.sampler import Sampler
from local_bench.generators.sd3 import StableDiffusion3


class StableDiffusion3Inpaint(StableDiffusion3):
    pipeline = StableDiffusion3InpaintPipeline

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        return super().call(items, generators) | source_and_mask(items)

    def latents_to_pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        vae = self.pipe.vae
        pixels: torch.Tensor = vae.decode((latents / vae.config.scaling_factor).to(vae.dtype), return_dict=False)[0]
        return pixels
