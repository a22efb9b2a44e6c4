"""FLUX.1 Control (depth, canny): generates from a condition image, through diffusers' `FluxControlPipeline`.

The VAE encodes the condition image once. Like the pipeline, this class samples from the VAE's latent distribution with
the image's own generator before the initial noise is drawn, so the bytes equal those of a plain pipeline call.
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import FluxControlPipeline
from diffusers.utils.torch_utils import randn_tensor

from local_bench.generators.base import EncodedPrompt, InputImage, Item
from local_bench.generators.flux import Flux
from local_bench.generators.sampler import Sampler


class FluxControl(Flux):
    pipeline = FluxControlPipeline

    def encode_image(self, input_image: InputImage, sampler: Sampler) -> EncodedPrompt:
        pipe = self.pipe
        pixels = pipe.image_processor.preprocess(input_image.pixels, height=sampler.height, width=sampler.width)
        pixels = pixels.contiguous()  # the pipeline's memory layout: another layout selects another kernel
        with torch.inference_mode():
            distribution = pipe.vae.encode(pixels.to(self.machine.device, pipe.vae.dtype)).latent_dist
        return EncodedPrompt(
            {"mean": distribution.mean.cpu(), "std": distribution.std.cpu()}
        )  # (1, 16, height / 8, width / 8)

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        config = self.pipe.vae.config
        conditions = []
        for item, generator in zip(items, generators, strict=True):
            mean, std = (item.input_images[0].tensors[name].to(self.machine.device) for name in ("mean", "std"))
            noise = randn_tensor(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
            latents = (mean + std * noise - config.shift_factor) * config.scaling_factor
            conditions.append(self.pipe._pack_latents(latents, 1, *latents.shape[1:]))
        return super().call(items, generators) | {"control_image": torch.cat(conditions)}
