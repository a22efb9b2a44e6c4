"""Qwen-Image-Edit inpainting, with the editing weights, through diffusers' `QwenImageEditInpaintPipeline`.

The language model and the transformer read the source as in Qwen-Image-Edit; after each step the latents outside the
mask are replaced by the source's, with the noise of the next step.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from diffusers import QwenImageEditInpaintPipeline
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_inpaint

from local_bench.generators.base import Item
from local_bench.generators.masked import source_and_mask
from local_bench.generators.qwen_image import QwenImage
from local_bench.generators.qwen_image_edit import QwenImageEdit
from local_bench.generators.sampler import Sampler


class QwenImageEditInpaint(QwenImageEdit):
    pipeline = QwenImageEditInpaintPipeline

    def load_denoiser(self) -> None:
        QwenImage.load_denoiser(
            self
        )  # the source's latents are sampled with each image's generator, so they cannot be cached

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        return super().call(items, generators) | source_and_mask(items)

    def denoise(self, items: Sequence[Item]) -> torch.Tensor:
        with _result_of(items[0].request.sampler):
            return super().denoise(items)


@contextmanager
def _result_of(sampler: Sampler) -> Iterator[None]:
    """Replace the pipeline's size computation by the planned size.

    The pipeline (diffusers 0.42) ignores height and width and resizes the source, and so the result, to 1 megapixel.
    For an unchanged card the planned size is the same.
    """
    module = pipeline_qwenimage_edit_inpaint
    original = module.calculate_dimensions
    module.calculate_dimensions = lambda area, ratio: (sampler.width, sampler.height, None)
    try:
        yield
    finally:
        module.calculate_dimensions = original
