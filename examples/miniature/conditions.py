"""What a drawing model is given besides noise: words as the pipelines encode them, and pools of latents.

A pool is drawn and encoded anew after a number of steps; which images it holds depends on its number only.
"""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from diffusers import AutoencoderKL

from examples.miniature import data, text, vae
from examples.miniature.loop import Machine
from local_bench.suites.printshop.phrases import Edit
from local_bench.suites.printshop.scene import Scene

POOL = 1536
POOL_STEPS = 150
"""An image is met about five times, in other words and other noise; encoding takes a tenth of the time."""


@dataclass(frozen=True)
class Drawn:
    """Captioned images of a pool."""

    scenes: list[Scene]
    latents: torch.Tensor
    """float32 [n, 16, 8, 8]."""


@dataclass(frozen=True)
class Edited:
    """Edits of a pool."""

    edits: list[Edit]
    sources: torch.Tensor
    targets: torch.Tensor


class Pools:
    """Latents for the steps of one stage."""

    def __init__(self, machine: Machine, seed: int) -> None:
        self._vae: AutoencoderKL = vae.trained(machine)
        self._device, self._seed = machine.device, seed
        self._drawn = lru_cache(1)(self._draw)
        self._edited = lru_cache(1)(self._edit)

    def drawn(self, step: int, two: float) -> Drawn:
        """Images, a share `two` of them of two figures."""
        return self._drawn(step // POOL_STEPS, two)

    def edited(self, step: int) -> Edited:
        return self._edited(step // POOL_STEPS)

    def _draw(self, number: int, two: float) -> Drawn:
        scenes, pixels = data.images(self._seed, number, POOL, two)
        return Drawn(scenes, vae.latents(self._vae, pixels, self._device))

    def _edit(self, number: int) -> Edited:
        edits, sources, targets = data.edits(self._seed, number, POOL // 2)
        both = (vae.latents(self._vae, pixels, self._device) for pixels in (sources, targets))
        return Edited(edits, *both)


class Words:
    """Prompts through the frozen encoders."""

    def __init__(self, machine: Machine) -> None:
        self.clip_words, self.t5_words, self.clip, self.t5 = text.trained(machine)
        self._device = machine.device

    @torch.no_grad()
    def flux(self, texts: list[str], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """T5's tokens [n, length, 128] without a mask, CLIP's pooled vector [n, 64]."""
        ids = self.clip_words(texts, padding=True, truncation=True, return_tensors="pt").input_ids.to(self._device)
        hidden = self.clip(ids).last_hidden_state
        return self._t5(texts, length), text.pooled(hidden, ids, self.clip_words)

    @torch.no_grad()
    def sd3(self, texts: list[str], length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """CLIP's tokens twice, side by side, then T5's [n, 40 + length, 128]; the projected vector twice [n, 128]."""
        ids = self.clip_words(texts, padding="max_length", truncation=True, return_tensors="pt").input_ids
        out = self.clip(ids.to(self._device), output_hidden_states=True)
        twice = torch.cat([out.hidden_states[-2]] * 2, -1)
        return torch.cat([twice, self._t5(texts, length)], 1), torch.cat([out.text_embeds] * 2, -1)

    def _t5(self, texts: list[str], length: int) -> torch.Tensor:
        ids = self.t5_words(texts, padding="max_length", max_length=length, truncation=True, return_tensors="pt")
        return self.t5(ids.input_ids.to(self._device))[0]


def sample_length(rng: np.random.Generator, share: float) -> int:
    """How many T5 tokens a batch has: the cards' number mostly, and what else people may set; the pipelines' own 512
    late and seldom, since it is dear."""
    if share > 0.8 and rng.random() < 0.02:
        return 512
    return text.TOKENS if rng.random() < 0.9 else int(rng.choice([40, 64, 128]))


def sample_sigmas(count: int, device: torch.device) -> torch.Tensor:
    """How noisy each image is, 0 to 1: 70 % logit-normal, 30 % even."""
    normal = torch.sigmoid(torch.randn(count))
    return torch.where(torch.rand(count) < 0.7, normal, torch.rand(count)).to(device)
