"""Z-Image and Z-Image-Turbo through diffusers' `ZImagePipeline`.

Prompts are encoded one by one and a batch has prompts of one length: the transformer would pad shorter ones. With
guidance, the positive and the negative prompts of a batch are one forward pass, padded to the longer of the two under a
mask, which is the same for a batch of one.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from diffusers import ZImagePipeline

from local_bench.generators.base import EncodedPrompt, GenerationRequest, Item, tokens_over
from local_bench.generators.registry import Sampler
from local_bench.generators.staged import Staged


class ZImage(Staged):
    pipeline = ZImagePipeline
    masks = True

    def encode_text(self, request: GenerationRequest) -> EncodedPrompt:
        pipe, sampler = self.pipe, request.sampler
        limit = sampler.max_sequence_length or 512
        with torch.inference_mode():
            embeds, negative = pipe.encode_prompt(
                prompt=request.prompt,
                negative_prompt=sampler.negative_prompt,
                do_classifier_free_guidance=sampler.guidance_scale != 0,  # any other value guides
                device=self.machine.device,
                max_sequence_length=limit,
            )
        # (1, number of tokens, width) each
        named = (("prompt_embeds", embeds), ("negative_prompt_embeds", negative))
        tensors = {name: encoded[0].unsqueeze(0).cpu() for name, encoded in named if encoded}
        messages = [{"role": "user", "content": request.prompt}]
        whole = pipe.tokenizer.apply_chat_template(
            messages, tokenize=False, add_generation_prompt=True, enable_thinking=True
        )
        return EncodedPrompt(tensors, {"qwen3": tokens_over(pipe.tokenizer, whole, limit)})

    def prompts(self, items: Sequence[Item]) -> dict[str, Any]:
        """Lists of (number of tokens, width), as the pipeline requires."""
        return {name: list(tensor) for name, tensor in super().prompts(items).items()}

    def compiled_forms(self, item: Item) -> list[Item]:
        """Also with a shorter negative prompt, for the graphs with a mask."""
        (same,) = super().compiled_forms(item)
        negative = same.text.tensors.get("negative_prompt_embeds")
        if negative is None:
            return [same]
        shorter = same.text.tensors | {"negative_prompt_embeds": negative[:, : negative.shape[1] // 2]}
        return [same, replace(same, text=replace(same.text, tensors=shorter))]

    def latents_to_pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        config = self.pipe.vae.config
        latents = latents.to(self.pipe.vae.dtype)  # before scaling, as in the pipeline
        latents = (latents / config.scaling_factor) + config.shift_factor
        pixels: torch.Tensor = self.pipe.vae.decode(latents, return_dict=False)[0]
        return pixels
