"""Qwen-Image-Edit: instruction-based editing, through diffusers' `QwenImageEditPipeline`.

The language model also reads the input image, at 1 megapixel. The pipeline accepts images but not latents, and encodes
them with its VAE in the denoising call; the latents are cached. It resizes all images of a batch to the first one's
aspect ratio, so a batch has images of one aspect ratio only.
"""

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

import torch
from diffusers import QwenImageEditPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit

from local_bench.generators.base import GenerationRequest, Item
from local_bench.generators.qwen_image import QwenImage

_REMEMBERED = 16
"""Maximum number of cached latents on the device: 0.5 MB each at 1 megapixel."""


class Remembering:
    """Caches the VAE's encoding of each distinct image, by the bytes of its pixels."""

    def __init__(self, read: Any) -> None:
        self._read = read
        self._known: OrderedDict[bytes, torch.Tensor] = OrderedDict()

    def __call__(self, image: torch.Tensor, generator: Any) -> torch.Tensor:
        return torch.cat([self._one(image[i : i + 1]) for i in range(image.shape[0])])

    def _one(self, pixels: torch.Tensor) -> torch.Tensor:
        key = pixels.float().cpu().numpy().tobytes()
        if key not in self._known:
            self._known[key] = self._read(image=pixels, generator=None)  # the mean: uses no random numbers
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        self._known.move_to_end(key)
        return self._known[key]


class QwenImageEdit(QwenImage):
    pipeline = QwenImageEditPipeline
    encoders = ("text_encoder", "tokenizer", "processor")

    def load_denoiser(self) -> None:
        super().load_denoiser()
        self.pipe._encode_vae_image = Remembering(self.pipe._encode_vae_image)

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        return super().call(items, generators) | {"image": [item.request.input_images[0].pixels for item in items]}

    def _truncated(self, prompt: str, limit: int) -> dict[str, int]:
        return {}  # this pipeline does not truncate

    def _seen(self, request: GenerationRequest) -> dict[str, Any]:
        input_image = request.input_images[0].pixels
        ratio = input_image.width / input_image.height
        width, height, _ = pipeline_qwenimage_edit.calculate_dimensions(1024 * 1024, ratio)
        return {"image": [self.pipe.image_processor.resize(input_image, height, width)]}
