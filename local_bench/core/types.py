"""The nouns of the house. Frozen, typed, units in the names."""

from dataclasses import asdict, dataclass, field
from typing import Any

from local_bench.core.identity import digest, seed_of

NOT_FINITE = "the model produced values that are not finite"
"""Why a candidate is unscored whose latents hold infinities or NaN: a failure of the model, not of the order."""
UNSUPPORTED = "not supported: "
"""How the reason begins why a model is not asked for something that is not its kind of work."""


@dataclass(frozen=True)
class Task:
    """One order: what a client asked for, and what it is worth."""

    task_id: str
    category: str
    price_micro_usd: int
    title: str
    brief: str
    deliverables: tuple[str, ...]
    """What each asked-for image is to show, one line an image."""
    evaluation_points: tuple[str, ...]
    source_sha256: str | None = None
    """Pixel digest of the picture to edit, where the order has one."""
    reference_sha256: tuple[str, ...] = ()
    rules: tuple[dict[str, Any], ...] = ()
    """Hard rules of each deliverable (`core.hardrules.HardRules`); empty where the order has none."""
    notes: tuple[str, ...] = ()
    """What is missing from the order but does not stop it, a sentence each."""
    unscored: str | None = None
    """Why the order cannot be carried out at all, in one sentence."""
    mask_sha256: str | None = None
    """Pixel digest of a mask, white where the source is to be changed."""
    caption: str | None = None
    """What the finished image shows, for metrics that read words; None: its prompt says so, "": nobody does."""
    size: tuple[int, int] | None = None
    """(width, height) in pixels that the client wants; a model that chooses its size takes this aspect."""
    metrics: tuple[str, ...] = ()
    """Those of the benchmark's metrics that are taken of this task's images."""
    own: dict[str, Any] = field(default_factory=dict)
    """What only its benchmark knows of it, as JSON; under `parts` the parts of the benchmark that it belongs to."""

    @property
    def content(self) -> dict[str, Any]:
        """All of it as JSON, the fields from `mask_sha256` on only where they say something: tasks of benchmarks
        without them are what they were before there were such fields."""
        later = ("mask_sha256", "caption", "size", "metrics", "own")
        return {name: value for name, value in asdict(self).items() if name not in later or value not in (None, (), {})}


@dataclass(frozen=True)
class Deliverable:
    """One image that a task asks for."""

    task_id: str
    index: int
    """From 1."""
    prompt: str
    """What the generator is told, word for word."""
    pictures: tuple[str, ...] = ()
    """Pixel digests of what it may look at: the picture to edit first, then references."""
    mask: str | None = None
    """Pixel digest of the mask, where the model takes one as such; it is not among `pictures` then."""


@dataclass(frozen=True)
class Candidate:
    """One image that a model is to make for a deliverable; `work` is all that decides its bytes on any one machine."""

    model: str
    deliverable: Deliverable
    attempt: int
    """From 1."""
    work: dict[str, Any] = field(compare=False)
    work_id: str = field(init=False)
    """The machine-independent identity: sha256 of the canonical JSON of `work`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "work_id", digest(self.work))

    @property
    def seed(self) -> int:
        return seed_of(self.work_id)


@dataclass(frozen=True)
class Collage:
    """A question's images on one picture, as IDEA-Bench shows them."""

    rows: tuple[int, ...] = ()
    """How many of the images stand in each row: the inputs above, the outputs below."""
    count: int | None = None
    """Instead of pictures: a card that says how many there are."""


@dataclass(frozen=True)
class Question:
    """One thing the judge is asked about images."""

    rubric: str
    point: int
    """Which of several alike (an evaluation point, from 0); 0 where there is only one."""
    images: tuple[str, ...]
    """Pixel digests, in the order in which they are shown."""
    slots: tuple[tuple[str, str], ...]
    """What fills the rubric's slots: (name, text)."""
    roles: tuple[str, ...] = ()
    """What each image is to the rubric: result, source, mask, reference. Empty where the rubric knows no roles."""
    repeat: int = 0
    """Which of several askings of the same, from 0."""
    collage: Collage | None = None
    """How the images are laid out on one picture; None shows each by itself."""


@dataclass(frozen=True)
class Verdict:
    """What came back: an `answer` that fits the rubric's schema, or the reason there is none. Never both."""

    answer: dict[str, Any] | None
    unscored: str | None
    raw: str
    """The judge's words as they came."""
    labels: dict[str, dict[str, float]] | None = None
    """Under the `logit` protocol, what each criterion's labels got: criterion -> label -> probability, sums of 1."""

    def __post_init__(self) -> None:
        assert (self.answer is None) != (self.unscored is None)

    def value(self, field: str) -> float | None:
        """The number that stands for `field`: the labels' expectation, or the answer where there are none."""
        if self.labels is None or field not in self.labels:
            return None if self.answer is None or field not in self.answer else float(self.answer[field])
        return sum(float(label) * p for label, p in self.labels[field].items())

    def variance(self, field: str) -> float | None:
        """How far the labels' probabilities spread about `value`, squared; None where there are none."""
        if self.labels is None or field not in self.labels:
            return None
        mean = self.value(field)
        assert mean is not None
        return sum((float(label) - mean) ** 2 * p for label, p in self.labels[field].items())


@dataclass(frozen=True)
class GroundTruth:
    """What is known to be so of one delivered image, in a suite whose truth can be told from pixels."""

    answers: dict[tuple[str, int], dict[str, Any] | None]
    """(rubric, point) -> what a faultless judge answers; None where even truth cannot be told."""
    match: float
    """How much of what was ordered is there, 0 to 1."""

    @property
    def right(self) -> bool:
        """Whether all of it is there: the client gets what was ordered, and pays."""
        return self.match == 1


@dataclass(frozen=True)
class Score:
    """A number, or the reason there is none (law 5: never 0, never dropped), or `applies=False`: nothing to score."""

    name: str
    value: float | None
    unscored: str | None = None
    applies: bool = True
    spread: float | None = None
    """Standard deviation of `value` by the judge's own probabilities; None where it gave none."""

    def __post_init__(self) -> None:
        assert (self.value is not None) + (self.unscored is not None) + (not self.applies) == 1


@dataclass(frozen=True)
class Decision:
    """Whether the client pays for a deliverable: True, False, or None with the reason it could not be settled."""

    accepted: bool | None
    unscored: str | None = None

    def __post_init__(self) -> None:
        assert (self.accepted is None) == (self.unscored is not None)
