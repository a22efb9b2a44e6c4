"""What a metric is: what it looks at, what it says of it, and what of its work can be shared.

A metric looks at a Subject: one image and what belongs to it. There are two kinds. A `HostMetric` reads pixels on the
CPU. A `NetworkMetric` is arithmetic on arrays that a `Network` read off pictures or words; such an array is made once
for (Look, Network) and serves every metric that asks for it, in this run and in later ones.
"""

from abc import ABC, abstractmethod
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from local_bench.core.identity import digest
from local_bench.core.images import MAX_PIXELS, load_image, load_verified, pixel_digest

Array = NDArray[np.float32]
Need = Literal["caption", "source", "reference"]

ABSENT: dict[Need, str] = {
    "caption": "there is no caption to compare it with",
    "source": "there is no source picture to compare it with",
    "reference": "there is no reference picture to compare it with",
}
"""Why a metric that needs something says nothing where it is not there."""


class Unscorable(Exception):
    """This metric has no number for this subject; the message is the reason, one clause without a full stop."""


@dataclass(frozen=True)
class MetricSpec:
    """A metric's identity: what it is, how pictures are prepared for it, and which way is better."""

    name: str
    higher_is_better: bool
    preprocessing: str
    """Size, filter, colour space and order of every step between the RGB8 pixels and the arithmetic."""
    source: str
    """Paper or code, and the equation."""
    needs: tuple[Need, ...] = ()
    """What must belong to a subject besides its image."""
    lowest: float | None = None
    highest: float | None = None
    """Between which values it lies; None where it is not bounded."""


@dataclass(frozen=True)
class Picture:
    """A picture by its file; read when it is looked at."""

    path: Path
    known_sha256: str | None = None
    """Its pixel digest, where that is known without reading it: then no file with other pixels is taken."""

    def load(self, max_pixels: int = MAX_PIXELS) -> Image.Image:
        """Canonical RGB8 pixels; ImageError says what is wrong with the file."""
        if self.known_sha256 is not None:
            return load_verified(self.path, self.known_sha256, max_pixels)
        image = load_image(self.path, max_pixels)
        self.__dict__.setdefault("sha256", pixel_digest(image))  # read once, named for good
        return image

    @cached_property
    def sha256(self) -> str:
        """Its pixel digest; reads the file where it is not known. ImageError as `load`."""
        return self.known_sha256 or pixel_digest(self.load())


@dataclass(frozen=True)
class Subject:
    """One image to be measured, and what belongs to it."""

    key: str
    """What its scores are entered under."""
    image: Picture
    source: Picture | None = None
    """The picture that was edited, or the condition that it was to follow."""
    mask: Picture | None = None
    """White where the source was to be changed."""
    references: tuple[Picture, ...] = ()
    caption: str | None = None

    @property
    def pictures(self) -> tuple[Picture, ...]:
        """All that belong to it, its image first."""
        return (self.image, *(p for p in (self.source, self.mask) if p), *self.references)

    def absent(self, needs: Sequence[Need]) -> str | None:
        """Why a metric with these needs cannot say anything; None where all is there."""
        there = {"caption": bool(self.caption), "source": bool(self.source), "reference": bool(self.references)}
        return next((ABSENT[need] for need in needs if not there[need]), None)


@dataclass(frozen=True)
class FeatureInput:
    """What a network reads one array off: some pictures in an order of its own, or words."""

    pictures: tuple[Picture, ...] = ()
    text: str | None = None

    @cached_property
    def key(self) -> str:
        """sha256 of what it consists of. ImageError where a picture cannot be read."""
        return digest({"pictures": [picture.sha256 for picture in self.pictures], "text": self.text})


class Network(ABC):
    """A model that reads arrays off looks. Light until `open`; whoever opens it closes it."""

    batch_size: ClassVar[dict[str, int]] = {"cpu": 1, "cuda": 1}
    """The one fixed batch by device type, by measurement; 1 for inputs whose sizes differ."""
    reads_words: ClassVar[bool] = False
    """Whether it reads arrays off words too."""
    max_pixels: ClassVar[int] = MAX_PIXELS
    """Of a picture; a larger one is unscored. Less than the loader's cap where pictures are taken in their own size."""
    portable: bool = False
    """Whether its arrays are the same on every CPU, but for float64 rounding."""
    on_cpu: bool = False
    """Whether it runs on the CPU whatever the device is."""

    @property
    @abstractmethod
    def key(self) -> Hashable:
        """Metrics whose networks have the same key share one."""

    @property
    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """All that decides its arrays but device, software and batch: model, weights digest, preprocessing, dtype."""

    @abstractmethod
    def open(self, device: str) -> None:
        """Loads the weights onto the device."""

    @abstractmethod
    def close(self) -> None:
        """Lets the weights go."""

    @abstractmethod
    def prepare(self, images: Sequence[Image.Image], text: str | None) -> Any:
        """A look's input, on the CPU. Runs in threads of a pool, after `open`. Unscorable where it cannot be one."""

    @abstractmethod
    def run(self, prepared: Sequence[Any]) -> list[Array]:
        """One array for each; inputs of one call are alike (all pictures or all words) and as many as the batch size.

        An array may have any shape, also none of anything (shape (0, …)), but the same for the same input always.
        """


class Metric(ABC):
    """Says one number of a subject, or why it has none."""

    spec: MetricSpec


class HostMetric(Metric):
    """Reads pixels on the CPU; called from threads of a pool."""

    @abstractmethod
    def measure(self, seen: "LoadedSubject") -> float:
        """The number. Unscorable where there is none; ImageError where a picture of it cannot be read."""


class NetworkMetric(Metric):
    """Arithmetic on what a network read."""

    network: Network

    @abstractmethod
    def looks(self, subject: Subject) -> tuple[FeatureInput, ...]:
        """What must be read, in the order of `value`'s arrays; `subject` has all that the metric needs."""

    @abstractmethod
    def value(self, arrays: Sequence[Array]) -> float:
        """The number. Unscorable where there is none."""


class LoadedSubject:
    """A subject whose pictures are read at most once, however many host metrics look at it."""

    def __init__(self, subject: Subject) -> None:
        self._subject = subject

    @property
    def caption(self) -> str:
        assert self._subject.caption
        return self._subject.caption

    @property
    def has_source(self) -> bool:
        return self._subject.source is not None

    @cached_property
    def image(self) -> Image.Image:
        return self._subject.image.load()

    @cached_property
    def source(self) -> Image.Image:
        assert self._subject.source
        return self._subject.source.load()

    @cached_property
    def mask(self) -> Image.Image | None:
        """In its own size, one channel; None where there is none."""
        return self._subject.mask.load().convert("L") if self._subject.mask else None

    @cached_property
    def references(self) -> tuple[Image.Image, ...]:
        return tuple(reference.load() for reference in self._subject.references)

    @cached_property
    def image_as_source(self) -> Image.Image:
        """The image in the source's size (bicubic with antialiasing), as ICE-Bench compares them."""
        size = self.source.size
        return self.image if self.image.size == size else self.image.resize(size, Image.Resampling.BICUBIC)
