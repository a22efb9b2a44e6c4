"""The stages that all families share: loading in parts, one fixed batch through the pipeline's own loop, decoding."""

import gc
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import diffusers
import torch
from diffusers import AutoencoderKL, DiffusionPipeline
from diffusers.utils import dummy_onnx_objects
from PIL import Image

from local_bench.generators.architecture import components
from local_bench.generators.base import EncodedPrompt, GenerationRequest, Item, Machine, Picture, cat
from local_bench.generators.device import Axes, attend, place_denoiser, place_encoder
from local_bench.generators.lora import fuse_adapters
from local_bench.generators.lossy import check_lossy
from local_bench.generators.registry import traits
from local_bench.generators.sampler import Sampler
from local_bench.models.cards import ModelCard

# Saving and loading a pipeline looks this class up, and its module imports onnxruntime: diffusers' own placeholder for
# where that is not installed does as well.
diffusers.OnnxRuntimeModel = dummy_onnx_objects.OnnxRuntimeModel


class Staged(ABC):
    """A generator. In this order: `load_encoder`, `encode_text` and `encode_picture`…, `drop_encoder`,
    `load_denoiser`, (`denoise`, `decode`)…, `drop_denoiser`.

    What a family says of itself stands in the class variables; a family overrides the methods below them.
    """

    pipeline: ClassVar[type[DiffusionPipeline]]
    encoders: ClassVar[tuple[str, ...]] = ("text_encoder", "tokenizer")
    """The pipeline's parts that only encoding needs."""
    denoiser: ClassVar[str] = "transformer"
    varying: ClassVar[Axes | None] = None
    """Where prompts are not padded to one length: which axes of a block's inputs are as long as the prompt. Compiled
    code then takes any length; without this each length would be a graph of its own."""
    unused: ClassVar[tuple[str, ...]] = ()
    """The pipeline's parts that are never loaded (a safety checker)."""
    masks: ClassVar[bool] = False
    """Whether attention is masked, which flash and cuDNN kernels do not take."""

    def __init__(
        self, card: ModelCard, weights: Path | None, machine: Machine, parts: Mapping[str, Path] | None = None
    ) -> None:
        """`weights` is the model's folder, `parts` what comes from other repositories by name; without a folder the
        card's architecture is built with seeded random weights."""
        self.card = card
        self.traits = traits(card.family)
        self.weights = weights
        self.machine = machine
        self.parts = dict(parts or {})
        self.pipe: Any = None

    # ---- what a family overrides

    @abstractmethod
    def encode_text(self, brief: GenerationRequest) -> EncodedPrompt:
        """One prompt at a time, so that its embedding cannot depend on others. No prompt is changed."""

    def encode_picture(self, picture: Picture, sampler: Sampler) -> EncodedPrompt:
        """An input picture's latents, where `traits.encodes_pictures`; nothing where it is read while denoising."""
        return EncodedPrompt({})

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        """The family's own arguments for its pipeline, beside prompt, size, steps and seeds."""
        guidance = items[0].brief.sampler.guidance_scale
        return {} if guidance is None else {"guidance_scale": guidance}

    def canonical(self, item: Item) -> Item:
        """`item` with a prompt of a fixed length, where `varying`: what compiled code is made from, so that it does not
        depend on which prompt comes first."""
        assert self.varying is None
        return item

    def latents_to_pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        """Pixels in [-1, 1], (1, 3, height, width), from one sample's latents as the pipeline returns them."""
        config = self.pipe.vae.config
        latents = latents / config.scaling_factor + (config.shift_factor or 0.0)
        pixels: torch.Tensor = self.pipe.vae.decode(latents.to(self.pipe.vae.dtype), return_dict=False)[0]
        return pixels

    # ---- the stages

    def load_encoder(self) -> None:
        """Loads what encoding needs; nothing of the transformer."""
        without = (self.denoiser,) if self.traits.encodes_pictures else (self.denoiser, "vae")
        self.pipe = self._load(without)
        place_encoder(self.pipe, self.encoders, self.machine)

    def drop_encoder(self) -> None:
        self._drop()

    def load_denoiser(self) -> None:
        """Loads transformer, VAE and scheduler; none of the encoders. ConfigError for a lossy way it does not have."""
        check_lossy(self.machine.lossy, self.card.family, self.traits.lossy_ways)
        self.pipe = self._load(self.encoders)
        fuse_adapters(self.pipe, self.denoiser, self.card.lora, self.parts, self.card.name)
        place_denoiser(self.pipe, self.denoiser, self.machine, type(self).varying)
        if hasattr(self.pipe.vae, "enable_slicing"):
            self.pipe.vae.enable_slicing()

    def denoise(self, items: Sequence[Item]) -> torch.Tensor:
        """Latents of a whole batch, all of one shape. Each image's noise comes from its own CPU generator."""
        sampler = items[0].brief.sampler
        generators = [torch.Generator("cpu").manual_seed(item.seed) for item in items]
        with torch.inference_mode(), attend(getattr(self.pipe, self.denoiser), self.machine):
            latents: torch.Tensor = self.pipe(
                **cat([item.text.tensors for item in items], self.machine.device, self.machine.dtype),
                **self._size(sampler),
                **self.call(items, generators),
                num_inference_steps=sampler.num_inference_steps,
                generator=generators,
                output_type="latent",
                return_dict=False,
            )[0]
        return latents

    def pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        """RGB8 pixels of a batch on its device, uint8 (B, height, width, 3), each image decoded alone."""
        with torch.inference_mode():
            alone = [self.latents_to_pixels(latents[i : i + 1], sampler) for i in range(len(latents))]
            return torch.cat([as_rgb8(pixels) for pixels in alone])

    def decode(self, latents: torch.Tensor, sampler: Sampler) -> list[Image.Image]:
        """The images of `pixels`."""
        return [Image.fromarray(image) for image in self.pixels(latents, sampler).cpu().numpy()]

    def drop_denoiser(self) -> None:
        self._drop()

    @classmethod
    def save(cls, folder: Path, parts: dict[str, Any]) -> None:
        """Saves a pipeline made of `parts` as the Hub would lay it out."""
        cls.assemble(parts).save_pretrained(folder)

    @classmethod
    def assemble(cls, parts: dict[str, Any]) -> Any:
        """The pipeline made of `parts`, by its own names."""
        return cls.pipeline(**parts)

    # ---- what families call

    def to_latents(self, pixels: torch.Tensor) -> torch.Tensor:
        """The mean of what the VAE makes of pixels in [-1, 1]."""
        vae: AutoencoderKL = self.pipe.vae
        with torch.inference_mode():
            pixels = pixels.to(self.machine.device, vae.dtype)
            mode: torch.Tensor = vae.encode(pixels).latent_dist.mode()
        return mode

    # ---- within

    def _size(self, sampler: Sampler) -> dict[str, int]:
        return {"height": sampler.height, "width": sampler.width}

    def _load(self, without: Sequence[str]) -> Any:
        pipe = self._from_architecture(tuple(without)) if self.weights is None else self._from_folder(without)
        pipe.set_progress_bar_config(disable=True)
        return pipe

    def _from_architecture(self, without: tuple[str, ...]) -> Any:
        return self.assemble(components(self.card, self.machine.device, self.machine.dtype, without))

    def _from_folder(self, without: Sequence[str]) -> Any:
        return self.pipeline.from_pretrained(
            self.weights,
            dtype=self.machine.dtype,
            local_files_only=True,
            use_safetensors=True,
            **dict.fromkeys((*without, *self.unused)),
        )

    def _drop(self) -> None:
        self.pipe = None
        gc.collect()
        if self.machine.device.type == "cuda":
            torch.cuda.empty_cache()


def as_rgb8(pixels: torch.Tensor) -> torch.Tensor:
    """Pixels in [-1, 1], (B, 3, height, width), as uint8 (B, height, width, 3): rounded on their device, to the same
    bytes as diffusers' `VaeImageProcessor.postprocess` does on the host."""
    unit = (pixels * 0.5 + 0.5).clamp(0, 1)
    return (unit.permute(0, 2, 3, 1).float() * 255).round().to(torch.uint8)


def resized(pipe: Any, picture: Picture, sampler: Sampler) -> torch.Tensor:
    """A picture at the result's size as the pipeline itself would resize it, (1, 3, height, width) in [-1, 1]."""
    image = pipe.image_processor.resize(picture.pixels, sampler.height, sampler.width)
    pixels: torch.Tensor = pipe.image_processor.preprocess(image, sampler.height, sampler.width)
    return pixels
