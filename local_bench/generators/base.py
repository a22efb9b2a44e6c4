"""What a family of generators must do, in three stages that never share the device."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import torch
from PIL import Image


@dataclass(frozen=True)
class Sampler:
    """How a picture is sampled; all of it is part of the work's identity."""

    height: int
    width: int
    num_inference_steps: int
    guidance_scale: float
    max_sequence_length: int


@dataclass(frozen=True)
class Conditioning:
    """One encoded prompt, on the CPU."""

    tensors: dict[str, torch.Tensor]
    """By the pipeline's own argument names, batch axis 1."""
    truncated_tokens: dict[str, int]
    """How many tokens of the prompt each encoder did not see."""


@dataclass(frozen=True)
class Machine:
    """On what a family runs."""

    device: torch.device
    dtype: torch.dtype
    attention: str


class Generator(Protocol):
    """One model, in this order: `load_encoder`, `encode`…, `drop_encoder`, `load_denoiser`, (`denoise`, `decode`)…,
    `drop_denoiser`."""

    def __init__(self, weights: Path, machine: Machine) -> None: ...

    def load_encoder(self) -> None: ...

    def encode(self, prompt: str, sampler: Sampler) -> Conditioning:
        """One prompt at a time, so that its embedding cannot depend on others."""

    def drop_encoder(self) -> None: ...

    def load_denoiser(self) -> None: ...

    def noise(self, seed: int, sampler: Sampler) -> torch.Tensor:
        """Starting noise of one image from its own CPU generator, float32, batch axis 1."""

    def denoise(self, conditionings: Sequence[Conditioning], noise: torch.Tensor, sampler: Sampler) -> torch.Tensor:
        """Latents of a whole batch; `noise` has the batch's fixed shape and so has what comes out."""

    def decode(self, latents: torch.Tensor, sampler: Sampler) -> list[Image.Image]:
        """RGB8 images of a batch, each decoded alone."""

    def drop_denoiser(self) -> None: ...
