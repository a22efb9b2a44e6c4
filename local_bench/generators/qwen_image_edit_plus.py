"""Qwen-Image-Edit-2509 and -2511: edits with several pictures, through diffusers' `QwenImageEditPlusPipeline`.

The pipeline makes one image a call. The language model sees each picture at 384 x 384 pixels' area, the VAE at 1
megapixel, and stays with the transformer for that.
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
        return super().call(items, generators) | {"image": [picture.pixels for picture in item.brief.pictures]}

    def _seen(self, brief: GenerationRequest) -> dict[str, Any]:
        seen = []
        for picture in brief.pictures:
            ratio = picture.pixels.width / picture.pixels.height
            width, height = plus.calculate_dimensions(plus.CONDITION_IMAGE_SIZE, ratio)
            seen.append(self.pipe.image_processor.resize(picture.pixels, height, width))
        return {"image": seen}
