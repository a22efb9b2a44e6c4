"""The core data types: task, deliverable, question, verdict, score, decision; the events of work on a device that runs
in another function, process or machine than what shows and stores it; and the identities and seeds of work items
(invariant 1): the digest of everything that determines an item's bytes."""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

_ENCODER = json.JSONEncoder(sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)
"""Created once: `json.dumps` creates an encoder per call, which takes longer than encoding a small value."""
canonical_json: Callable[[Any], str] = _ENCODER.encode
"""The canonical JSON text of a value: sorted keys, no spaces, UTF-8. Raises ValueError for NaN and infinities."""
NOT_FINITE = "the model produced values that are not finite"
"""Reason for a candidate whose latents contain infinities or NaN: a failure of the model, not of the task."""
MAX_SCORE = 1e15
"""No score is larger, or smaller than its negative, so that sums and squares over a run are finite."""
LEAST_PROBABILITY = 1e-30
"""Of an image's inclusion in a sample; its annotations are weighted by the inverse. Prices differ by 1e15 at most."""
UNSUPPORTED = "not supported: "
"""Prefix of the reason for a task that the model does not support."""
Unsupported = Literal["text_only", "unscored", "skip"]
"""What a model does with a task that has more input images than it takes (`suite.unsupported`)."""


@dataclass(frozen=True)
class Task:
    """One task: the client's request and its price."""

    task_id: str
    category: str
    price_micro_usd: int
    title: str
    brief: str
    deliverables: tuple[str, ...]
    """Description of each requested image, one line per image."""
    evaluation_points: tuple[str, ...]
    source_sha256: str | None = None
    """Pixel digest of the source image to edit, if any."""
    reference_sha256: tuple[str, ...] = ()
    rules: tuple[dict[str, Any], ...] = ()
    """Hard rules of each deliverable (`core.hardrules.HardRules`); empty if the task has none."""
    notes: tuple[str, ...] = ()
    """Warnings about missing but optional data, one sentence each."""
    unscored: str | None = None
    """Why the task cannot be run at all, in one sentence."""
    mask_sha256: str | None = None
    """Pixel digest of a mask, white where the source should be changed."""
    caption: str | None = None
    """Caption of the finished image for text-image metrics; None: the prompt is the caption, "": no caption."""
    size: tuple[int, int] | None = None
    """Requested (width, height) in pixels; a model that chooses its size uses this aspect ratio."""
    metrics: tuple[str, ...] = ()
    """The benchmark's metrics that apply to this task's images."""
    own: dict[str, Any] = field(default_factory=dict)
    """Benchmark-specific data, as JSON; `parts` contains the subsets of the benchmark that the task belongs to."""

    @property
    def input_images(self) -> tuple[str, ...]:
        """Pixel digests of the source image, if any, and the references."""
        return (*(() if self.source_sha256 is None else (self.source_sha256,)), *self.reference_sha256)

    @property
    def content(self) -> dict[str, Any]:
        """The task as JSON. The fields from `mask_sha256` on are included only if they are set, so that the digests of
        older tasks do not change."""
        later = ("mask_sha256", "caption", "size", "metrics", "own")
        return {name: value for name, value in asdict(self).items() if name not in later or value not in (None, (), {})}


@dataclass(frozen=True)
class Deliverable:
    """One image that a task requests."""

    task_id: str
    index: int
    """From 1."""
    prompt: str
    """The exact prompt of the generator."""
    input_images: tuple[str, ...] = ()
    """Pixel digests of the input images: the source image first, then references."""
    mask: str | None = None
    """Pixel digest of the mask, if the model has a mask input; it is then not in `input_images`."""


@dataclass(frozen=True)
class Collage:
    """A layout of a question's images as one image, as in IDEA-Bench."""

    rows: tuple[int, ...] = ()
    """Number of images in each row: the inputs above, the outputs below."""
    count: int | None = None
    """Instead of images: a card with this number of images as text."""


@dataclass(frozen=True)
class Question:
    """One question to the judge about images."""

    rubric: str
    point: int
    """Index of the evaluation point, from 0; 0 if there is only one."""
    images: tuple[str, ...]
    """Pixel digests, in display order."""
    slots: tuple[tuple[str, str], ...]
    """(name, text) of the rubric's slots."""
    roles: tuple[str, ...] = ()
    """The role of each image: result, source, mask, reference. Empty if the rubric defines no roles."""
    repeat: int = 0
    """Index of the repetition of the same question, from 0."""
    collage: Collage | None = None
    """The layout of the images as one image; None: separate images."""


@dataclass(frozen=True)
class Verdict:
    """The result of a question: either an `answer` that fits the rubric's schema, or the reason why it is unscored."""

    answer: dict[str, Any] | None
    unscored: str | None
    raw: str
    """The judge's unparsed output."""
    labels: dict[str, dict[str, float]] | None = None
    """With the `logit` protocol: criterion -> label -> probability; the probabilities of a criterion sum to 1."""

    def __post_init__(self) -> None:
        assert (self.answer is None) != (self.unscored is None)

    def value(self, field: str) -> float | None:
        """The value of `field`: the expectation over its label probabilities, or else the answer; None if missing."""
        if self.labels is None or field not in self.labels:
            return None if self.answer is None or field not in self.answer else float(self.answer[field])
        return sum(float(label) * p for label, p in self.labels[field].items())

    def variance(self, field: str) -> float | None:
        """The variance of the label distribution of `field`; None without label probabilities."""
        if self.labels is None or field not in self.labels:
            return None
        mean = self.value(field)
        assert mean is not None
        return sum((float(label) - mean) ** 2 * p for label, p in self.labels[field].items())


@dataclass(frozen=True)
class GroundTruth:
    """The ground truth of one delivered image, in a suite that can compute it from pixels."""

    answers: dict[tuple[str, int], dict[str, Any] | None]
    """(rubric, point) -> the correct answer; None if it is undefined."""
    match: float
    """Fraction of the request that the image fulfils, 0 to 1."""

    @property
    def right(self) -> bool:
        """Whether the image fulfils the request completely, so that the client pays."""
        return self.match == 1


@dataclass(frozen=True)
class Score:
    """A value, or the reason why it is unscored (invariant 5: never 0, never dropped), or `applies=False`."""

    name: str
    value: float | None
    unscored: str | None = None
    applies: bool = True
    spread: float | None = None
    """Standard deviation of `value` under the judge's label probabilities; None without probabilities."""

    def __post_init__(self) -> None:
        assert (self.value is not None) + (self.unscored is not None) + (not self.applies) == 1


@dataclass(frozen=True)
class Decision:
    """Whether the client pays for a deliverable: True, False, or None with the reason why it is undecided."""

    accepted: bool | None
    unscored: str | None = None

    def __post_init__(self) -> None:
        assert (self.accepted is None) == (self.unscored is not None)


@dataclass(frozen=True)
class PhaseStarted:
    """A phase with a progress bar."""

    what: str
    total: int


@dataclass(frozen=True)
class PhaseAdvanced:
    n: int


@dataclass(frozen=True)
class Message:
    sentence: str


@dataclass(frozen=True)
class TimeCharged:
    """The time since the last charge, up to `now_ns` of the monotonic clock, was spent on `phase`."""

    phase: str
    n_items: int
    now_ns: int
    energy_mj: int | None = None
    """The device's energy in that time, if the worker has read it."""


@dataclass(frozen=True)
class ScoresComputed:
    """Metric scores: (key of the subject, score)."""

    rows: list[tuple[str, Score]]


def json_lines(rows: Sequence[Sequence[Any]], encode: Callable[[Any], str] = canonical_json) -> list[str]:
    """The compact JSON text of each row, a list or tuple; by default the canonical one. One call of the encoder for all
    rows is several times faster than one for each."""
    lines = encode(rows)[1:-1].replace("],[", "]\n[").split("\n")  # JSON text has no newline of its own
    return lines if len(lines) == len(rows) else [encode(row) for row in rows]  # "],[" also occurs within a row


def digest(value: Any) -> str:
    """sha256 (64 hex digits) of the canonical JSON of `value`."""
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()


def full_identity(work_id: str, numerics: dict[str, Any]) -> str:
    """The identity of a work item on a machine with this numerics signature: equal identities mean equal bytes."""
    return digest({"work": work_id, "numerics": numerics})


def seed_of(work_id: str) -> int:
    """The 63-bit seed of a work item, derived from its machine-independent identity.

    The run's seed is part of that identity, so the result depends on it.
    """
    return int.from_bytes(hashlib.sha256(f"seed:{work_id}".encode()).digest()[:8], "big") >> 1
