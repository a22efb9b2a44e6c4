"""Stable Diffusion 3 and 3.5 (Medium, Large, Turbo), text-to-image and inpainting, through diffusers' pipelines.

Guidance runs each image's [negative, positive] pair in one forward pass: B images give a batch of 2B.
"""

import torch
from diffusers import StableDiffusion3InpaintPipeline, StableDiffusion3Pipeline

from local_bench.generators.base import EncodedPrompt, GenerationRequest, tokens_over
from local_bench.generators.registry import Sampler
from local_bench.generators.staged import Inpainting, Staged


class StableDiffusion3(Staged):
    """Text-to-image."""

    pipeline = StableDiffusion3Pipeline
    encoders = (
        *("text_encoder", "text_encoder_2", "text_encoder_3", "tokenizer", "tokenizer_2", "tokenizer_3"),
        *("image_encoder", "feature_extractor"),
    )

    def encode_text(self, request: GenerationRequest) -> EncodedPrompt:
        pipe, sampler, prompt = self.pipe, request.sampler, request.prompt
        limit = sampler.max_sequence_length
        guided = (sampler.guidance_scale or 0) > 1
        with torch.inference_mode():
            embeds, negative, pooled, negative_pooled = pipe.encode_prompt(
                prompt=prompt,
                prompt_2=prompt,
                prompt_3=prompt,
                negative_prompt=sampler.negative_prompt,
                do_classifier_free_guidance=guided,
                device=self.machine.device,
                max_sequence_length=limit,
            )
        # (1, 77 + limit, width), (1, width)
        tensors = {"prompt_embeds": embeds.cpu(), "pooled_prompt_embeds": pooled.cpu()}
        if guided:
            tensors |= {
                "negative_prompt_embeds": negative.cpu(),
                "negative_pooled_prompt_embeds": negative_pooled.cpu(),
            }
        clips = {"clip-l": pipe.tokenizer, "clip-g": pipe.tokenizer_2}
        truncated = {name: tokens_over(t, prompt, t.model_max_length) for name, t in clips.items()}
        return EncodedPrompt(tensors, truncated | {"t5": tokens_over(pipe.tokenizer_3, prompt, limit or 256)})


class StableDiffusion3Inpaint(Inpainting, StableDiffusion3):
    """Inpainting with the text-to-image weights.

    After each step the latents outside the mask are replaced by the source's, with the noise of the next step.
    The pipeline decodes without adding the VAE's shift factor, which it subtracts when it encodes (diffusers 0.42; the
    text-to-image pipeline adds it). This class does the same, so that the bytes are those of the library.
    """

    pipeline = StableDiffusion3InpaintPipeline

    def latents_to_pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        vae = self.pipe.vae
        pixels: torch.Tensor = vae.decode((latents / vae.config.scaling_factor).to(vae.dtype), return_dict=False)[0]
        return pixels
