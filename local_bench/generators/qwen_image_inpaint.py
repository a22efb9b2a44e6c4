"""Qwen-Image inpainting, with the text-to-image weights, through diffusers' `QwenImageInpaintPipeline`.

After each step the latents outside the mask are replaced by the source's, with the noise of the next step.
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import QwenImageInpaintPipeline

from local_bench.generators.base import Item
from local_bench.generators.masked import source_and_mask
from local_bench.generators.qwen_image import QwenImage


class QwenImageInpaint(QwenImage):
    pipeline = QwenImageInpaintPipeline

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        return super().call(items, generators) | source_and_mask(items)
