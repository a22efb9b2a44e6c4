"""Stable Diffusion 3 and 3.5 (Medium, Large, Turbo), through diffusers' `StableDiffusion3Pipeline`.

Guidance runs each image's [negative, positive] pair in one forward pass: B images give a batch of 2B.
"""

import torch
from diffusers import StableDiffusion3Pipeline

from local_bench.generators.base import EncodedPrompt, GenerationRequest, tokens_over
from local_bench.generators.staged import Staged


class StableDiffusion3(Staged):
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
