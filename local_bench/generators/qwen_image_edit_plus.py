"""Qwen-Image-Edit-2509 and -2511: editing with several input images, through diffusers' `QwenImageEditPlusPipeline`.

The pipeline generates one image per call. Input images are resized to the area of 384 x 384 pixels for the language
model, and to 1 megapixel for the VAE.
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import QwenImageEditPlusPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus

from local_bench.generators.base import GenerationRequest, Item
from local_bench.generators.qwen_image_edit import QwenImageEdit


class QwenImageEditPlus(QwenImageEdit):
    pipeline = QwenImageEditPlusPipeline

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        (item,) = items
        return super().call(items, generators) | {
            "image": [input_image.pixels for input_image in item.request.input_images]
        }

    def _seen(self, request: GenerationRequest) -> dict[str, Any]:
        seen = []
        for input_image in request.input_images:
            ratio = input_image.pixels.width / input_image.pixels.height
            width, height = plus.calculate_dimensions(plus.CONDITION_IMAGE_SIZE, ratio)
            seen.append(self.pipe.image_processor.resize(input_image.pixels, height, width))
        return {"image": seen}
