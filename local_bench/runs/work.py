"""What a maker of pictures is told, and what it tells back. All of it can cross to another process."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from local_bench.core.identity import canonical_json, digest
from local_bench.core.types import Score
from local_bench.models.cards import ModelCard

T = TypeVar("T")


@dataclass(frozen=True)
class Job:
    """One image to make."""

    work_id: str
    prompt: str
    seed: int
    sampler: dict[str, Any]
    pictures: tuple[str, ...]
    """Pixel digests of the run's input pictures, in order."""
    mask: str | None = None
    """Pixel digest of the mask, for a family that fills one."""


@dataclass(frozen=True)
class WorkOrder:
    """One model, and where and how it is to work."""

    label: str
    card: ModelCard
    weights: Path | None
    parts: dict[str, Path]
    weights_sha256: str
    lossy: dict[str, Any]
    device: str
    attention: str
    compile: bool
    offload: tuple[str, ...]
    threads: int
    io_workers: int
    batch_order: str
    batch_size: int | None
    """None: what the planner finds best for each size."""
    attempts: int
    capacity_gb: float | None
    """Decimal GB of the device's memory; None where it is not a GPU's."""
    images: Path
    inputs: Path
    encoded: Path
    encodings_bytes: float = math.inf
    """What encodings may take on disk at a time, about."""
    shared: frozenset[str] = frozenset()
    """Prompts that jobs of several workers have."""
    load_lock: Path | None = None
    """A file that a worker locks while it loads weights, where the host has no room for all workers' at once."""
    known_sizes: dict[str, int] = field(default_factory=dict)
    """Batch sizes that earlier sessions settled on, by bucket."""


@dataclass(frozen=True)
class MetricWorkOrder:
    """Which metrics, and where and how they are to be taken."""

    names: tuple[str, ...]
    device: str
    threads: int
    io_workers: int
    batch_size: int | None
    """None: each network's own."""


@dataclass(frozen=True)
class Begun:
    """A stretch of work that a person may watch."""

    what: str
    total: int


@dataclass(frozen=True)
class Advanced:
    n: int


@dataclass(frozen=True)
class Noted:
    sentence: str


@dataclass(frozen=True)
class Charged:
    """The time since the last charge was `phase`, up to `now_ns` of the machine's monotonic clock."""

    phase: str
    n_items: int
    now_ns: int


@dataclass(frozen=True)
class Settled:
    """The batch size of a bucket, for this session and all later ones."""

    bucket: str
    batch_size: int


@dataclass(frozen=True)
class Signed:
    """The numerics signature of all that follows, but for the batch size."""

    signature: dict[str, Any]


@dataclass(frozen=True)
class Result:
    """One image: its file is written. None where its numbers were not finite."""

    work_id: str
    pixels_sha256: str | None
    batch_size: int
    truncated: dict[str, int]


@dataclass(frozen=True)
class Made:
    results: list[Result]


@dataclass(frozen=True)
class Measured:
    """Scores by metrics: (work_id, score)."""

    rows: list[tuple[str, Score]]


Event = Begun | Advanced | Noted | Charged | Settled | Signed | Made | Measured


def shards(jobs: Sequence[Job], n: int) -> list[list[Job]]:
    """`jobs` for `n` workers, the same way every time: like sizes spread evenly, like prompts kept together."""
    groups: dict[str, list[Job]] = {}
    for job in sorted(jobs, key=lambda job: (canonical_json(job.sampler), job.prompt, job.pictures, job.work_id)):
        groups.setdefault(digest([job.sampler, job.prompt, job.pictures]), []).append(job)
    dealt: list[list[Job]] = [[] for _ in range(n)]
    for group in groups.values():
        min(dealt, key=len).extend(group)
    return [shard for shard in dealt if shard]


def shared_prompts(shares: Sequence[Sequence[Job]]) -> frozenset[str]:
    """Prompts in more than one share, and those of jobs with a picture that is in more than one."""
    prompts = Counter(prompt for share in shares for prompt in {job.prompt for job in share})
    pictures = Counter(sha for share in shares for sha in {sha for job in share for sha in job.pictures})
    return frozenset(
        job.prompt
        for share in shares
        for job in share
        if prompts[job.prompt] > 1 or any(pictures[sha] > 1 for sha in job.pictures)
    )
