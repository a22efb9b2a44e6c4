"""FLUX.1 Fill: inpaints the masked part of an image, through diffusers' `FluxFillPipeline`.

The transformer's input has 384 channels: the noisy latents and the latents of the masked source (64 each, packed
2 x 2), and the mask at full resolution (256).
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import FluxFillPipeline

from local_bench.generators.base import Item
from local_bench.generators.flux import Flux
from local_bench.generators.masked import source_and_mask


class FluxFill(Flux):
    pipeline = FluxFillPipeline

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        return super().call(items, generators) | source_and_mask(items)
