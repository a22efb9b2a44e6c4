"""FLUX.1 [dev] and [schnell], text-to-image, through diffusers' `FluxPipeline`."""

from typing import Any

import torch
from diffusers import FluxPipeline

from local_bench.generators.base import EncodedPrompt, GenerationRequest, tokens_over
from local_bench.generators.sampler import Sampler
from local_bench.generators.staged import Staged


class Flux(Staged):
    """Text embeddings of T5 (padded to full length, so no mask) and CLIP; distilled guidance."""

    pipeline = FluxPipeline
    encoders = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "image_encoder", "feature_extractor")

    def encode_text(self, request: GenerationRequest) -> EncodedPrompt:
        limit = request.sampler.max_sequence_length
        with torch.inference_mode():
            embeds, pooled, _ = self.pipe.encode_prompt(
                prompt=request.prompt, prompt_2=request.prompt, device=self.machine.device, max_sequence_length=limit
            )
        return EncodedPrompt(
            {"prompt_embeds": embeds.cpu(), "pooled_prompt_embeds": pooled.cpu()},  # (1, limit, width), (1, width)
            self._truncated(request.prompt, limit),
        )

    def latents_to_pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        unpacked = self.pipe._unpack_latents(latents, sampler.height, sampler.width, self.pipe.vae_scale_factor)
        return super().latents_to_pixels(unpacked, sampler)

    def _truncated(self, prompt: str, limit: Any) -> dict[str, int]:
        clip, t5 = self.pipe.tokenizer, self.pipe.tokenizer_2
        return {"clip": tokens_over(clip, prompt, clip.model_max_length), "t5": tokens_over(t5, prompt, limit)}
