"""What a family of generators does, in three stages: encode, then denoise, then decode.

A family is a diffusers pipeline used in parts. Its encoders are loaded, used and dropped before its transformer comes;
the VAE (0.1 to 0.3 GB) stays beside the transformer so that a batch is decoded, written and committed as soon as it is
made, and because some pipelines (Qwen-Image-Edit, FLUX.2) read their pictures through it while they denoise.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from PIL import Image

from local_bench.core.identity import digest
from local_bench.generators.sampler import Sampler


@dataclass(frozen=True)
class Picture:
    """An input picture, as canonical RGB pixels, with their digest."""

    sha256: str
    pixels: Image.Image = field(compare=False)


@dataclass(frozen=True)
class GenerationRequest:
    """All that one image is made from, but for its seed."""

    prompt: str
    sampler: Sampler
    pictures: tuple[Picture, ...] = ()
    mask: Picture | None = None
    """For a family that fills a mask: white where the first picture is to be changed."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be equal in a batch: the sampler and the sizes of the pictures."""
        return (self.sampler, tuple(picture.pixels.size for picture in self.pictures))


@dataclass(frozen=True)
class EncodedPrompt:
    """Something encoded once, on the CPU."""

    tensors: dict[str, torch.Tensor]
    """By the pipeline's own argument names, batch axis 1."""
    truncated_tokens: dict[str, int] = field(default_factory=dict)
    """How many tokens of the prompt each encoder did not see."""

    @property
    def shape(self) -> tuple[Any, ...]:
        """What must be equal in a batch (Qwen's text is as long as its prompt: no padding, so no mask)."""
        return tuple((name, *tensor.shape) for name, tensor in sorted(self.tensors.items()))


@dataclass(frozen=True)
class Item:
    """One image to make."""

    brief: GenerationRequest
    text: EncodedPrompt
    pictures: tuple[EncodedPrompt, ...]
    """The brief's pictures as the family encodes them; empty where it reads them while denoising."""
    seed: int

    @property
    def shape(self) -> tuple[Any, ...]:
        return (self.brief.shape, self.text.shape, tuple(p.shape for p in self.pictures))


@dataclass(frozen=True)
class Machine:
    """On what a family runs, and how; every field can change bytes and is part of the numerics signature."""

    device: torch.device
    dtype: torch.dtype
    attention: str
    compile: bool = False
    offload: tuple[str, ...] = ()
    """Parts that do not fit and stream in group by group: "encode", "denoise". A copy: changes no bytes."""
    lossy: dict[str, Any] = field(default_factory=dict)
    """What makes this another model: see `generators.lossy`."""


def text_key(family: str, prompt: str, sampler: Sampler, pictures: Sequence[str] = ()) -> str:
    """Names an encoded prompt by all that decides it; `pictures` are the digests of those that the encoder sees."""
    return digest(
        {
            "family": family,
            "prompt": prompt,
            "negative_prompt": sampler.negative_prompt,
            "guided": [(scale or 0) > 1 for scale in (sampler.guidance_scale, sampler.true_cfg_scale)],
            "max_sequence_length": sampler.max_sequence_length,
            "pictures": list(pictures),
        }
    )


def picture_key(family: str, sha256: str, sampler: Sampler) -> str:
    """Names an encoded picture by all that decides it."""
    return digest({"family": family, "picture": sha256, "height": sampler.height, "width": sampler.width})


def tokens_over(tokenizer: Any, prompt: str, limit: int) -> int:
    """How many tokens of `prompt` lie beyond an encoder's `limit`."""
    return max(0, len(tokenizer(prompt, truncation=False, verbose=False).input_ids) - limit)


def cat(
    tensors: Sequence[dict[str, torch.Tensor]], device: torch.device, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """One batch of several dictionaries; floating-point tensors in `dtype`, others (masks) as they are."""
    joined = {name: torch.cat([t[name] for t in tensors]).to(device) for name in tensors[0]}
    return {name: t.to(dtype) if t.is_floating_point() else t for name, t in joined.items()}
