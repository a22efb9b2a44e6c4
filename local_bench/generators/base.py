"""Data types of the three generation stages: encode, denoise, decode.

A family wraps a diffusers pipeline whose parts are loaded in stages. The encoders are loaded, used and released before
the transformer is loaded. The VAE (0.1 to 0.3 GB) stays loaded with the transformer, so that each batch is decoded,
written and committed as soon as it is generated, and because some pipelines (Qwen-Image-Edit, FLUX.2) encode their
input images with it while denoising.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import torch
from PIL import Image

from local_bench.core.images import pixel_digest
from local_bench.core.types import digest
from local_bench.generators.registry import Sampler


@dataclass(frozen=True)
class InputImage:
    """An input image: canonical RGB pixels and their digest."""

    sha256: str
    pixels: Image.Image = field(compare=False)


@dataclass(frozen=True)
class GenerationRequest:
    """Everything that defines one generated image, except its seed."""

    prompt: str
    sampler: Sampler
    input_images: tuple[InputImage, ...] = ()
    mask: InputImage | None = None
    """For inpainting families: white where the first image is to be changed."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be equal within a batch: the sampler settings and the sizes of the input images."""
        return (asdict(self.sampler), tuple(input_image.pixels.size for input_image in self.input_images))


@dataclass(frozen=True)
class EncodedPrompt:
    """An encoded prompt or image, stored on the CPU."""

    tensors: dict[str, torch.Tensor]
    """By the pipeline's argument names; the batch dimension has size 1."""
    truncated_tokens: dict[str, int] = field(default_factory=dict)
    """Number of prompt tokens that each encoder truncated."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be equal within a batch (Qwen's embeddings are not padded, so that no mask is needed)."""
        return tuple((name, *tensor.shape) for name, tensor in sorted(self.tensors.items()))


@dataclass(frozen=True)
class Item:
    """One image to generate."""

    request: GenerationRequest
    text: EncodedPrompt
    input_images: tuple[EncodedPrompt, ...]
    """The request's input images as the family encodes them; empty if it encodes them while denoising."""
    seed: int

    @property
    def shape(self) -> tuple[Any, ...]:
        return (self.request.shape, self.text.shape, tuple(p.shape for p in self.input_images))


@dataclass(frozen=True)
class Machine:
    """Device and execution settings. What changes bytes is part of the numerics signature."""

    device: torch.device
    dtype: torch.dtype
    attention: str
    compile: bool = False
    offload: tuple[str, ...] = ()
    """Phases whose weights are offloaded to host memory: "encode", "denoise". Copies change no bytes, but an offloaded
    transformer is not compiled."""
    parked_gb: float = 0.0
    """GB of the transformer's weights that leave the device while an image is decoded."""
    lossy: dict[str, Any] = field(default_factory=dict)
    """Settings that change the results, see `generators.registry`."""


def text_key(family: str, prompt: str, sampler: Sampler, input_images: Sequence[str] = ()) -> str:
    """Cache key of an encoded prompt; `input_images` are the digests of the images that the text encoder reads."""
    return digest(
        {
            "family": family,
            "prompt": prompt,
            "negative_prompt": sampler.negative_prompt,
            "guided": [(scale or 0) > 1 for scale in (sampler.guidance_scale, sampler.true_cfg_scale)],
            "max_sequence_length": sampler.max_sequence_length,
            "pictures": list(input_images),
        }
    )


def image_key(family: str, sha256: str, sampler: Sampler) -> str:
    """Cache key of an encoded image."""
    return digest({"family": family, "picture": sha256, "height": sampler.height, "width": sampler.width})


def tokens_over(tokenizer: Any, prompt: str, limit: int) -> int:
    """Number of tokens of `prompt` beyond an encoder's `limit`."""
    return max(0, len(tokenizer(prompt, truncation=False, verbose=False).input_ids) - limit)


def cat(
    tensors: Sequence[dict[str, torch.Tensor]], device: torch.device, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Concatenate dictionaries into one batch; floating-point tensors are cast to `dtype`, others (masks) are not."""
    joined = {name: torch.cat([t[name] for t in tensors]).to(device) for name in tensors[0]}
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in joined.items()}


def pasted_back(result: Image.Image, request: GenerationRequest) -> Image.Image:
    """The result with the source's own pixels outside the mask: black keeps the source, white the result, grey mixes
    them in 8 bits. Source and mask take the result's size by the filter of diffusers' image processor (Lanczos)."""
    assert request.mask is not None
    source, mask = (
        input_image.pixels.resize(result.size, Image.Resampling.LANCZOS)
        for input_image in (request.input_images[0], request.mask)
    )
    return Image.composite(result, source, mask.convert("L"))


def half_mask(sampler: Sampler) -> InputImage:
    """A mask of the result's size that is white in its left half, for timings and checks."""
    pixels = Image.new("RGB", (sampler.width, sampler.height))
    pixels.paste((255, 255, 255), (0, 0, sampler.width // 2, sampler.height))
    return InputImage(pixel_digest(pixels), pixels)


def gradient(kind: int, sampler: Sampler) -> Image.Image:
    """An input image of the result's size, one of several, for timings and checks."""
    bands = [Image.linear_gradient("L").rotate(90 * (kind + i)) for i in range(3)]
    return Image.merge("RGB", bands).resize((sampler.width, sampler.height))
