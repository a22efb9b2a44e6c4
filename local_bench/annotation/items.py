"""Items that annotators judge (images of a task), and the tasks themselves, without any information about the model."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, NamedTuple

from local_bench.core.identity import digest

Kind = Literal["answer", "repeat", "adjudication"]
Side = Literal["a", "b"]


class ItemImage(NamedTuple):
    """One image of an item; JSON has it as a list."""

    deliverable: int
    """From 1."""
    pixels_sha256: str


@dataclass(frozen=True)
class TaskView:
    """The parts of a task that annotators see."""

    task_id: str
    category: str
    title: str
    brief: str
    deliverables: tuple[str, ...]
    """Description of each requested image."""
    points: tuple[str, ...]
    """Evaluation points, or questions about the result."""
    source: str | None
    """Pixel digest."""
    references: tuple[str, ...]
    mask: str | None = None

    @property
    def images(self) -> tuple[str, ...]:
        """Pixel digests of the input images."""
        return tuple(image for image in (self.source, *self.references, self.mask) if image)


@dataclass(frozen=True)
class Item:
    """One unit of annotation. `images` are the result, or side `a` of a pair, whose side `b` is `other`."""

    protocol: str
    task_id: str
    images: tuple[ItemImage, ...]
    other: tuple[ItemImage, ...] = ()
    sampled: tuple[tuple[str, int, float], ...] = field(default=(), compare=False)
    """If the item is part of a sample: (model, deliverable, probability) of each image that was sampled."""
    gold: Mapping[str, Any] | None = field(default=None, compare=False)
    """Known answer: field -> value, by which annotators are checked."""

    @cached_property
    def item_id(self) -> str:
        """sha256 over the protocol, the task and the images' pixels: an identical image keeps its annotations."""
        return digest({"protocol": self.protocol, "task": self.task_id, "images": self.images, "other": self.other})

    @property
    def content(self) -> dict[str, Any]:
        """The item as JSON."""
        return {name: getattr(self, name) for name in ("task_id", "images", "other", "sampled", "gold")}

    @classmethod
    def from_content(cls, protocol: str, content: Mapping[str, Any]) -> "Item":
        images, other = (tuple(ItemImage(*image) for image in content[side]) for side in ("images", "other"))
        return cls(protocol, content["task_id"], images, other, tuple(map(tuple, content["sampled"])), content["gold"])


@dataclass(frozen=True)
class Answer:
    """An annotator's answer to an item."""

    values: Mapping[str, Mapping[str, Any]]
    """Deliverable ("1", …; "" for the whole item) -> field -> value; empty with `cannot_tell`."""
    cannot_tell: str | None = None
    """Reason id."""
    reasons: tuple[str, ...] = ()
    note: str = ""
    left: Side | None = None
    """The side of a pair that was shown on the left."""

    @property
    def content(self) -> dict[str, Any]:
        """The answer as JSON."""
        return dict(vars(self))

    @classmethod
    def from_content(cls, content: Mapping[str, Any]) -> "Answer":
        return cls(**{**content, "reasons": tuple(content["reasons"])})


@dataclass(frozen=True)
class StoredAnswer:
    """One answer in the database that has not been withdrawn."""

    given: Answer
    number: int
    """Increases with time."""
    annotator: str
    item_id: str
    kind: Kind
    elapsed_ms: int | None
    """Time for which the item was on the screen, as measured by the page."""
    saved_utc: str
