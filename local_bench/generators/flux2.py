"""FLUX.2 [dev] and [klein]: text to image and edits with several pictures, through diffusers' own pipelines.

The pipelines share their pictures over the whole batch, so an image with pictures is made alone. Pictures are read by
the VAE at up to 1 megapixel while denoising, each once.
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import Flux2KleinPipeline, Flux2Pipeline
from diffusers.pipelines.flux2.pipeline_flux2 import format_input

from local_bench.generators.base import EncodedPrompt, GenerationRequest, Item
from local_bench.generators.qwen_image_edit import Remembering
from local_bench.generators.sampler import Sampler
from local_bench.generators.staged import Staged


class Flux2(Staged):
    """Text by Mistral (three of its layers side by side), padded to its full length; distilled guidance."""

    pipeline = Flux2Pipeline

    def load_denoiser(self) -> None:
        super().load_denoiser()
        self.pipe._encode_vae_image = Remembering(self.pipe._encode_vae_image)

    def encode_text(self, brief: GenerationRequest) -> EncodedPrompt:
        limit = brief.sampler.max_sequence_length or 512
        tensors = {"prompt_embeds": self._embeds(brief.prompt, limit)}
        return EncodedPrompt(tensors, {"mistral": max(0, self._n_tokens(brief.prompt) - limit)})

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        asked = super().call(items, generators)
        pictures = [picture.pixels for picture in items[0].brief.pictures]
        if pictures:
            assert len(items) == 1
            asked["image"] = pictures
        return asked

    def latents_to_pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        pipe = self.pipe
        height, width = (side // (2 * pipe.vae_scale_factor) for side in (sampler.height, sampler.width))
        latents = latents.reshape(1, height, width, -1).permute(0, 3, 1, 2)  # its ids are in row order
        norm = pipe.vae.bn
        mean = norm.running_mean.view(1, -1, 1, 1).to(latents.device, latents.dtype)
        spread = torch.sqrt(norm.running_var.view(1, -1, 1, 1) + pipe.vae.config.batch_norm_eps)
        latents = pipe._unpatchify_latents(latents * spread.to(latents.device, latents.dtype) + mean)
        pixels: torch.Tensor = pipe.vae.decode(latents, return_dict=False)[0]
        return pixels

    def _embeds(self, words: str, limit: int) -> torch.Tensor:
        with torch.inference_mode():
            embeds, _ = self.pipe.encode_prompt(prompt=words, device=self.machine.device, max_sequence_length=limit)
        seen: torch.Tensor = embeds.cpu()
        return seen  # (1, limit, layers x width)

    def _n_tokens(self, prompt: str) -> int:
        """Of the whole conversation that the encoder reads, the pipeline's own words included."""
        messages = format_input([prompt], self.pipe.system_message)[0]
        return len(self.pipe.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"][0])


class Flux2Klein(Flux2):
    """Text by Qwen3; the base models are guided by a second pass on the empty prompt, the distilled ones not."""

    pipeline = Flux2KleinPipeline

    def encode_text(self, brief: GenerationRequest) -> EncodedPrompt:
        limit = brief.sampler.max_sequence_length or 512
        tensors = {"prompt_embeds": self._embeds(brief.prompt, limit)}
        if (brief.sampler.guidance_scale or 0) > 1 and not self.pipe.config.is_distilled:
            tensors["negative_prompt_embeds"] = self._embeds("", limit)
        return EncodedPrompt(tensors, {"qwen3": max(0, self._n_tokens(brief.prompt) - limit)})

    def latents_to_pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        pixels: torch.Tensor = self.pipe.vae.decode(latents, return_dict=False)[0]  # this pipeline has unpacked them
        return pixels

    def _n_tokens(self, prompt: str) -> int:
        tokenizer = self.pipe.tokenizer
        messages = [{"role": "user", "content": prompt}]
        whole = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return len(tokenizer(whole, verbose=False).input_ids)
