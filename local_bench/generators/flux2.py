"""FLUX.2 [dev] and [klein]: text-to-image and editing with several input images, through diffusers' pipelines.

The pipelines use the same input images for the whole batch, so requests with input images run with batch size 1. The
VAE encodes each input image once, at up to 1 megapixel, while denoising.
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import Flux2KleinPipeline, Flux2Pipeline
from diffusers.pipelines.flux2.pipeline_flux2 import format_input

from local_bench.generators.base import EncodedPrompt, GenerationRequest, Item
from local_bench.generators.registry import Sampler
from local_bench.generators.staged import Staged


class Flux2(Staged):
    """Text embeddings of Mistral (three of its layers, concatenated), padded to full length; distilled guidance."""

    pipeline = Flux2Pipeline
    remembers = True

    def encode_text(self, request: GenerationRequest) -> EncodedPrompt:
        limit = request.sampler.max_sequence_length or 512
        tensors = {"prompt_embeds": self._embeds(request.prompt, limit)}
        return EncodedPrompt(tensors, {"mistral": max(0, self._n_tokens(request.prompt) - limit)})

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        arguments = super().call(items, generators)
        images = [input_image.pixels for input_image in items[0].request.input_images]
        if images:
            assert len(items) == 1
            arguments["image"] = images
        return arguments

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

    def _embeds(self, text: str, limit: int) -> torch.Tensor:
        with torch.inference_mode():
            embeds, _ = self.pipe.encode_prompt(prompt=text, device=self.machine.device, max_sequence_length=limit)
        on_cpu: torch.Tensor = embeds.cpu()
        return on_cpu  # (1, limit, layers x width)

    def _n_tokens(self, prompt: str) -> int:
        """Number of tokens of the encoder's whole input, including the pipeline's system message."""
        messages = format_input([prompt], self.pipe.system_message)[0]
        return len(self.pipe.tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True)["input_ids"][0])


class Flux2Klein(Flux2):
    """Text embeddings of Qwen3; base models use classifier-free guidance with an empty prompt, distilled ones none."""

    pipeline = Flux2KleinPipeline

    def encode_text(self, request: GenerationRequest) -> EncodedPrompt:
        limit = request.sampler.max_sequence_length or 512
        tensors = {"prompt_embeds": self._embeds(request.prompt, limit)}
        if (request.sampler.guidance_scale or 0) > 1 and not self.pipe.config.is_distilled:
            tensors["negative_prompt_embeds"] = self._embeds("", limit)
        return EncodedPrompt(tensors, {"qwen3": max(0, self._n_tokens(request.prompt) - limit)})

    def latents_to_pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        pixels: torch.Tensor = self.pipe.vae.decode(latents, return_dict=False)[0]  # already unpacked by this pipeline
        return pixels

    def _n_tokens(self, prompt: str) -> int:
        tokenizer = self.pipe.tokenizer
        messages = [{"role": "user", "content": prompt}]
        whole = tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
        )
        return len(tokenizer(whole, verbose=False).input_ids)
