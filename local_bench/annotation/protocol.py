"""Annotation protocols: YAML files that define what annotators see and answer, and how many of them; the items that
they judge (images of a task, without any information about the model), and their answers.

A protocol shows one image, the images of a task as a set, or two sets of the same task. Its fields are answered for
every image or once for the item. Protocols of a lab are files `protocols/*.yaml` in its config folders.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from pydantic import Field, model_validator

from local_bench.core.errors import ConfigError, hint
from local_bench.core.files import refuse_own, user_config_dirs
from local_bench.core.types import digest
from local_bench.core.yamlfile import Strict, load_yaml

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


FOLDER = Path(__file__).parent / "protocols"
OVERALL = "overall"
PREFERRED = "preferred"
POINT = "point_{}"
LANGUAGES = {"en": "English", "zh": "中文"}
"""Code -> name."""
Value = bool | int | str
_RESERVED = "zcntgsfd?+-[]"
"""Keys of the page itself; an option cannot have them."""


class Text(Strict):
    """A text in the interface's languages; without `zh` the English text is shown."""

    en: str
    zh: str | None = None

    def get(self, language: str) -> str:
        return (self.zh if language == "zh" else None) or self.en


class Option(Strict):
    """One possible answer."""

    value: Value
    key: str = Field(min_length=1, max_length=1)
    """The key that selects it."""
    text: Text


class AnswerField(Strict):
    """One question of the protocol."""

    name: str = Field(pattern=r"[a-z][a-z0-9_]{0,39}")
    """Name of the score, as in files of annotations: `overall`, `brf`, …"""
    text: Text
    options: list[Option] = Field(min_length=2)
    compares: bool = False
    """Whether it compares an image with the source image or the others of its set; left out where there is neither."""

    @model_validator(mode="after")
    def _check(self) -> "AnswerField":
        for what, values in (("key", [o.key for o in self.options]), ("value", [repr(o.value) for o in self.options])):
            twice = next((value for value in values if values.count(value) > 1), None)
            if twice is not None:
                raise ValueError(f"two options of {self.name} have the {what} {twice}")
        reserved = next((o.key for o in self.options if o.key in _RESERVED), None)
        if reserved is not None:
            raise ValueError(f"the key {reserved} is used by the page: choose another for an option of {self.name}")
        return self

    @property
    def values(self) -> list[Value]:
        return [option.value for option in self.options]


class Reason(Strict):
    """A tag that an annotator can add to an answer, or a reason why an image cannot be judged."""

    id: str = Field(pattern=r"[a-z][a-z0-9_]{0,39}")
    text: Text


class Protocol(Strict):
    """One annotation protocol."""

    id: str = Field(pattern=r"[a-z][a-z0-9-]{0,39}")
    version: int = Field(ge=1)
    source: str
    """The paper and section that the protocol follows."""
    title: Text
    shows: Literal["image", "set", "pair"]
    """One item: one image; the images of a task by one model in one attempt; two such sets side by side."""
    attempts: Literal["first", "all"] = "first"
    raters: int = Field(ge=1, le=100)
    """Number of annotators per item."""
    adjudicate: bool = False
    """Whether a further annotator answers the items on which the annotators disagree; that answer decides."""
    fields: list[AnswerField] = Field(default=[])
    """Answered for every image; with `pair` for the item. Empty with `points`."""
    points: bool = False
    """Instead of `fields`: one yes/no question per evaluation point or question of the task."""
    overall: Literal["field", "all", "none"] = "field"
    """Where the decision is: in the field `overall`; accepted if all fields are true; or the protocol has none."""
    reasons: list[Reason] = Field(default=[])
    cannot_tell: list[Reason] = Field(min_length=1)
    repeats: float = Field(0.05, ge=0, le=0.5)
    """Fraction of an annotator's items that are shown again later."""
    pairs_per_task: int | None = Field(None, ge=1)
    """With `pair`: number of pairs of models per task; None: all."""
    break_minutes: int = Field(45, ge=5)
    """The page suggests a break after this time."""
    show_points: bool = True
    """Whether the task's evaluation points are on the page; with `points` they are the questions."""
    guidelines: Text
    """Paragraphs are separated by empty lines; a line that starts with `- ` is an item of a list."""

    @model_validator(mode="after")
    def _check(self) -> "Protocol":
        names = [field.name for field in self.fields]
        if self.points == bool(self.fields):
            raise ValueError("a protocol has fields or points, not both")
        if len(set(names)) < len(names):
            raise ValueError("two fields have the same name")
        if self.overall == "field" and OVERALL not in names:
            raise ValueError("the field overall is missing: add it, or set overall to all or none")
        if self.overall == "all" and not all(set(field.values) == {True, False} for field in self.fields):
            raise ValueError("overall: all requires fields whose options are true and false")
        if self.shows == "pair" and (names != [PREFERRED] or set(self.fields[0].values) - {"left", "right", "tie"}):
            raise ValueError("a pair has the one field preferred with the options left, right and tie")
        if self.adjudicate and (self.overall == "none" or self.shows == "pair"):
            raise ValueError("adjudicate requires a protocol with a decision")
        return self

    @property
    def questions(self) -> dict[str, Any]:
        """All that an answer depends on: everything but the version and the keys."""
        return self.model_dump(exclude={"version": True, "fields": {"__all__": {"options": {"__all__": {"key"}}}}})

    @property
    def scores(self) -> bool:
        """Whether any field is a number rather than a decision or a preference."""
        return any(isinstance(value, int) and not isinstance(value, bool) for f in self.fields for value in f.values)

    @property
    def whole_set(self) -> bool:
        """Whether a question is about the set, so that a sampled image is shown with the others of its set."""
        return self.points or any(field.compares for field in self.fields)

    def fields_of(self, points: tuple[str, ...], compared: bool = True) -> list[AnswerField]:
        """The fields of an item; `points` are the task's evaluation points, `compared` is whether the item has a source
        image or several images."""
        if not self.points:
            return [field for field in self.fields if compared or not field.compares]
        yes, no = Text(en="Yes", zh="是"), Text(en="No", zh="否")
        options = [Option(value=True, key="y", text=yes), Option(value=False, key="x", text=no)]
        return [
            AnswerField(name=POINT.format(i), text=Text(en=text), options=options) for i, text in enumerate(points, 1)
        ]

    def decision(self, answer: dict[str, Any]) -> bool | None:
        """Whether these values of the fields accept the image; None if the protocol has no decision."""
        if self.overall == "none":
            return None
        return bool(answer[OVERALL]) if self.overall == "field" else all(answer[field.name] for field in self.fields)


@cache
def load_protocol(name: str) -> Protocol:
    """The protocol of that name, or in the file of that path. ConfigError for an unknown name or an invalid file."""
    files = protocol_files()
    if name not in files and not name.endswith((".yaml", ".yml")):
        suggestion = hint(name, files, f"available: {', '.join(files)}; or give the path of a YAML file")
        raise ConfigError(f"unknown annotation protocol {name!r}: {suggestion}")
    path = files.get(name, Path(name))
    if path.parent == FOLDER:
        refuse_own(f"protocols/{name}.yaml", "protocol")
    protocol = load_yaml(path, Protocol)
    if name in files and protocol.id != name:
        raise ConfigError(f"{path}: the protocol's id {protocol.id!r} must be the file's name")
    return protocol


def protocol_files() -> dict[str, Path]:
    """The protocols by name: those of the user's config folders, the first of which has precedence, and the shipped
    ones, which cannot be replaced."""
    folders = [*(folder / "protocols" for folder in reversed(user_config_dirs())), FOLDER]
    return {path.stem: path for folder in folders for path in sorted(folder.glob("*.yaml"))}
