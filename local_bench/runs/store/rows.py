"""The rows of the store as types. Money in micro-USD, time in nanoseconds, energy in millijoules."""

import json
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal, NamedTuple

from local_bench.core.money import split
from local_bench.core.types import Decision, Score

State = Literal["planned", "done", "unscored"]
Kind = Literal["metric", "judge"]


@dataclass(frozen=True)
class CandidateRow:
    """One image that is asked for."""

    work_id: str
    position: int
    """In the plan, from 0."""
    task_id: str
    deliverable: int
    """From 1."""
    model: str
    attempt: int
    """From 1."""
    prompt: str
    work_json: str
    """All that decides the image's bytes on any one machine, as canonical JSON."""
    seed: int
    height: int | None
    width: int | None
    state: State
    identity: str | None
    """sha256 over the work id and the numerics with which the image was made."""
    pixels_sha256: str | None
    unscored: str | None
    """Why there is no image."""
    batch_size: int | None
    truncated_json: str | None
    cost_micro_usd: int | None
    """Of an imported image, where it was made."""

    @cached_property
    def work(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self.work_json)
        return found

    @property
    def truncated(self) -> dict[str, int]:
        """Tokens of the prompt that each of the model's encoders cut off."""
        return {str(name): int(n) for name, n in json.loads(self.truncated_json or "{}").items()}

    @property
    def image(self) -> str | None:
        """Pixel digest of the finished image; None where there is none."""
        return self.pixels_sha256 if self.state == "done" else None

    @property
    def key(self) -> tuple[str, str, int, int]:
        """(model, task, deliverable, attempt)"""
        return self.model, self.task_id, self.deliverable, self.attempt


@dataclass(frozen=True)
class OutcomeRow:
    """A candidate with its task's category and price and with the decision about it."""

    candidate: CandidateRow
    category: str
    price_micro_usd: int
    """Of the whole task."""
    deliverables: int
    """Deliverables of the task that the model is asked for."""
    decision: Decision | None
    """None before it is settled."""

    @property
    def accepted(self) -> bool | None:
        return None if self.decision is None else self.decision.accepted

    @property
    def part_micro_usd(self) -> int:
        """The part of the task's price that this deliverable is worth."""
        return split(self.price_micro_usd, self.deliverables)[self.candidate.deliverable - 1]


@dataclass(frozen=True)
class VerdictRow:
    """A judge's answer to one question about a candidate, as it was stored."""

    work_id: str
    rubric: str
    point: int
    repeat: int
    question_id: str
    rubric_sha256: str
    judge: str
    answer_json: str | None
    labels_json: str | None
    unscored: str | None
    raw: str


@dataclass(frozen=True)
class RepeatRow:
    """A judge's answer to a question that it had answered before."""

    work_id: str
    rubric: str
    point: int
    repeat: int
    judge: str
    round: int
    """From 1: the verdict is round 0."""
    question_id: str
    answer_json: str | None
    labels_json: str | None
    unscored: str | None
    raw: str


class ScoreRow(NamedTuple):
    """A score of a candidate."""

    work_id: str
    kind: Kind
    score: Score


class DecisionRow(NamedTuple):
    """Whether a deliverable is paid for."""

    work_id: str
    decision: Decision
    price_micro_usd: int


@dataclass(frozen=True)
class SessionRow:
    """One stretch of time for which a device was held."""

    session: int
    started_utc: str
    device: str
    held_ns: int
    ended: str | None


@dataclass(frozen=True)
class MeterRow:
    """What a part of a session's time was used for."""

    session: int
    t0_ns: int
    t1_ns: int
    phase: str
    model: str | None
    n_items: int
    energy_mj: int | None


class Counts(NamedTuple):
    """How much of the plan there is."""

    candidates: int
    done: int
    unscored: int
    verdicts: int
    verdicts_unscored: int


class BusyTime(NamedTuple):
    """Time for which devices of one name were held for some phases, over all sessions."""

    device: str
    held_ns: int
    n_items: int
    """In phase `decode`."""


class ScoreSummary(NamedTuple):
    """One score over all candidates of a model."""

    kind: Kind
    name: str
    model: str
    mean: float | None
    spread: float | None
    """Mean of the spreads that are known."""
    n: int
    n_not_applicable: int
    n_unscored: int


class Reason(NamedTuple):
    """How often the same reason was given."""

    where: str
    text: str
    n: int
