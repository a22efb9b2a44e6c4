"""FLUX.1 through diffusers' pipelines: [dev] and [schnell] text-to-image, Kontext, Control, Fill, and IP-Adapter."""

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from diffusers import FluxControlPipeline, FluxFillPipeline, FluxKontextPipeline, FluxPipeline
from diffusers.utils.torch_utils import randn_tensor
from safetensors.torch import save_file
from transformers import CLIPImageProcessor, CLIPVisionModelWithProjection

from local_bench.core.types import seed_of
from local_bench.generators.base import EncodedPrompt, GenerationRequest, InputImage, Item, tokens_over
from local_bench.generators.registry import Sampler
from local_bench.generators.staged import Inpainting, Staged, check_complete
from local_bench.models.tensors import complete, loading


class Flux(Staged):
    """Text-to-image. Text embeddings of T5 (padded to full length, so no mask) and CLIP; distilled guidance."""

    pipeline = FluxPipeline
    encoders = ("text_encoder", "text_encoder_2", "tokenizer", "tokenizer_2", "image_encoder", "feature_extractor")

    def encode_text(self, request: GenerationRequest) -> EncodedPrompt:
        limit: Any = request.sampler.max_sequence_length
        with torch.inference_mode():
            embeds, pooled, _ = self.pipe.encode_prompt(
                prompt=request.prompt, prompt_2=request.prompt, device=self.machine.device, max_sequence_length=limit
            )
        clip, t5 = self.pipe.tokenizer, self.pipe.tokenizer_2
        return EncodedPrompt(
            {"prompt_embeds": embeds.cpu(), "pooled_prompt_embeds": pooled.cpu()},  # (1, limit, width), (1, width)
            {
                "clip": tokens_over(clip, request.prompt, clip.model_max_length),
                "t5": tokens_over(t5, request.prompt, limit),
            },
        )

    def latents_to_pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        unpacked = self.pipe._unpack_latents(latents, sampler.height, sampler.width, self.pipe.vae_scale_factor)
        return super().latents_to_pixels(unpacked, sampler)


class FluxKontext(Flux):
    """Instruction-based editing, or text-to-image.

    The pipeline accepts latents instead of an image. Each distinct source is therefore encoded once by the VAE, at the
    result's size, and a batch is never resized to the aspect ratio of its first image.
    """

    pipeline = FluxKontextPipeline

    def encode_image(self, input_image: InputImage, sampler: Sampler) -> EncodedPrompt:
        config = self.pipe.vae.config
        latents = self.to_latents(input_image, sampler)
        latents = (latents - config.shift_factor) * config.scaling_factor
        return EncodedPrompt({"image": latents.cpu()})  # (1, 16, height / 8, width / 8)

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        sampler = items[0].request.sampler
        arguments = super().call(items, generators)
        # the planned size is a multiple of 16: the pipeline's default area must not change it
        arguments |= {"max_area": sampler.height * sampler.width, "_auto_resize": False}
        if items[0].input_images:
            image = torch.cat([item.input_images[0].tensors["image"] for item in items])
            arguments["image"] = image.to(self.machine.device, self.machine.dtype)
        return arguments


class FluxControl(Flux):
    """Generates from a condition image (depth, canny).

    The VAE encodes the condition image once. Like the pipeline, this class samples from the VAE's latent distribution
    with the image's own generator before the initial noise is drawn, so the bytes equal those of a plain pipeline call.
    """

    pipeline = FluxControlPipeline

    def encode_image(self, input_image: InputImage, sampler: Sampler) -> EncodedPrompt:
        pipe = self.pipe
        pixels = pipe.image_processor.preprocess(input_image.pixels, height=sampler.height, width=sampler.width)
        pixels = pixels.contiguous()  # the pipeline's memory layout: another layout selects another kernel
        with torch.inference_mode():
            distribution = pipe.vae.encode(pixels.to(self.machine.device, pipe.vae.dtype)).latent_dist
        # (1, 16, height / 8, width / 8) each
        return EncodedPrompt({"mean": distribution.mean.cpu(), "std": distribution.std.cpu()})

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        config = self.pipe.vae.config
        conditions = []
        for item, generator in zip(items, generators, strict=True):
            mean, std = (item.input_images[0].tensors[name].to(self.machine.device) for name in ("mean", "std"))
            noise = randn_tensor(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
            latents = (mean + std * noise - config.shift_factor) * config.scaling_factor
            conditions.append(self.pipe._pack_latents(latents, 1, *latents.shape[1:]))
        return super().call(items, generators) | {"control_image": torch.cat(conditions)}


class FluxFill(Inpainting, Flux):
    """Inpaints the masked part of an image. The transformer's input has 384 channels: the noisy latents and the latents
    of the masked source (64 each, packed 2 x 2), and the mask at full resolution (256)."""

    pipeline = FluxFillPipeline


ADAPTER = "ip_adapter.safetensors"


class FluxIpAdapter(Flux):
    """IP-Adapter on FLUX.1 [dev]: conditions on a reference image through CLIP, in addition to the prompt.

    The adapter's weights are added to the transformer. Its image encoder is used before the transformer is loaded and
    then released, like the other encoders. Both are loaded from the model's folder or from `parts` of the card.
    """

    def load_encoder(self) -> None:
        super().load_encoder()
        folder = self.parts.get("image_encoder")
        if folder is not None:
            with loading(folder), complete():
                encoder = CLIPVisionModelWithProjection.from_pretrained(
                    folder, dtype=self.machine.dtype, local_files_only=True, use_safetensors=True
                )
                processor = CLIPImageProcessor.from_pretrained(folder, local_files_only=True)
            self.pipe.register_modules(image_encoder=encoder.to(self.machine.device), feature_extractor=processor)

    def encode_image(self, input_image: InputImage, sampler: Sampler) -> EncodedPrompt:
        with torch.inference_mode():
            embeds = self.pipe.encode_image(input_image.pixels, self.machine.device, 1)
        return EncodedPrompt({"image_embeds": embeds[:, None].cpu()})  # (1, 1 image, projection)

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        arguments = super().call(items, generators)
        self.pipe.set_ip_adapter_scale(items[0].request.sampler.adapter_scale)
        if items[0].input_images:
            embeds = torch.cat([item.input_images[0].tensors["image_embeds"] for item in items])
            embeds = embeds.to(self.machine.device, self.machine.dtype)
            # directly to the transformer: the pipeline's own argument would repeat a batch of images for every prompt
            arguments["joint_attention_kwargs"] = {"ip_adapter_image_embeds": [embeds]}
        return arguments

    def _load(self, without: Sequence[str]) -> Any:
        pipe = super()._load(without)
        if pipe.transformer is None:
            return pipe
        if self.weights is None:
            pipe.transformer._load_ip_adapter_weights([_by_part(_random_adapter(pipe.transformer))])
        else:
            adapter = str(self.parts.get("adapter", self.weights / "ip_adapter"))
            with loading(adapter):
                pipe.load_ip_adapter(
                    adapter,
                    weight_name=ADAPTER,
                    image_encoder_pretrained_model_name_or_path=None,
                    local_files_only=True,
                )
                check_complete(pipe)
        pipe.transformer.to(self.machine.dtype)
        return pipe

    @classmethod
    def save(cls, folder: Path, parts: dict[str, Any]) -> None:
        super().save(folder, parts)
        (folder / "ip_adapter").mkdir()
        save_file(_random_adapter(parts["transformer"]), folder / "ip_adapter" / ADAPTER)


def adapter_tokens(transformer: Any) -> int:
    """Number of text tokens per image: 16 in the published adapter, 4 in a small one."""
    return 16 if transformer.config.joint_attention_dim == 4096 else 4


def adapter_layers(transformer: Any) -> dict[str, tuple[int, int]]:
    """The adapter's linear layers under their published names, with (rows, columns): the projection of an image's
    embedding onto text tokens, then keys and values for each double block. For a transformer whose pooled text has the
    image encoder's width."""
    config = transformer.config
    width, text = transformer.inner_dim, config.joint_attention_dim
    layers = {"ip_adapter_proj_model.proj": (adapter_tokens(transformer) * text, config.pooled_projection_dim)}
    for i in range(config.num_layers):
        for part in "kv":
            layers[f"double_blocks.{i}.processor.ip_adapter_double_stream_{part}_proj"] = (width, text)
    return layers


def _random_adapter(transformer: Any) -> dict[str, torch.Tensor]:
    """Seeded random weights with the published names."""
    text = transformer.config.joint_attention_dim
    generator = torch.Generator("cpu").manual_seed(seed_of("ip-adapter"))
    state = {
        "ip_adapter_proj_model.norm.weight": torch.ones(text),
        "ip_adapter_proj_model.norm.bias": torch.zeros(text),
    }
    for name, (rows, columns) in adapter_layers(transformer).items():
        state[f"{name}.weight"] = 8 * torch.randn((rows, columns), generator=generator) / columns**0.5
        state[f"{name}.bias"] = torch.zeros(rows)
    return state


def _by_part(state: dict[str, torch.Tensor]) -> dict[str, dict[str, torch.Tensor]]:
    """Convert the published names to those that the transformer's loader expects."""
    split: dict[str, dict[str, torch.Tensor]] = {"image_proj": {}, "ip_adapter": {}}
    for name, tensor in state.items():
        part = "image_proj" if name.startswith("ip_adapter_proj_model") else "ip_adapter"
        short = name.partition(".")[2].replace("processor.", "")
        split[part][re.sub("ip_adapter_double_stream_([kv])_proj", r"to_\1_ip", short)] = tensor
    return split
