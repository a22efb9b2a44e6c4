"""Qwen-Image, text-to-image, through diffusers' `QwenImagePipeline`.

Prompt embeddings are not padded: padding would need a mask, and a mask would change the attention kernel (and some
kernels apply it incorrectly). Prompts are therefore encoded one by one, and a batch has prompts of one length only.
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import QwenImagePipeline

from local_bench.generators.base import EncodedPrompt, GenerationRequest, Item, tokens_over
from local_bench.generators.sampler import Sampler
from local_bench.generators.staged import Staged


class QwenImage(Staged):
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
