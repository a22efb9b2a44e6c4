"""Qwen-Image and Qwen-Image-Edit, with inpainting, through diffusers' pipelines.

Prompt embeddings are not padded: padding would need a mask, and a mask would change the attention kernel (and some
kernels apply it incorrectly). Prompts are therefore encoded one by one, and a batch has prompts of one length only.
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import (
    QwenImageEditInpaintPipeline,
    QwenImageEditPipeline,
    QwenImageEditPlusPipeline,
    QwenImageInpaintPipeline,
    QwenImagePipeline,
)
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit, pipeline_qwenimage_edit_inpaint
from diffusers.pipelines.qwenimage import pipeline_qwenimage_edit_plus as plus

from local_bench.generators.base import EncodedPrompt, GenerationRequest, Item, tokens_over
from local_bench.generators.registry import Sampler
from local_bench.generators.staged import Inpainting, Staged


class QwenImage(Staged):
    """Text-to-image."""

    pipeline = QwenImagePipeline

    def encode_text(self, request: GenerationRequest) -> EncodedPrompt:
        limit = request.sampler.max_sequence_length or self.pipe.tokenizer_max_length
        tensors = self._embeds(request, request.prompt, limit, "")
        if request.sampler.negative_prompt is not None:  # without one the pipeline silently disables guidance
            tensors |= self._embeds(request, request.sampler.negative_prompt, limit, "negative_")
        return EncodedPrompt(tensors, self._truncated(request.prompt, limit))

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        scale = items[0].request.sampler.true_cfg_scale
        return super().call(items, generators) | ({} if scale is None else {"true_cfg_scale": scale})

    def latents_to_pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        pipe, config = self.pipe, self.pipe.vae.config
        latents = pipe._unpack_latents(latents, sampler.height, sampler.width, pipe.vae_scale_factor)
        latents = latents.to(pipe.vae.dtype)
        mean, std = (
            torch.tensor(values).view(1, config.z_dim, 1, 1, 1).to(latents.device, latents.dtype)
            for values in (config.latents_mean, config.latents_std)
        )
        latents = latents / (1.0 / std) + mean  # the same expression as in the pipeline, for the same bits
        pixels: torch.Tensor = pipe.vae.decode(latents, return_dict=False)[0][:, :, 0]
        return pixels

    def _embeds(self, request: GenerationRequest, text: str, limit: int, prefix: str) -> dict[str, torch.Tensor]:
        with torch.inference_mode():
            embeds, mask = self.pipe.encode_prompt(
                prompt=text, device=self.machine.device, max_sequence_length=limit, **self._seen(request)
            )
        assert mask is None or bool(mask.all()), "a single prompt must not be padded"
        return {f"{prefix}prompt_embeds": embeds.cpu()}  # (1, its own length, width)

    def _truncated(self, prompt: str, limit: int) -> dict[str, int]:
        whole = self.pipe.prompt_template_encode.format(prompt)
        return {"qwen": tokens_over(self.pipe.tokenizer, whole, limit + self.pipe.prompt_template_encode_start_idx)}

    def _seen(self, request: GenerationRequest) -> dict[str, Any]:
        return {}


class QwenImageEdit(QwenImage):
    """Instruction-based editing.

    The language model also reads the input image, at 1 megapixel. The pipeline accepts images but not latents, and
    encodes them with its VAE in the denoising call; the latents are cached. It resizes all images of a batch to the
    first one's aspect ratio, so a batch has images of one aspect ratio only.
    """

    pipeline = QwenImageEditPipeline
    encoders = ("text_encoder", "tokenizer", "processor")
    remembers = True

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        return super().call(items, generators) | {"image": [item.request.input_images[0].pixels for item in items]}

    def _truncated(self, prompt: str, limit: int) -> dict[str, int]:
        return {}  # this pipeline does not truncate

    def _seen(self, request: GenerationRequest) -> dict[str, Any]:
        input_image = request.input_images[0].pixels
        ratio = input_image.width / input_image.height
        width, height, _ = pipeline_qwenimage_edit.calculate_dimensions(1024 * 1024, ratio)
        return {"image": [self.pipe.image_processor.resize(input_image, height, width)]}


class QwenImageEditPlus(QwenImageEdit):
    """Qwen-Image-Edit-2509 and -2511: editing with several input images.

    The pipeline generates one image per call. Input images are resized to the area of 384 x 384 pixels for the language
    model, and to 1 megapixel for the VAE.
    """

    pipeline = QwenImageEditPlusPipeline

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        (item,) = items
        return super().call(items, generators) | {"image": [image.pixels for image in item.request.input_images]}

    def _seen(self, request: GenerationRequest) -> dict[str, Any]:
        seen = []
        for input_image in request.input_images:
            ratio = input_image.pixels.width / input_image.pixels.height
            width, height = plus.calculate_dimensions(plus.CONDITION_IMAGE_SIZE, ratio)
            seen.append(self.pipe.image_processor.resize(input_image.pixels, height, width))
        return {"image": seen}


class QwenImageInpaint(Inpainting, QwenImage):
    """Inpainting with the text-to-image weights. After each step the latents outside the mask are replaced by the
    source's, with the noise of the next step."""

    pipeline = QwenImageInpaintPipeline


class QwenImageEditInpaint(Inpainting, QwenImageEdit):
    """Inpainting with the editing weights: the language model and the transformer read the source as in
    Qwen-Image-Edit, and the latents outside the mask are replaced as in `QwenImageInpaint`."""

    pipeline = QwenImageEditInpaintPipeline
    remembers = False  # the source's latents are sampled with each image's generator

    def denoise(self, items: Sequence[Item]) -> torch.Tensor:
        # The pipeline (diffusers 0.42) ignores height and width and resizes the source, and so the result, to 1
        # megapixel. For an unchanged card the planned size is the same.
        module, sampler = pipeline_qwenimage_edit_inpaint, items[0].request.sampler
        original = module.calculate_dimensions
        module.calculate_dimensions = lambda area, ratio: (sampler.width, sampler.height, None)
        try:
            return super().denoise(items)
        finally:
            module.calculate_dimensions = original
