"""InstructPix2Pix and MagicBrush (the same pipeline, other weights), through diffusers' pipeline.

Each step has three forward passes per image (text and image, image only, neither). The scheduler draws new noise at
every step, from the image's own generator. The safety checker, which replaces images by black ones, is not loaded.
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import StableDiffusionInstructPix2PixPipeline

from local_bench.generators.base import EncodedPrompt, GenerationRequest, InputImage, Item, tokens_over
from local_bench.generators.registry import Sampler
from local_bench.generators.staged import Staged


class InstructPix2Pix(Staged):
    pipeline = StableDiffusionInstructPix2PixPipeline
    encoders = ("text_encoder", "tokenizer", "safety_checker", "feature_extractor", "image_encoder")
    denoiser = "unet"
    unused = ("safety_checker",)

    def encode_text(self, request: GenerationRequest) -> EncodedPrompt:
        tokenizer = self.pipe.tokenizer
        return EncodedPrompt(
            {
                "prompt_embeds": self._embeds(request.prompt),
                "negative_prompt_embeds": self._embeds(request.sampler.negative_prompt or ""),
            },
            {"clip": tokens_over(tokenizer, request.prompt, tokenizer.model_max_length)},
        )

    def encode_image(self, input_image: InputImage, sampler: Sampler) -> EncodedPrompt:
        latents = self.to_latents(input_image, sampler)  # (1, 4, h / 8, w / 8)
        return EncodedPrompt({"image": latents.cpu()})

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        image = torch.cat([item.input_images[0].tensors["image"] for item in items])
        return super().call(items, generators) | {
            "image": image.to(self.machine.device, self.machine.dtype),
            "image_guidance_scale": items[0].request.sampler.image_guidance_scale,
        }

    @classmethod
    def assemble(cls, parts: dict[str, Any]) -> Any:
        unused = {"safety_checker": None, "feature_extractor": None}
        return cls.pipeline(**unused, **parts, requires_safety_checker=False)

    def _size(self, sampler: Sampler) -> dict[str, int]:
        return {}  # the input image's size

    def _embeds(self, text: str) -> torch.Tensor:
        with torch.inference_mode():
            embeds: torch.Tensor = self.pipe._encode_prompt(text, self.machine.device, 1, False)
        return embeds.cpu()  # (1, 77, width)
