"""Shared code of the inpainting families: the source and its mask are arguments of the pipeline's call.

Each of these pipelines samples the latents of the source, and of the source without its masked part, with the image's
own generator, before and after it draws the noise. These latents therefore depend on the image's seed and cannot be
encoded once for several images: the VAE, which is loaded with the transformer, encodes them in the call. It encodes
each image of a batch alone. The pipeline resizes the mask to the result, converts it to luminance and sets it to 0 or 1
at one half: a soft edge becomes a hard one.
"""

from collections.abc import Sequence
from typing import Any

from PIL import Image

from local_bench.core.images import pixel_digest
from local_bench.generators.base import GenerationRequest, InputImage, Item
from local_bench.generators.sampler import Sampler

STRENGTH = 1.0
"""The masked part starts from pure noise and every step is run. The default of diffusers' SD3 and Qwen-Image pipelines
is 0.6, which keeps part of what the mask covers and runs 60 % of the steps."""


def source_and_mask(items: Sequence[Item]) -> dict[str, Any]:
    """A pipeline's arguments for the sources and masks of a batch."""
    masks = [item.request.mask for item in items]
    return {
        "image": [item.request.input_images[0].pixels for item in items],
        "mask_image": [mask.pixels.convert("L") for mask in masks if mask is not None],
        "strength": STRENGTH,
    }


def pasted_back(result: Image.Image, request: GenerationRequest) -> Image.Image:
    """The result with the source's own pixels outside the mask: black keeps the source, white the result, grey mixes
    them in 8 bits. Source and mask take the result's size by the filter of diffusers' image processor (Lanczos)."""
    assert request.mask is not None
    source, mask = (
        input_image.pixels.resize(result.size, Image.Resampling.LANCZOS)
        for input_image in (request.input_images[0], request.mask)
    )
    return Image.composite(result, source, mask.convert("L"))


def half_mask(sampler: Sampler) -> InputImage:
    """A mask of the result's size that is white in its left half, for timings and checks."""
    pixels = Image.new("RGB", (sampler.width, sampler.height))
    pixels.paste((255, 255, 255), (0, 0, sampler.width // 2, sampler.height))
    return InputImage(pixel_digest(pixels), pixels)


def gradient(kind: int, sampler: Sampler) -> Image.Image:
    """An input image of the result's size, one of several, for timings and checks."""
    bands = [Image.linear_gradient("L").rotate(90 * (kind + i)) for i in range(3)]
    return Image.merge("RGB", bands).resize((sampler.width, sampler.height))
