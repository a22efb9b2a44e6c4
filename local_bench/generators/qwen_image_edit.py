"""Qwen-Image-Edit: edits a picture as told, through diffusers' `QwenImageEditPipeline`.

The language model looks at the picture too, at 1 megapixel. The pipeline takes pictures only as such and reads them
through its VAE while it denoises, so the VAE stays with the transformer; what it has read once is remembered. In a
mixed batch it would bring every picture to the first one's aspect: batches hold one aspect only.
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
"""Pictures' latents kept on the device: 0.5 MB each at 1 megapixel."""


class Remembering:
    """Reads each distinct picture once: pixels -> latents, by the bytes of the pixels."""

    def __init__(self, read: Any) -> None:
        self._read = read
        self._known: OrderedDict[bytes, torch.Tensor] = OrderedDict()

    def __call__(self, image: torch.Tensor, generator: Any) -> torch.Tensor:
        return torch.cat([self._one(image[i : i + 1]) for i in range(image.shape[0])])

    def _one(self, pixels: torch.Tensor) -> torch.Tensor:
        key = pixels.float().cpu().numpy().tobytes()
        if key not in self._known:
            self._known[key] = self._read(image=pixels, generator=None)  # the mean: draws nothing
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
        return super().call(items, generators) | {"image": [item.brief.pictures[0].pixels for item in items]}

    def _truncated(self, prompt: str, limit: int) -> dict[str, int]:
        return {}  # this pipeline cuts nothing

    def _seen(self, brief: GenerationRequest) -> dict[str, Any]:
        picture = brief.pictures[0].pixels
        ratio = picture.width / picture.height
        width, height, _ = pipeline_qwenimage_edit.calculate_dimensions(1024 * 1024, ratio)
        return {"image": [self.pipe.image_processor.resize(picture, height, width)]}
