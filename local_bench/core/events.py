"""Events of work on a device that runs in another function, process or machine than what shows and stores it."""

from dataclasses import dataclass

from local_bench.core.types import Score


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
