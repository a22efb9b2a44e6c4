"""Sampler settings. Imports no torch."""

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Sampler:
    """Sampler settings of an image; all are part of its work id. None: the model has no such setting."""

    height: int
    width: int
    num_inference_steps: int
    guidance_scale: float | None = None
    true_cfg_scale: float | None = None
    negative_prompt: str | None = None
    image_guidance_scale: float | None = None
    adapter_scale: float | None = None
    max_sequence_length: int | None = None
    paste_back: bool | None = None

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that the model has, as in a work id."""
        return {name: value for name, value in vars(self).items() if value is not None}
