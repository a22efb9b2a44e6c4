"""Work orders sent to worker processes, and the events that workers send back. All are picklable."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from local_bench.core.types import (
    Message,
    PhaseAdvanced,
    PhaseStarted,
    ScoresComputed,
    TimeCharged,
    canonical_json,
    digest,
)
from local_bench.models.cards import ModelCard
from local_bench.runs.config import EngineConfig, ModelConfig
from local_bench.runs.image_store import IMAGES, INPUTS
from local_bench.runs.progress import Progress
from local_bench.runs.store import Candidate
from local_bench.runs.store.rows import ImageResult

if TYPE_CHECKING:
    from local_bench.generators.memory import MemoryPlan
    from local_bench.generators.registry import Sampler

Source = TypeVar("Source")
_SPREAD = 4
"""Images of one size for each worker, from which on all workers generate images of that size."""


@dataclass(frozen=True)
class ModelPlan:
    """One generator of the run with all settings resolved. Imported images have no card."""

    config: ModelConfig
    card: ModelCard | None = None
    weights: Path | None = None
    """None for random weights and imported images."""
    parts: dict[str, Path] = field(default_factory=dict)
    weights_sha256: str = ""
    sampler: dict[str, Any] = field(default_factory=dict)
    """At the card's size; a candidate may have the aspect ratio of its input image instead."""

    @property
    def label(self) -> str:
        return self.config.label

    @property
    def made_by(self) -> dict[str, Any]:
        """The properties of the model that determine output bytes."""
        if self.card is None:
            return {"imported": self.label}
        card = self.card
        more = {"lora": card.lora, "call": card.call, "lossy": self.config.lossy.settings}
        return {
            "card": card.name,
            "family": card.family,
            "weights": self.weights_sha256,
            "dtype": card.dtype,
            **{name: value for name, value in more.items() if value},
        }

    def memory(self, engine: EngineConfig, sampler: "Sampler", input_images: int, **more: Any) -> "MemoryPlan":
        """The memory of an image with these settings and number of input images; `more` are further arguments of
        `plan_memory`, or replace those that follow from the config."""
        from local_bench.generators.memory import plan_memory

        assert self.card is not None
        config = self.config
        settings: dict[str, Any] = {"attempts": config.attempts, "lossy": config.lossy.settings}
        settings["batch_size"] = config.batch_size or engine.batch_size
        return plan_memory(self.card, sampler, input_images=input_images, **(settings | more))


@dataclass(frozen=True)
class WorkOrder:
    """A model and the device and settings with which a worker runs it."""

    model: ModelPlan
    engine: EngineConfig
    folder: Path
    """The run directory."""
    device: str
    attention: str
    compile: bool
    offload: tuple[str, ...] = ()
    parked_gb: float = 0.0
    """GB of the transformer's weights that leave the device while an image is decoded."""
    capacity_gb: float | None = None
    """GPU memory for plans, in decimal GB; None for a CPU."""
    workers: int = 1
    """Number of workers that share the disk space for encodings."""
    shared: frozenset[str] = frozenset()
    """Prompts that several workers need."""
    load_lock: Path | None = None
    """A file that a worker locks while it loads weights, if host memory cannot hold all workers' weights at once."""
    known_sizes: dict[str, int] = field(default_factory=dict)
    """Batch sizes chosen by earlier sessions, by bucket."""
    on_node: bool = False
    """Whether the worker is on another machine, whose weights are compared with the order's."""

    @property
    def label(self) -> str:
        return self.model.label

    @property
    def card(self) -> ModelCard:
        assert self.model.card is not None
        return self.model.card

    @property
    def images(self) -> Path:
        return self.folder / IMAGES

    @property
    def inputs(self) -> Path:
        return self.folder / INPUTS

    @property
    def encoded(self) -> Path:
        """Folder of the model's encoded prompts, which are removed once its images are generated."""
        return self.folder / "encoded" / self.label


@dataclass(frozen=True)
class MetricWorkOrder:
    """The metrics and the device and settings with which a worker computes them."""

    names: tuple[str, ...]
    engine: EngineConfig
    device: str
    identities: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Each metric's identity (`measure.identity_of`) on the device for which the order was made."""
    begun: frozenset[str] = frozenset()
    """Metrics with a value from an earlier session."""
    on_node: bool = False
    """Whether the worker is on another machine, whose metrics are compared with `identities`."""
    label: ClassVar[str] = "measure"


@dataclass(frozen=True)
class BatchSizeChosen:
    """The batch size of a bucket, for this and all later sessions."""

    bucket: str
    batch_size: int


@dataclass(frozen=True)
class NumericsSignature:
    """The numerics signature of all following images, without the batch size."""

    signature: dict[str, Any]


@dataclass(frozen=True)
class ImagesFinished:
    results: list[ImageResult]


Event = (
    PhaseStarted
    | PhaseAdvanced
    | Message
    | TimeCharged
    | BatchSizeChosen
    | NumericsSignature
    | ImagesFinished
    | ScoresComputed
)


def show(event: Event, progress: Progress) -> None:
    """Show a message or the progress of a phase; other events show nothing."""
    match event:
        case Message(sentence):
            progress.note(sentence)
        case PhaseStarted(what, total):
            progress.begin(what, total)
        case PhaseAdvanced(n):
            progress.advance(n)


def in_one_bar(
    events: Iterable[tuple[Source, Event]], n_shares: int, what: str, total: int, progress: Progress
) -> Iterator[tuple[Source, Event]]:
    """`events` of several shares, without those that show the progress of each; `progress` shows one bar for all."""
    if n_shares > 1:
        progress.begin(what, total)
    for source, event in events:
        if n_shares == 1 or not isinstance(event, PhaseStarted | PhaseAdvanced):
            yield source, event


def shards(jobs: Sequence[Candidate], n: int) -> list[list[Candidate]]:
    """Split `jobs` over `n` workers deterministically: equal prompts stay together, and so do sizes of few images, each
    of which a worker would test for its own; others are spread evenly."""
    sizes: dict[str, dict[str, list[Candidate]]] = {}
    settings = {job.sampler: canonical_json(job.sampler.settings) for job in jobs}
    for job in sorted(jobs, key=lambda job: (settings[job.sampler], job.prompt, job.input_images, job.work_id)):
        key = digest([job.sampler.settings, job.prompt, job.input_images])
        sizes.setdefault(settings[job.sampler], {}).setdefault(key, []).append(job)
    assigned: list[list[Candidate]] = [[] for _ in range(n)]
    for groups in sorted(sizes.values(), key=lambda groups: -sum(map(len, groups.values()))):
        together = [job for group in groups.values() for job in group]
        for group in groups.values() if len(together) >= _SPREAD * n else [together]:
            min(assigned, key=len).extend(group)
    return [shard for shard in assigned if shard]


def shared_prompts(shares: Sequence[Sequence[Candidate]]) -> frozenset[str]:
    """Prompts in more than one share, and prompts of jobs with an input image in more than one share."""
    prompts = Counter(prompt for share in shares for prompt in {job.prompt for job in share})
    input_images = Counter(sha for share in shares for sha in {sha for job in share for sha in job.input_images})
    return frozenset(
        job.prompt
        for share in shares
        for job in share
        if prompts[job.prompt] > 1 or any(input_images[sha] > 1 for sha in job.input_images)
    )
