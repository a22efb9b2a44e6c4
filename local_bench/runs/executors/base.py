"""The interface of executors: a run's generation, metrics and judges on some devices, and the meters of these devices.

An executor never writes results: it yields the workers' events, and the stages of the run store them.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from PIL import Image

from local_bench.core.types import Question
from local_bench.judges.vlm.judge import JudgeSpec, Transport
from local_bench.runs.device import JudgeDevice
from local_bench.runs.judge_config import JudgeConfig
from local_bench.runs.meter import Meter
from local_bench.runs.progress import Progress
from local_bench.runs.work import Event
from local_bench.runs.worker_pool import Work

T = TypeVar("T")


@dataclass(frozen=True)
class WorkerDevice:
    """The device of a worker."""

    device: str
    """A torch device string, valid on the worker's host."""
    workers: int
    """Number of workers that share the host's memory."""


class Executor(Protocol):
    """The devices of a run's stages, which it meters, and their worker processes."""

    def stage(self) -> AbstractContextManager[object]:
        """Worker processes on this machine that are started within the context end with it."""
        ...

    @property
    def n_workers(self) -> int:
        """Number of workers that run at the same time."""
        ...

    @property
    def n_shares(self) -> int:
        """Number of shares into which work should be split."""
        ...

    def call(self, function: Callable[..., T], *arguments: Any) -> T:
        """The result of a module-level function, called with a `WorkerDevice` and `arguments` on one of the devices.
        Raises its LocalBenchError."""
        ...

    def do(
        self, work: Work, order: Any, shares: Sequence[list[Any]], left: Callable[[list[Any]], list[Any]]
    ) -> Iterator[tuple[Meter, Event]]:
        """Yield (meter of the device, event) from all workers until every share is processed.

        `order` is sent with its device replaced by the worker's. `left` returns the items of a share that have no
        result; they are processed by another worker if theirs is lost. LocalBenchError if the work fails.
        """
        ...

    @property
    def judge_devices(self) -> Sequence[JudgeDevice]:
        """The devices on which judges run. LocalBenchError if there is none."""
        ...

    def open_judge(
        self,
        config: JudgeConfig,
        spec: JudgeSpec,
        questions: Sequence[Question],
        load: Callable[[str], Image.Image],
        log: Path,
        progress: Progress,
    ) -> AbstractContextManager[Transport]:
        """Open the judge on all devices, as `judge_factory.open_judge`."""
        ...

    def charge(self, phase: str, n_items: int = 0) -> None:
        """Charge the time since the last charge to every device that the open judge uses; count the items once."""
        ...

    def end(self, status: str) -> None:
        """End the sessions of all devices."""
        ...
