"""pyiqa metrics: any by its name, `pyiqa:NAME`, and those of `NAMED`, computed in float32 by a network or in float64 by
a formula (`Float64`).

No-reference metrics use only the image; full-reference ones use the image, resized to the source's size as in
ICE-Bench, and the source. Range and direction are from pyiqa's table; bounds that it marks as rough are ignored.

pyiqa's transformers for variable sizes gain nothing from batches, and its crops may be random (its issue #178); so each
call has one image, TF32 is off, and it starts from the same seed. A score then does not depend on other images or on
their order. If pyiqa rejects an image (too small, without contrast), its message is the reason why it is unscored.
"""

import copy
import math
import threading
from collections.abc import Callable, Hashable, Sequence
from contextlib import nullcontext
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.overrides import TorchFunctionMode

from local_bench.core.errors import ConfigError, is_out_of_memory
from local_bench.judges.metrics.base import (
    NO_MEMORY,
    Array,
    HostMetric,
    LoadedSubject,
    MetricSpec,
    Network,
    Unscorable,
    Weights,
)
from local_bench.judges.metrics.pyiqa_cards import FORMULAS, NAMED, Described, Named, pyiqa_version
from local_bench.judges.metrics.pyiqa_store import SEED, Store, read_store, seeded
from local_bench.judges.metrics.registry import ArrayMetric, image_alone, image_and_source, number
from local_bench.models.weights import weights_digest

MAX_PIXELS = 16_000_000
FITTED = frozenset(("BRISQUE", "NIQE"))
"""pyiqa's classes that are formulas with fitted parameters, not neural networks: with float64 their scores are equal on
every CPU. (NRQM's random forests compare features with thresholds, so no precision suffices.)"""
NOT_ON_CUDA = frozenset(("TReS", "URanker"))
"""pyiqa's classes that call functions without a deterministic CUDA kernel (`cumsum` of floats, `histc`): in
deterministic mode these raise an error, and every image would be unscored."""
_LONGEST_REASON = 120
NOT_FINITE = "the metric gave no finite number"


def make(name: str, weights: Weights | None = None) -> "ArrayMetric | PyiqaFormula":
    """`pyiqa:NAME`, or the metric of a row as `metric` or `metric:card`. ConfigError if pyiqa has no such metric or it
    is not supported."""
    metric, _, variant = name.partition(":")
    row = NAMED[metric] if metric in NAMED else Named(variant, "")
    if weights is None:
        return PyiqaFormula(name, row)
    store = read_store(weights.folder)
    if store.metric != row.pyiqa_name:
        raise ConfigError(
            f"metrics: {weights.card.name} has the weights of pyiqa's {store.metric}, but {name} needs {row.pyiqa_name}"
        )
    network, spec = PyiqaNetwork(weights.card.name, store, row.height), _spec(name, store, row)
    inputs = image_and_source if store.described.full_reference else image_alone
    return ArrayMetric(spec, network, inputs, number, NOT_FINITE)


class PyiqaFormula(HostMetric):
    """A pyiqa metric that needs no file, on the CPU in float64.

    pyiqa's modules store results and settings of a call as attributes (PIQE its masks, MAD its channels, CW_SSIM its
    window), so each thread has its own copy.
    """

    def __init__(self, name: str, row: Named) -> None:
        self._store = Store(row.pyiqa_name)
        self._min_side = row.min_side
        self._making = threading.Lock()
        self._made: Any = None
        self._own = threading.local()
        self.spec = _spec(name, self._store, row)

    def measure(self, seen: LoadedSubject) -> float:
        if min(seen.image.size) < self._min_side:
            raise Unscorable(f"the image is smaller than {self._min_side} pixels on a side")
        images = [seen.image, seen.source] if "source" in self.spec.needs else [seen.image]
        with torch.inference_mode():
            value = called(self._network(), [as_tensor(image, torch.float64) for image in sized(images)])
        if not math.isfinite(value):
            raise Unscorable(NOT_FINITE)
        return value

    def _network(self) -> Any:
        """This thread's copy of pyiqa's module; the original is created once and never called."""
        if not hasattr(self._own, "network"):
            with self._making:
                if self._made is None:
                    self._made = self._store.build().net.double()
                self._own.network = copy.deepcopy(self._made)
        return self._own.network


def _spec(name: str, store: Store, row: Named) -> MetricSpec:
    described = store.described
    library = f"pyiqa {pyiqa_version()} `{store.metric}`"
    return MetricSpec(
        name,
        not described.lower_better,
        preprocessing(store, row.height),
        f"{row.source}; {library}" if row.source else library,
        ("source",) if described.full_reference else (),
        *(row.bounds or (described.lowest, described.highest)),
    )


class PyiqaNetwork(Network):
    """Computes one number from an image, or from an image and its source."""

    max_pixels: ClassVar[int] = MAX_PIXELS

    def __init__(self, card: str, store: Store, height: int | None = None) -> None:
        """`height`: images are first resized to it, with proportional width; None: not resized."""
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
        arrays = []
        for inputs in prepared:
            flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False)
            with seeded(), flags, torch.inference_mode():
                value = called(self._model, [x.to(self._device) for x in inputs])
            arrays.append(np.array([value], np.float32))
        return arrays


def in_float64(described: Described) -> bool:
    """Whether a pyiqa metric is a formula, which is computed in float64 and gives the same score on every CPU."""
    return described.name in FORMULAS or described.kind in FITTED


def preprocessing(store: Store, height: int | None = None) -> str:
    """Description of the preprocessing before pyiqa's own class, and the name of that class."""
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
    """The images in the sizes in which they are processed; of two, the first is resized to the second's size.

    Unscorable if the size would be empty, or more than `MAX_PIXELS`.
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
    """The value of pyiqa's network for its inputs, computed in float64 if they are float64. Unscorable if pyiqa rejects
    them or memory runs out."""
    wide = any(x.dtype == torch.float64 for x in inputs)
    try:
        with Float64() if wide else nullcontext():
            value = model(*inputs)
    except (AssertionError, IndexError, MemoryError, RuntimeError, ValueError) as e:
        if is_out_of_memory(e):
            raise Unscorable(NO_MEMORY) from e
        if isinstance(e, torch.AcceleratorError):
            raise
        reason = (str(e).strip().splitlines() or [type(e).__name__])[0][:_LONGEST_REASON]
        raise Unscorable(f"pyiqa cannot measure it ({reason})") from e
    assert value.numel() == 1, f"one number per image, not {tuple(value.shape)}"
    return float(value)


TOLERANCE = 2.0**-36
"""1.5e-11: above the float64 error of luma and its local mean (255 * 49 * 2^-53 is 1.4e-12), far below what two 8-bit
images can differ by after a 7x7 Gaussian (its least weight is 1e-4)."""

_MAKERS = frozenset(
    (torch.arange, torch.empty, torch.eye, torch.full, torch.linspace, torch.ones, torch.tensor, torch.zeros)
)
_ROUNDS = frozenset((Tensor.round, torch.round))
_BELOW = frozenset((Tensor.__lt__, Tensor.lt, torch.lt))
_ABOVE = frozenset((Tensor.__gt__, Tensor.gt, torch.gt))


class Float64(TorchFunctionMode):
    """A context in which torch computes in float64 and decisions do not depend on the last bit; for the calling thread.

    pyiqa's formulas are written for float32. Summation order, fused multiply-add and vectorised functions differ
    between instruction sets, so the last bits of a float32 result depend on the CPU. If a formula then rounds, compares
    or searches a table, the last bit can change visible digits: luma of exactly .5, the sign of (pixel - local mean) in
    a flat region, the nearest entry of a table of shape parameters. In this context

    - no function returns float32: dtypes that are requested or implied as float32 become float64 (`imresize` casts
      float64 to float32, `torch.arange` makes float32 tables, integers divide to float32);
    - `round` treats a value within `TOLERANCE` of .5 as .5 and rounds it to the even integer;
    - a comparison with 0 treats a value within `TOLERANCE` of 0 as 0.

    In float64 the error of these formulas' intermediate values (sums of some 50 products of 8-bit luma) is below 1e-11.
    The remaining difference between instruction sets is the rounding of float64.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        args = [_wide(value) for value in args]
        kwargs = {name: _wide(value) for name, value in (kwargs or {}).items()}
        if func in _ROUNDS:
            return _rounded(*args, **kwargs)
        if func in _BELOW and _with_zero(args):
            return args[0] < -TOLERANCE
        if func in _ABOVE and _with_zero(args):
            return args[0] > TOLERANCE
        if func is Tensor.float:
            func = Tensor.double
        result = func(*args, **kwargs)
        if not (isinstance(result, Tensor) and result.dtype == torch.float32):
            return result
        if func in _MAKERS:
            return func(*args, **kwargs | {"dtype": torch.float64})
        # integers were divided or averaged
        return func(*(value.double() if isinstance(value, Tensor) else value for value in args), **kwargs)


def _wide(value: Any) -> Any:
    """float32 as float64: a tensor, the dtype itself, either in a list or tuple."""
    if isinstance(value, Tensor):
        return value.double() if value.dtype == torch.float32 else value
    if type(value) in (list, tuple):
        return type(value)(map(_wide, value))
    return torch.float64 if value is torch.float32 else value


def _with_zero(args: Sequence[Any]) -> bool:
    return (
        isinstance(args[0], Tensor) and args[0].is_floating_point() and type(args[1]) in (int, float) and args[1] == 0
    )


def _rounded(x: Tensor) -> Tensor:
    half = torch.floor(2 * x + 0.5) / 2
    return torch.round(torch.where((x - half).abs() < TOLERANCE, half, x))
