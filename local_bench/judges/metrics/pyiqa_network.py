"""One of pyiqa's networks, one picture a call: in float32, without TF32, from one seed for every picture.

A formula with fitted parameters is computed in float64 (float64.py).

pyiqa's transformers for many sizes gain nothing from batches, and its crops may be drawn at random (its issue #178); so
a picture is alone in its call, and whatever is drawn in it is drawn from the same seed. A score does then not depend on
neighbours or order. What pyiqa asserts of a picture (that it is large enough, that it has some contrast) is the reason
why that picture has no score.
"""

from collections.abc import Hashable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image

from local_bench.judges.metrics.base import Array, Network, Unscorable
from local_bench.judges.metrics.float64 import Float64
from local_bench.judges.metrics.pyiqa_cards import FORMULAS, Described, pyiqa_version
from local_bench.judges.metrics.pyiqa_scope import SEED, seeded
from local_bench.judges.metrics.pyiqa_store import Store
from local_bench.models.weights import weights_digest

MAX_PIXELS = 16_000_000
FITTED = frozenset(("BRISQUE", "NIQE"))
"""pyiqa's classes that are formulas with fitted parameters, not neural networks: float64 makes their scores the same on
every CPU. (NRQM's random forests compare features with thresholds, so no precision does.)"""
NOT_ON_CUDA = frozenset(("TReS", "URanker"))
"""pyiqa's classes that call what has no deterministic CUDA kernel (`cumsum` of floats, `histc`): under determinism that
is an error, and every picture would be unscored."""
_LONGEST_REASON = 120


class PyiqaNetwork(Network):
    """Reads one number off a picture, or off a picture and the source that it is compared with."""

    batch_size: ClassVar[dict[str, int]] = {"cpu": 1, "cuda": 1}
    max_pixels: ClassVar[int] = MAX_PIXELS

    def __init__(self, card: str, store: Store, height: int | None = None) -> None:
        """`height`: pictures are first brought to it, their width in proportion; as they are if left out."""
        self._card, self._store, self._height = card, store, height
        self.portable = in_float64(store.described)
        self.on_cpu = self.portable or store.described.kind in NOT_ON_CUDA
        self._dtype = torch.float64 if self.portable else torch.float32
        self._model: Any = None
        self._device = "cpu"

    @property
    def key(self) -> Hashable:
        return "pyiqa", str(self._store.folder), self._height

    @cached_property
    def identity(self) -> dict[str, Any]:
        folder = self._store.folder
        return {
            "network": "pyiqa",
            "pyiqa": pyiqa_version(),
            "metric": self._store.metric,
            "weights_sha256": weights_digest(folder) if folder else None,
            "preprocessing": preprocessing(self._store, self._height),
            "dtype": str(self._dtype).removeprefix("torch."),
            "seed": SEED,
        }

    def open(self, device: str) -> None:
        device = "cpu" if self.on_cpu else device
        self._model = self._store.load(self._card).to(device, self._dtype).net
        self._device = device

    def close(self) -> None:
        self._model = None

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> Any:
        """(image_13HW,), or (image_13HW, source_13HW) of one size; in [0, 1]."""
        return tuple(as_tensor(image, self._dtype) for image in sized(images, self._height))

    def run(self, prepared: Sequence[Any]) -> list[Array]:
        return [self._read(inputs) for inputs in prepared]

    def _read(self, inputs: Sequence[torch.Tensor]) -> Array:
        device = torch.device(self._device)
        flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
        with seeded(), flags, torch.inference_mode():
            value = called(self._model, [x.to(device) for x in inputs])
        return np.array([value], np.float32)


def in_float64(described: Described) -> bool:
    """Whether a metric of pyiqa's is a formula, which is computed in float64 and gives the same score on every CPU."""
    return described.name in FORMULAS or described.kind in FITTED


def preprocessing(store: Store, height: int | None = None) -> str:
    """In words, all that happens to a picture before pyiqa's own class has it, and which class that is."""
    first = ""
    if height is not None:
        first = (
            f"to height {height} and width int(width * {height} / height) by Pillow bicubic with antialiasing on RGB8; "
        )
    elif store.described.full_reference:
        first = "image to the source's size by Pillow bicubic with antialiasing on RGB8; "
    dtype = "float64" if in_float64(store.described) else "float32"
    return f"{first}RGB8 / 255, {dtype}, no other resize; then as in pyiqa {pyiqa_version()} `{store.metric}`"


def sized(images: Sequence[Image.Image], height: int | None = None) -> list[Image.Image]:
    """The pictures in the sizes in which they are looked at; of two, the first in the second's size.

    Unscorable where that would be none, or more than `MAX_PIXELS`.
    """
    image, *sources = images
    size = sources[0].size if sources else image.size
    if height is not None:
        size = int(image.width * height / image.height), height
    if not all(size):
        raise Unscorable(f"the image is too slender to be brought to a height of {height} pixels")
    if size[0] * size[1] > MAX_PIXELS:
        raise Unscorable(f"the image would have {size[0]}x{size[1]} pixels, more than the {MAX_PIXELS:,} allowed")
    resized = image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)
    return [resized, *sources]


def as_tensor(image: Image.Image, dtype: torch.dtype) -> torch.Tensor:
    """image_13HW: RGB8 / 255 in [0, 1]."""
    return torch.from_numpy(np.array(image)).permute(2, 0, 1)[None].to(dtype).div(255).contiguous()


def called(model: Any, inputs: Sequence[torch.Tensor]) -> float:
    """The number that pyiqa's network has for its inputs, computed in float64 where they are float64. Unscorable where
    pyiqa refuses them."""
    wide = any(x.dtype == torch.float64 for x in inputs)
    try:
        with Float64() if wide else nullcontext():
            found = model(*inputs)
    except (torch.OutOfMemoryError, torch.AcceleratorError):
        raise
    except (AssertionError, IndexError, RuntimeError, ValueError) as e:
        if "alloc" in str(e).lower() and "memory" in str(e).lower():
            raise Unscorable("there is not enough memory for a picture of this size") from e
        reason = (str(e).strip().splitlines() or [type(e).__name__])[0][:_LONGEST_REASON]
        raise Unscorable(f"pyiqa cannot measure it ({reason})") from e
    assert found.numel() == 1, f"one number of one picture, not {tuple(found.shape)}"
    return float(found)
