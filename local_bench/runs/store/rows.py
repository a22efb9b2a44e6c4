"""The rows of the store as types, and functions of its data frames. Money in micro-USD, time in nanoseconds, energy in
millijoules."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, NotRequired, Self

from pydantic import Field, PositiveInt, TypeAdapter
from typing_extensions import TypedDict

from local_bench.core import strictjson
from local_bench.core.money import part_of
from local_bench.core.types import Decision, Score, canonical_json, digest, seed_of
from local_bench.judges.rules import FileFacts

if TYPE_CHECKING:
    import pandas as pd

    from local_bench.generators.registry import Sampler

State = Literal["planned", "done", "unscored"]
Kind = Literal["metric", "judge"]


@dataclass(frozen=True)
class Candidate:
    """One image to generate."""

    work_id: str
    """The machine-independent identity: sha256 of `work_json`."""
    position: int
    """Position in the plan, from 0."""
    task_id: str
    deliverable: int
    """From 1."""
    model: str
    attempt: int
    """From 1."""
    prompt: str
    work_json: str
    """Everything that determines the image's bytes on a given machine, as canonical JSON."""
    seed: int
    height: int | None = None
    width: int | None = None
    state: State = "planned"
    identity: str | None = None
    """sha256 over the work id and the numerics with which the image was made."""
    pixels_sha256: str | None = None
    unscored: str | None = None
    """Why there is no image."""
    batch_size: int | None = None
    truncated_json: str | None = None
    cost_micro_usd: int | None = None
    """Cost of an imported image."""

    @classmethod
    def planned(cls, position: int, model: str, prompt: str, work: Mapping[str, Any], **more: Any) -> Self:
        """The candidate of this work; `more` are further fields."""
        work_id, sampler = digest(work), work.get("sampler", {})
        place = position, work["task"], work["deliverable"], model, work["attempt"]
        size = sampler.get("height"), sampler.get("width")
        return cls(work_id, *place, prompt, canonical_json(work), seed_of(work_id), *size, **more)

    @cached_property
    def work(self) -> dict[str, Any]:
        return strictjson.stored_object(self.work_json)

    @cached_property
    def sampler(self) -> "Sampler":
        from local_bench.generators.registry import Sampler

        return Sampler(**self.work["sampler"])

    @property
    def input_images(self) -> tuple[str, ...]:
        """Pixel digests of the input images that the model takes, in order."""
        return tuple(self.work["pictures"])

    @property
    def mask(self) -> str | None:
        """Pixel digest of the mask, for inpainting families."""
        return self.work.get("mask")

    @property
    def image(self) -> str | None:
        """Pixel digest of the finished image; None if there is none."""
        return self.pixels_sha256 if self.state == "done" else None

    @property
    def name(self) -> str:
        """As messages have it, with the comma after it."""
        return f"image {self.deliverable} of {self.task_id!r} by {self.model}, attempt {self.attempt},"

    @property
    def key(self) -> tuple[str, str, int, int]:
        """(model, task, deliverable, attempt)"""
        return self.model, self.task_id, self.deliverable, self.attempt


@dataclass(frozen=True)
class ImageResult:
    """One image whose file has been written, or the reason why there is none."""

    work_id: str
    pixels_sha256: str | None
    batch_size: int | None
    """None if a prompt or an input image could not be encoded."""
    truncated: dict[str, int]
    unscored: str | None = None


class GeneratedRow(NamedTuple):
    """Finished images with the same properties."""

    model: str
    height: int | None
    width: int | None
    input_images: tuple[str, ...]
    """Their pixel digests."""
    batch_size: int | None
    n: int


class ModelProgress(NamedTuple):
    """Numbers of candidates of one model."""

    model: str
    n: int
    n_planned: int
    """Not generated yet."""
    n_first: int
    """First attempts."""
    n_undecided: int
    """First attempts without a stored decision."""


@dataclass(frozen=True)
class OutcomeRow:
    """A candidate with its task's category and price and with the decision about it."""

    candidate: Candidate
    category: str
    price_micro_usd: int
    """Price of the task."""
    deliverables: int
    """Number of the task's deliverables for this model."""
    decision: Decision | None
    """None before the settle phase."""

    @property
    def accepted(self) -> bool | None:
        return None if self.decision is None else self.decision.accepted

    @property
    def part_micro_usd(self) -> int:
        """This deliverable's share of the task's price."""
        return int(part_of(self.price_micro_usd, self.deliverables, self.candidate.deliverable - 1))


AnswerKey = tuple[str, str, int, int, int]
"""(work id, rubric, point, repeat, round)"""


@dataclass(frozen=True)
class VerdictRow:
    """A judge's answer to one question about a candidate, as it was stored: a verdict, or a repeated one (retest)."""

    work_id: str
    rubric: str
    point: int
    repeat: int
    question_id: str
    rubric_sha256: str
    """Not stored with a retest."""
    judge: str
    answer_json: str | None
    labels_json: str | None
    unscored: str | None
    raw: str
    round: int = 0
    """0 for the verdict, and of a retest from 1."""

    @property
    def key(self) -> AnswerKey:
        return self.work_id, self.rubric, self.point, self.repeat, self.round


class ScoreRow(NamedTuple):
    """A score of a candidate."""

    work_id: str
    score: Score


@dataclass(frozen=True)
class SessionRow:
    """A period in which a device was held."""

    session: int
    started_utc: str
    device: str
    held_ns: int
    ended: str | None


@dataclass(frozen=True)
class MeterRow:
    """A part of a session's time, charged to a phase."""

    session: int
    t0_ns: int
    t1_ns: int
    phase: str
    model: str | None
    n_items: int
    energy_mj: int | None


class Counts(NamedTuple):
    """Numbers of candidates and verdicts by state."""

    candidates: int
    done: int
    unscored: int
    """Without an image, because of the task or because the model's output was not finite."""
    verdicts: int
    verdicts_unscored: int


class UnscoredItems(NamedTuple):
    """What has no value among the images, verdicts or metric scores of a run."""

    what: str
    n: int
    """Of all, with and without a value."""
    reasons: tuple[tuple[str, int], ...]
    """Why, with the number of each, most frequent first."""

    @property
    def n_unscored(self) -> int:
        return sum(n for _, n in self.reasons)


class Committed(NamedTuple):
    """Numbers of finished items in a store."""

    candidates: int
    """Generated or unscored."""
    verdicts: int
    retests: int
    scores: int
    """With a value."""


class BusyTime(NamedTuple):
    """Device time of some phases on devices with one name, over all sessions."""

    device: str
    held_ns: int
    n_items: int
    """Items of phase `decode`."""


class ScoreSummary(NamedTuple):
    """One score over all candidates of a model."""

    kind: Kind
    name: str
    model: str
    mean: float | None
    spread: float | None
    """Mean of the known spreads."""
    n: int
    n_not_applicable: int
    n_unscored: int


class _Repeats(TypedDict):
    reproducible: bool
    differs: list[str]
    n: int
    sessions: int


class _Attacks(TypedDict):
    n: int
    n_unscored: int
    fooled_by: list[str]


class _Checks(TypedDict, total=False):
    judge: str | None
    repeats: _Repeats | None
    attacks: _Attacks | None


class _Metric(TypedDict):
    higher_is_better: NotRequired[bool]


class _Provenance(TypedDict, total=False):
    sessions: int
    judge: dict[str, Any] | None
    panel: list[dict[str, Any] | None]
    models: dict[str, dict[str, Any]]


class _Placement(TypedDict):
    offload: list[str]
    compile: bool


_Shard = Annotated[str, Field(pattern="^[1-9][0-9]{0,4}/[1-9][0-9]{0,4}$")]


class _Cut(TypedDict):
    max_tokens: int
    n: int
    n_cut: int


FORMS: dict[str, TypeAdapter[Any]] = {
    "judges": TypeAdapter(dict[str, str]),
    "batches": TypeAdapter(dict[str, PositiveInt]),
    "canary": TypeAdapter(_Checks),
    "captions_cut": TypeAdapter(_Cut),
    "delivered": TypeAdapter(dict[str, FileFacts]),
    "metric": TypeAdapter(_Metric),
    "missing_shards": TypeAdapter(dict[str, list[_Shard]]),
    "pace": TypeAdapter(dict[str, float]),
    "placement": TypeAdapter(_Placement),
    "provenance": TypeAdapter(_Provenance),
}
"""The forms of JSON objects in `meta`, by the part of their key before its colon; further keys are allowed: names of
judges, batch sizes chosen for a model by kind of image, results of the checks of a judge, captions that a metric cut,
the files of a model's imported images by work id, a metric's identity, the shards that a merged run lacks by model, a
judge's pace, where a model's weights are and whether it is compiled, the provenance."""


# ---- data frames

UNSCORED, NOT_APPLICABLE = "unscored", "not applicable"


def plain(rows: "pd.DataFrame") -> "pd.DataFrame":
    """Values as Python objects, None where they are missing."""
    return rows.astype(object).where(rows.notna(), None)


def scored(scores: "pd.DataFrame") -> "pd.DataFrame":
    """The rows of a frame of scores that have a value, with `value` as float64: those that are unscored or do not apply
    are left out, and must be reported with every aggregate (invariant 5)."""
    present = scores[scores["value"].notna()]
    return present.assign(value=present["value"].astype("float64"))
