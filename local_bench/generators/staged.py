"""Base class of the generator families: staged loading, denoising with the pipeline's own loop, decoding; batches of
one fixed shape, and the check that batching does not change an image's bytes (batch invariance).
"""

import random
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import diffusers
import torch
from diffusers import DiffusionPipeline
from diffusers.utils import dummy_onnx_objects
from PIL import Image

from local_bench.core.environment import collect, load_object
from local_bench.core.errors import ConfigError
from local_bench.core.types import seed_of
from local_bench.generators.architecture import components
from local_bench.generators.base import EncodedPrompt, GenerationRequest, InputImage, Item, Machine, cat
from local_bench.generators.device import Parking, attend, place_denoiser, place_encoder
from local_bench.generators.lora import fuse_adapters
from local_bench.generators.registry import BUILT_IN, Sampler, check_lossy, traits
from local_bench.models.cards import ModelCard
from local_bench.models.tensors import complete, loading

# Saving and loading a pipeline accesses this class, whose module imports onnxruntime: use diffusers' placeholder for
# environments without onnxruntime instead.
diffusers.OnnxRuntimeModel = dummy_onnx_objects.OnnxRuntimeModel

_CANONICAL_TOKENS = 251
"""Prompt length used for compilation: close to a typical prompt, and a prime, so that no divisor is assumed."""


class Staged(ABC):
    """A generator. Call order: `load_encoder`, `encode_text` and `encode_image` for each input, `drop_encoder`,
    `load_denoiser`, `denoise` and `decode` for each batch, `drop_denoiser`.

    A family sets the class variables and overrides the first group of methods.
    """

    pipeline: ClassVar[type[DiffusionPipeline]]
    encoders: ClassVar[tuple[str, ...]] = ("text_encoder", "tokenizer")
    """The pipeline's components that only encoding needs."""
    denoiser: ClassVar[str] = "transformer"
    unused: ClassVar[tuple[str, ...]] = ()
    """The pipeline's components that are never loaded (a safety checker)."""
    masks: ClassVar[bool] = False
    """Whether attention is masked, which flash and cuDNN kernels do not support."""
    remembers: ClassVar[bool] = False
    """Whether the latents of input images, which the pipeline encodes in its call, are kept for other images."""
    attention: ClassVar[str | None] = None
    """The attention backend where neither the config nor the card names one; None: by GPU class."""

    def __init__(
        self, card: ModelCard, weights: Path | None, machine: Machine, parts: Mapping[str, Path] | None = None
    ) -> None:
        """`weights` is the model's folder (None: the card's architecture with seeded random weights); `parts` are
        folders of components from other repositories, by name."""
        self.card = card
        self.traits = traits(card.family)
        self.weights = weights
        self.machine = machine
        self.parts = dict(parts or {})
        self.compiled_size = (card.sampler.height, card.sampler.width)
        """Height and width for which blocks are compiled; their graphs then run at all sizes."""
        self.finite: torch.Tensor | None = None
        """Whether the values of each image of the last `pixels` were finite before their cast, bool (B,)."""
        self.pipe: Any = None
        self._parking = Parking(None, 0.0, machine.device)

    # ---- what a family overrides

    @abstractmethod
    def encode_text(self, request: GenerationRequest) -> EncodedPrompt:
        """Encode one unchanged prompt. Prompts are encoded one by one, so that embeddings are independent."""

    def encode_image(self, input_image: InputImage, sampler: Sampler) -> EncodedPrompt:
        """Encode an input image if `traits.encodes_images`; empty for families that encode it while denoising."""
        return EncodedPrompt({})

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        """The pipeline's family-specific arguments, in addition to prompt, size, steps and generators."""
        guidance = items[0].request.sampler.guidance_scale
        return {} if guidance is None else {"guidance_scale": guidance}

    def prompts(self, items: Sequence[Item]) -> dict[str, Any]:
        """The pipeline's arguments for the encoded prompts of a batch, on the device."""
        return cat([item.text.tensors for item in items], self.machine.device, self.machine.dtype)

    def canonical(self, item: Item) -> Item:
        """`item` at `compiled_size`, with the fewest input images; of families with unpadded prompts, also with a
        prompt of a fixed length.

        It is used for compilation, so that compiled code does not depend on which item comes first: inductor's choices
        follow the lengths that it sees.
        """
        height, width = self.compiled_size
        fewest = 0 if self.card.takes.text_alone and not self.traits.images_add_passes else 1

        def of_size(image: InputImage) -> InputImage:
            return InputImage(image.sha256, image.pixels.resize((width, height)))

        request = replace(
            item.request,
            sampler=replace(item.request.sampler, height=height, width=width),
            input_images=tuple(map(of_size, item.request.input_images[:fewest])),
            mask=item.request.mask and of_size(item.request.mask),
        )
        encoded = tuple(_of_size(image, height, width) for image in item.input_images[:fewest])
        text = item.text
        if self.traits.exact_length:
            n, fixed = _CANONICAL_TOKENS, {}
            for name, tensor in text.tensors.items():  # (1, tokens, width), repeated and cut
                fixed[name] = tensor.repeat(1, -(-n // tensor.shape[1]), 1)[:, :n]
            text = replace(text, tensors=fixed)
        return replace(item, request=request, text=text, input_images=encoded)

    def compiled_forms(self, item: Item) -> list[Item]:
        """The items whose denoising compiles all graphs: more than `canonical` where calls differ by a mask."""
        return [self.canonical(item)]

    def latents_to_pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        """Decode one image's latents, as returned by the pipeline, to pixels in [-1, 1], (1, 3, height, width)."""
        config = self.pipe.vae.config
        latents = latents / config.scaling_factor + (config.shift_factor or 0.0)
        pixels: torch.Tensor = self.pipe.vae.decode(latents.to(self.pipe.vae.dtype), return_dict=False)[0]
        return pixels

    # ---- the stages

    def load_encoder(self) -> None:
        """Load the components for encoding, without the transformer."""
        without = (self.denoiser,) if self.traits.encodes_images else (self.denoiser, "vae")
        self.pipe = self._load(without)
        place_encoder(self.pipe, self.encoders, self.machine)

    def drop_encoder(self) -> None:
        self.pipe = None
        self._parking = Parking(None, 0.0, self.machine.device)
        collect()
        if self.machine.device.type == "cuda":
            torch.cuda.empty_cache()

    def load_denoiser(self) -> None:
        """Load transformer, VAE and scheduler, not the encoders. Raises ConfigError for unsupported settings."""
        check_lossy(self.machine.lossy, self.card.family)
        self.pipe = self._load(self.encoders)
        if self.pipe.scheduler.config.get("stochastic_sampling"):  # its noise is not from the image's generator
            raise ConfigError(f"{self.card.name}: `stochastic_sampling` of its scheduler needs the family `diffusers`")
        fuse_adapters(self.pipe, self.denoiser, self.card.lora, self.parts, self.card.name)
        place_denoiser(self.pipe, self.denoiser, self.machine)
        self._parking = Parking(getattr(self.pipe, self.denoiser), self.machine.parked_gb, self.machine.device)
        if hasattr(self.pipe.vae, "enable_slicing"):
            self.pipe.vae.enable_slicing()
        if self.remembers:
            self.pipe._encode_vae_image = remembering(self.pipe._encode_vae_image)

    def denoise(self, items: Sequence[Item]) -> torch.Tensor:
        """Return the latents of one batch of equal shapes. Each image's noise comes from its own CPU generator."""
        sampler = items[0].request.sampler
        generators = [torch.Generator("cpu").manual_seed(item.seed) for item in items]
        with torch.inference_mode(), attend(getattr(self.pipe, self.denoiser), self.machine):
            latents: torch.Tensor = self.pipe(
                **self.prompts(items),
                **self._size(sampler),
                **self.call(items, generators),
                num_inference_steps=sampler.num_inference_steps,
                generator=generators,
                output_type="latent",
                return_dict=False,
            )[0]
        return latents

    def pixels(self, latents: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        """Decode each image separately. Returns uint8 (B, height, width, 3) on the device, and sets `finite`."""
        with self._parking.away(), torch.inference_mode():
            decoded = [self.latents_to_pixels(latents[i : i + 1], sampler) for i in range(len(latents))]
            self.finite = torch.stack([pixels.isfinite().all() for pixels in decoded])
            return torch.cat([as_rgb8(pixels) for pixels in decoded])

    def decode(self, latents: torch.Tensor, sampler: Sampler) -> list[Image.Image]:
        """Decode a batch to images, see `pixels`."""
        return [Image.fromarray(image) for image in self.pixels(latents, sampler).cpu().numpy()]

    drop_denoiser = drop_encoder

    @classmethod
    def save(cls, folder: Path, parts: dict[str, Any]) -> None:
        """Save a pipeline of these components in the Hub's layout."""
        cls.assemble(parts).save_pretrained(folder)

    @classmethod
    def assemble(cls, parts: dict[str, Any]) -> Any:
        """Create the pipeline from its components, by name."""
        return cls.pipeline(**parts)

    # ---- for use by families

    def to_latents(self, input_image: InputImage, sampler: Sampler) -> torch.Tensor:
        """The mode of the VAE's latent distribution for an input image, which is resized to the result's size as the
        pipeline does."""
        vae, processor = self.pipe.vae, self.pipe.image_processor
        image = processor.resize(input_image.pixels, sampler.height, sampler.width)
        pixels = processor.preprocess(image, sampler.height, sampler.width)  # (1, 3, height, width) in [-1, 1]
        with torch.inference_mode():
            mode: torch.Tensor = vae.encode(pixels.to(self.machine.device, vae.dtype)).latent_dist.mode()
        return mode

    # ---- internal

    def _size(self, sampler: Sampler) -> dict[str, int]:
        return {"height": sampler.height, "width": sampler.width}

    def _load(self, without: Sequence[str]) -> Any:
        if self.weights is None:
            pipe = self.assemble(components(self.card, self.machine.device, self.machine.dtype, tuple(without)))
        else:
            with loading(str(self.weights)), complete(unused=("lm_head.",)):  # encoders predict no words
                pipe = self.pipeline.from_pretrained(
                    self.weights,
                    dtype=self.machine.dtype,
                    local_files_only=True,
                    use_safetensors=True,
                    **dict.fromkeys((*without, *self.unused)),
                )
                check_complete(pipe)
        pipe.set_progress_bar_config(disable=True)
        return pipe


class Inpainting(Staged):
    """To be combined with a family: source and mask are arguments of the pipeline's call.

    Each of these pipelines samples the latents of the source, and of the source without its masked part, with the
    image's own generator, before and after it draws the noise. These latents therefore depend on the image's seed and
    cannot be encoded once for several images: the VAE, which is loaded with the transformer, encodes them in the call.
    It encodes each image of a batch alone. The pipeline resizes the mask to the result, converts it to luminance and
    sets it to 0 or 1 at one half: a soft edge becomes a hard one.
    """

    def call(self, items: Sequence[Item], generators: list[torch.Generator]) -> dict[str, Any]:
        masks = [item.request.mask for item in items]
        return super().call(items, generators) | {
            "image": [item.request.input_images[0].pixels for item in items],
            "mask_image": [mask.pixels.convert("L") for mask in masks if mask is not None],
            # The masked part starts from pure noise and every step is run. The default of diffusers' SD3 and Qwen-Image
            # pipelines is 0.6, which keeps part of what the mask covers and runs 60 % of the steps.
            "strength": 1.0,
        }


def remembering(read: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """A pipeline's `_encode_vae_image` that encodes each image of a batch alone, and each distinct one once: the
    latents of the last 16, by the bytes of their pixels, stay on the device (0.5 MB each at 1 megapixel)."""
    known: OrderedDict[bytes, torch.Tensor] = OrderedDict()

    def one(pixels: torch.Tensor) -> torch.Tensor:
        key = pixels.float().cpu().numpy().tobytes()
        if key not in known:
            known[key] = read(image=pixels, generator=None)  # the mean: uses no random numbers
            if len(known) > 16:
                known.popitem(last=False)
        known.move_to_end(key)
        return known[key]

    def encode(image: torch.Tensor, generator: Any) -> torch.Tensor:
        return torch.cat([one(image[i : i + 1]) for i in range(image.shape[0])])

    return encode


def _of_size(encoded: EncodedPrompt, height: int, width: int) -> EncodedPrompt:
    """An encoded image whose latents have the size of `height` x `width` pixels; their values do not matter."""
    size = (height // 8, width // 8)
    tensors = {
        name: torch.nn.functional.interpolate(t, size) if t.dim() == 4 else t for name, t in encoded.tensors.items()
    }
    return EncodedPrompt(tensors)


def check_complete(pipe: Any) -> None:
    """Raise ValueError if a component's files lack weights: diffusers leaves these on the device "meta"."""
    for component, part in pipe.components.items():
        weights = part.named_parameters() if isinstance(part, torch.nn.Module) else ()
        if lacking := [name for name, weight in weights if weight.is_meta]:
            raise ValueError(f"its files lack weights of {component}: {lacking[0]}, {len(lacking)} in all")


def as_rgb8(pixels: torch.Tensor) -> torch.Tensor:
    """Convert pixels in [-1, 1], (B, 3, height, width), to uint8 (B, height, width, 3) on their device.

    The bytes equal those of diffusers' `VaeImageProcessor.postprocess`, which rounds on the host.
    """
    unit = (pixels * 0.5 + 0.5).clamp(0, 1)
    return (unit.permute(0, 2, 3, 1).float() * 255).round().to(torch.uint8)


def family(name: str) -> type[Staged]:
    """Import a family's class. Raises ConfigError if the family does not exist."""
    package = "local_bench.generators." if name in BUILT_IN else ""
    cls: type[Staged] = load_object(package + traits(name).implementation, f"the family {name!r}")
    return cls


def save_small(folder: Path, card: ModelCard) -> None:
    """Build the card's model in float32 on the CPU and save it to `folder` in the Hub's layout."""
    family(card.family).save(folder, components(card, "cpu", torch.float32))


T = TypeVar("T")
PROBE_STEPS = 2
"""Qwen-Image's schedule divides by zero with one step."""


def deal(items: Sequence[T], size: int, order: str) -> list[list[T]]:
    """Split `items` into batches of at most `size`: in the given order, in reverse, or shuffled with a fixed seed."""
    items = list(items)
    if order == "reverse":
        items.reverse()
    elif order == "shuffle":
        random.Random(0).shuffle(items)  # noqa: S311  # an order, not a secret
    return [items[i : i + size] for i in range(0, len(items), size)]


def padded(items: Sequence[T], size: int) -> list[T]:
    """Pad `items` to `size` by repeating the last one."""
    return [*items, *[items[-1]] * (size - len(items))]


def warm_up(generator: Staged, item: Item, batch_size: int) -> None:
    """Run the model for a few steps on the canonical form of `item`, so that its blocks are compiled here."""
    for short in generator.compiled_forms(_short(item)):
        latents = generator.denoise([short] * batch_size)
    generator.decode(latents, short.request.sampler)


def batch_is_neutral(generator: Staged, items: Sequence[Item], batch_size: int) -> bool:
    """Whether an image's bytes are independent of its position in the batch and of the other images (batch invariance).

    Runs two steps of the real model at the real shape on this machine and compares latents and decoded pixels bit for
    bit. All `items` must have one shape; one item is enough.
    """
    probe = replace(_short(items[0]), seed=seed_of("probe"))
    others = [
        replace(_short(items[i % len(items)]), seed=seed_of(f"neighbour {i}")) for i in range(1, 2 * batch_size - 1)
    ]
    repeated = [probe] * batch_size
    first = [probe, *others[: batch_size - 1]]
    last = [*others[batch_size - 1 :], probe]
    results = []
    for batch, slot in ((repeated, 0), (first, 0), (last, batch_size - 1)):
        latents = generator.denoise(batch)
        image = generator.decode(latents, probe.request.sampler)[slot]
        results.append((latents[slot].cpu(), image.tobytes()))
    return all(torch.equal(latents, results[0][0]) and pixels == results[0][1] for latents, pixels in results)


def _short(item: Item) -> Item:
    sampler = replace(item.request.sampler, num_inference_steps=PROBE_STEPS)
    return replace(item, request=replace(item.request, sampler=sampler))
