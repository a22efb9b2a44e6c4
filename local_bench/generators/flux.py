"""FLUX.1 text to image, through diffusers' own `FluxPipeline`, in stages.

The encoders are loaded, used and dropped before the transformer comes; the VAE (0.2 GB) stays beside the transformer so
that a batch is decoded, written and committed as soon as it is denoised.
"""

import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import FluxPipeline
from PIL import Image

from local_bench.generators.base import Conditioning, Machine, Sampler


class Flux:
    """One FLUX.1 model in its folder, as `save_pretrained` or the Hub lays it out."""

    def __init__(self, weights: Path, machine: Machine) -> None:
        self._weights = weights
        self._machine = machine
        self._encoder: Any = None
        self._denoiser: Any = None

    def load_encoder(self) -> None:
        self._encoder = self._load(transformer=None, vae=None)

    def encode(self, prompt: str, sampler: Sampler) -> Conditioning:
        with torch.inference_mode():
            embeds, pooled, _ = self._encoder.encode_prompt(
                prompt=prompt,
                prompt_2=prompt,
                device=self._machine.device,
                max_sequence_length=sampler.max_sequence_length,
            )
        clip, t5 = self._encoder.tokenizer, self._encoder.tokenizer_2
        lost = {
            "clip": _over(clip, prompt, clip.model_max_length),
            "t5": _over(t5, prompt, sampler.max_sequence_length),
        }
        # prompt_embeds (1, length, width) and pooled_prompt_embeds (1, width)
        return Conditioning({"prompt_embeds": embeds.cpu(), "pooled_prompt_embeds": pooled.cpu()}, lost)

    def drop_encoder(self) -> None:
        self._encoder = None
        _release(self._machine.device)

    def load_denoiser(self) -> None:
        self._denoiser = self._load(text_encoder=None, text_encoder_2=None, tokenizer=None, tokenizer_2=None)
        self._denoiser.transformer.set_attention_backend(self._machine.attention)
        self._denoiser.vae.enable_slicing()

    def noise(self, seed: int, sampler: Sampler) -> torch.Tensor:
        channels = self._denoiser.transformer.config.in_channels // 4
        height, width = self._latent_size(sampler)
        generator = torch.Generator("cpu").manual_seed(seed)
        noise = torch.randn((1, channels, height, width), generator=generator, dtype=torch.float32)
        packed: torch.Tensor = FluxPipeline._pack_latents(noise, 1, channels, height, width)
        return packed  # (1, height * width / 4, 4 * channels)

    def denoise(self, conditionings: Sequence[Conditioning], noise: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        device, dtype = self._machine.device, self._machine.dtype
        names = conditionings[0].tensors
        prompt = {name: torch.cat([c.tensors[name] for c in conditionings]).to(device, dtype) for name in names}
        with torch.inference_mode():
            latents: torch.Tensor = self._denoiser(
                **prompt,
                latents=noise.to(device, dtype),
                height=sampler.height,
                width=sampler.width,
                num_inference_steps=sampler.num_inference_steps,
                guidance_scale=sampler.guidance_scale,
                output_type="latent",
            ).images
        return latents

    def decode(self, latents: torch.Tensor, sampler: Sampler) -> list[Image.Image]:
        pipe = self._denoiser
        config = pipe.vae.config
        with torch.inference_mode():
            unpacked = pipe._unpack_latents(latents, sampler.height, sampler.width, pipe.vae_scale_factor)
            unpacked = unpacked / config.scaling_factor + config.shift_factor
            pixels = pipe.vae.decode(unpacked.to(self._machine.dtype), return_dict=False)[0]
            images: list[Image.Image] = pipe.image_processor.postprocess(pixels, output_type="pil")
        return images

    def drop_denoiser(self) -> None:
        self._denoiser = None
        _release(self._machine.device)

    def _load(self, **without: None) -> Any:
        pipe = FluxPipeline.from_pretrained(
            self._weights, dtype=self._machine.dtype, local_files_only=True, use_safetensors=True, **without
        )
        pipe.set_progress_bar_config(disable=True)
        return pipe.to(self._machine.device)

    def _latent_size(self, sampler: Sampler) -> tuple[int, int]:
        step = 2 * self._denoiser.vae_scale_factor
        return 2 * (sampler.height // step), 2 * (sampler.width // step)


def _over(tokenizer: Any, prompt: str, limit: int) -> int:
    return max(0, len(tokenizer(prompt, truncation=False, verbose=False).input_ids) - limit)


def _release(device: torch.device) -> None:
    gc.collect()
    if device.type == "cuda":
        torch.cuda.empty_cache()
