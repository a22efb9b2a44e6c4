"""PixArt-Sigma, text-to-image, through diffusers' `PixArtSigmaPipeline`.

T5's padding is masked in cross-attention, always at one fixed length, and with torch's own kernels, which apply the
mask correctly. The pipeline's prompt cleaning and resolution binning (which resizes the result) are disabled.
"""

from collections.abc import Sequence
from typing import Any

import torch
from diffusers import PixArtSigmaPipeline

from local_bench.generators.base import EncodedPrompt, GenerationRequest, Item, tokens_over
from local_bench.generators.staged import Staged


class PixArtSigma(Staged):
    pipeline = PixArtSigmaPipeline
    masks = True

    def encode_text(self, request: GenerationRequest) -> EncodedPrompt:
        sampler = request.sampler
        limit = sampler.max_sequence_length or 300
        guided = (sampler.guidance_scale or 0) > 1
        with torch.inference_mode():
            embeds, mask, negative, negative_mask = self.pipe.encode_prompt(
                request.prompt,
                do_classifier_free_guidance=guided,
                negative_prompt=sampler.negative_prompt or "",
                device=self.machine.device,
                clean_caption=False,
                max_sequence_length=limit,
            )
        tensors = {"prompt_embeds": embeds.cpu(), "prompt_attention_mask": mask.cpu()}  # (1, limit, 4096), (1, limit)
        if guided:
            tensors |= {"negative_prompt_embeds": negative.cpu(), "negative_prompt_attention_mask": negative_mask.cpu()}
        return EncodedPrompt(tensors, {"t5": tokens_over(self.pipe.tokenizer, request.prompt, limit)})

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        # with prompt_embeds, negative_prompt must be None, not the pipeline's default ""
        return super().call(items, generators) | {
            "negative_prompt": None,
            "use_resolution_binning": False,
            "clean_caption": False,
        }
