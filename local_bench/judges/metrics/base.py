"""Base classes for metrics and feature extractors.

A metric scores a `Subject`: one image with its inputs. There are two kinds. A `HostMetric` computes a value from pixels
on the CPU. A `NetworkMetric` computes it from feature arrays that a `Network` extracts from images or text. Each array
is computed once per (FeatureInput, Network), cached, and shared by all metrics and later runs.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from local_bench.core.errors import FAILED
from local_bench.core.images import MAX_PIXELS, load_image, load_mask, load_verified, pixel_digest
from local_bench.core.types import canonical_json, digest
from local_bench.models.cards import ModelCard
from local_bench.models.weights import weights_digest

Array = NDArray[np.float32]
Need = Literal["caption", "source", "reference"]

ABSENT: dict[Need, str] = {
    "caption": "there is no caption to compare it with",
    "source": "there is no source picture to compare it with",
    "reference": "there is no reference picture to compare it with",
}
"""Reasons for an unscored metric whose required input is missing."""


_ROUNDING = 1e-6
"""Rounding error of float32, relative for values above 1: a cosine of 1.0000001 is 1."""
NO_MEMORY = "there is not enough memory for a picture of this size"
"""Reason of a score for which memory ran out."""
NO_WEIGHTS = "the weights of this metric are not on this machine"
"""Reason of a score whose metric's weights are missing."""
FAULTY = "a picture of the run is "
"""Prefix of the reason if an image of the run is missing, damaged or altered."""
RETRIED = (NO_WEIGHTS, NO_MEMORY, FAULTY, FAILED)
"""Prefixes of the reasons of scores that the next session computes again."""


class Unscorable(Exception):
    """The metric has no value for this subject; the message is the reason, one clause without a full stop."""


@dataclass(frozen=True)
class MetricSpec:
    """A metric's identity: name, direction, preprocessing and source."""

    name: str
    higher_is_better: bool
    preprocessing: str
    """Size, filter, colour space and order of every step between the RGB8 pixels and the computation."""
    source: str
    """Paper or code, and the equation."""
    needs: tuple[Need, ...] = ()
    """Required inputs besides the image."""
    lowest: float | None = None
    highest: float | None = None
    """Bounds of the value; None if unbounded. A value beyond them is unscored."""

    def within(self, value: float) -> float | None:
        """The value, or the bound that it passes by rounding alone; None if it is outside the range or NaN."""
        lowest = -math.inf if self.lowest is None else self.lowest
        highest = math.inf if self.highest is None else self.highest
        nearest = min(max(value, lowest), highest)
        return nearest if abs(value - nearest) <= _ROUNDING * max(1.0, abs(nearest)) else None

    @property
    def range(self) -> str:
        """The range in words."""
        if self.lowest is not None and self.highest is not None:
            return f"from {self.lowest:g} to {self.highest:g}"
        return f"at least {self.lowest:g}" if self.lowest is not None else f"at most {self.highest:g}"


@dataclass(frozen=True)
class ImageFile:
    """A lazily loaded image file."""

    path: Path
    known_sha256: str | None = None
    """Expected pixel digest, if known; `load` then rejects a file with other pixels."""
    is_mask: bool = False
    """Whether a file that is not the run's own is read as a mask."""

    def load(self, max_pixels: int = MAX_PIXELS) -> Image.Image:
        """Load the image as canonical RGB8 pixels. Raises ImageError for a file that cannot be read."""
        if self.known_sha256 is not None:
            return load_verified(self.path, self.known_sha256, max_pixels)
        image = (load_mask if self.is_mask else load_image)(self.path, max_pixels)
        self.__dict__.setdefault("sha256", pixel_digest(image))  # sets the cached property
        return image

    @cached_property
    def sha256(self) -> str:
        """The pixel digest; loads the file if it is unknown. Raises ImageError as `load`."""
        return self.known_sha256 or pixel_digest(self.load())


@dataclass(frozen=True)
class Subject:
    """One image to be measured, with its inputs."""

    key: str
    """The key of its scores."""
    image: ImageFile
    source: ImageFile | None = None
    """The edited source image, or the condition image."""
    mask: ImageFile | None = None
    """White where the source should be changed."""
    references: tuple[ImageFile, ...] = ()
    caption: str | None = None

    @property
    def images(self) -> tuple[ImageFile, ...]:
        """All images of the subject, the measured image first."""
        return (self.image, *(p for p in (self.source, self.mask) if p), *self.references)

    def absent(self, needs: Sequence[Need]) -> str | None:
        """The reason why a metric with these needs cannot be computed; None if all inputs are present."""
        present = {
            "caption": bool(self.caption and self.caption.strip()),
            "source": bool(self.source),
            "reference": bool(self.references),
        }
        return next((ABSENT[need] for need in needs if not present[need]), None)


@dataclass(frozen=True)
class FeatureInput:
    """Input to one feature extraction: an ordered list of images, a text, or both."""

    images: tuple[ImageFile, ...] = ()
    text: str | None = None

    @cached_property
    def key(self) -> str:
        """sha256 of the content. Raises ImageError if an image cannot be read."""
        return digest({"pictures": [image.sha256 for image in self.images], "text": self.text})


@dataclass(frozen=True)
class Weights:
    """A model's files on this machine."""

    card: ModelCard
    folder: Path
    parts: dict[str, Path]


class Network(ABC):
    """A feature extraction model. Construction is cheap; `open` loads the weights, and its caller must call `close`."""

    batch_size: ClassVar[dict[str, int]] = {"cpu": 1, "cuda": 1}
    """The fixed batch size by device type, chosen by measurement; 1 for inputs of different sizes."""
    reads_text: ClassVar[bool] = False
    """Whether it also accepts text without images."""
    max_pixels: ClassVar[int] = MAX_PIXELS
    """Maximum pixels of an image; larger ones are unscored. Below the loader's limit if images are not resized."""
    portable: bool = False
    """Whether its arrays are equal on every CPU up to float64 rounding."""
    on_cpu: bool = False
    """Whether it always runs on the CPU."""

    @property
    def key(self) -> Hashable:
        """Networks with equal keys are shared between metrics."""
        return type(self), canonical_json(self.identity)

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Everything that determines its arrays except device, software and batch size: model, weights digest,
        preprocessing, dtype."""

    @abstractmethod
    def open(self, device: str) -> None:
        """Load the weights onto the device."""

    @abstractmethod
    def close(self) -> None:
        """Release the weights."""

    def tokens_if_cut(self, text: str) -> int | None:
        """The number of tokens that are read of a text, if it has more."""
        return None

    @abstractmethod
    def prepare(self, images: Sequence[Image.Image], text: str | None) -> Any:
        """Preprocess one input on the CPU. Called from a thread pool after `open`. Raises Unscorable for an invalid
        input."""

    @abstractmethod
    def run(self, prepared: Sequence[Any]) -> list[Array]:
        """Compute one array per input. The number of inputs is the batch size; all are images or all are text.

        An array may have any shape, also an empty one (0, …), which depends only on the input.
        """


class WeightsNetwork(Network):
    """A network of a card's files in float32. A subclass defines `model`, and `description` of its preprocessing."""

    model: str
    output: str | None = None
    """Description of its arrays."""
    description: str
    details: Mapping[str, Any] = MappingProxyType({})
    """What `identity` has besides these, or in their place."""
    _device: str = "cpu"
    _model: Any = None

    def __init__(self, weights: Weights) -> None:
        self._weights = weights

    @abstractmethod
    def load(self, device: str) -> Any:
        """The model on the device, in evaluation mode. WeightsError if the files do not contain it."""

    def open(self, device: str) -> None:
        self._device, self._model = device, self.load(device)

    def close(self) -> None:
        self._model = None

    @property
    def key(self) -> Hashable:
        return type(self), self._weights.folder, *self._weights.parts.values()

    @cached_property
    def identity(self) -> dict[str, Any]:
        named = {"model": self.model, "preprocessing": self.description, "dtype": "float32"}
        named |= {"output": self.output} if self.output else {}
        return named | {"weights": weights_digest(self._weights.folder, self._weights.parts), **self.details}


class Metric(ABC):
    """Computes one value per subject, or the reason why it is unscored."""

    spec: MetricSpec


class HostMetric(Metric):
    """A metric computed from pixels on the CPU; called from a thread pool."""

    @abstractmethod
    def measure(self, seen: "LoadedSubject") -> float:
        """Compute the value. Raises Unscorable if it has none, ImageError if one of its images cannot be read."""


class NetworkMetric(Metric):
    """A metric computed from a network's feature arrays."""

    network: Network

    @abstractmethod
    def inputs(self, subject: Subject) -> tuple[FeatureInput, ...]:
        """The inputs of the network, in the order of `value`'s arrays; `subject` has all inputs in `spec.needs`."""

    @abstractmethod
    def value(self, arrays: Sequence[Array]) -> float:
        """Compute the value. Raises Unscorable if it has none."""


class LoadedSubject:
    """A subject whose images are decoded at most once for all host metrics. Each use gets a copy, which a metric may
    change."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject
        self._decoded: dict[ImageFile, Image.Image] = {}

    def _load(self, file: ImageFile) -> Image.Image:
        if file not in self._decoded:
            self._decoded[file] = file.load()
        return self._decoded[file].copy()

    @property
    def caption(self) -> str:
        assert self._subject.caption
        return self._subject.caption

    @property
    def has_source(self) -> bool:
        return self._subject.source is not None

    @property
    def image(self) -> Image.Image:
        return self._load(self._subject.image)

    @property
    def source(self) -> Image.Image:
        assert self._subject.source
        return self._load(self._subject.source)

    @property
    def mask(self) -> Image.Image | None:
        """The mask in its own size with one channel, or None."""
        return self._load(self._subject.mask).convert("L") if self._subject.mask else None

    @property
    def references(self) -> tuple[Image.Image, ...]:
        return tuple(map(self._load, self._subject.references))

    @property
    def image_as_source(self) -> Image.Image:
        """The image resized to the source's size (bicubic with antialiasing), as in ICE-Bench."""
        return self._as_source.copy()

    @cached_property
    def _as_source(self) -> Image.Image:
        return self.image.resize(self.source.size, Image.Resampling.BICUBIC)
