"""A benchmark: its tasks, what it asks a generator and a judge, its scores, and its own result files.

A benchmark is a package `suites/<name>/` with `tasks` (reader of its files), `questions` (prompts, questions, scores),
`results` (readers of its result files), `export` (writer), `published` (its numbers) and `suite` (the class that puts
them together). A package of your own adds one by an entry point in the group `local_bench.suites`; see
docs/extending.md.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from local_bench.core.errors import ConfigError, UserError
from local_bench.core.suggest import hint
from local_bench.core.types import Deliverable, GroundTruth, Question, Score, Task, Verdict
from local_bench.models.cards import Takes
from local_bench.suites.enrichment import with_written
from local_bench.suites.orders import KeepImage, read_orders
from local_bench.suites.published import Published
from local_bench.suites.run_results import ImageResult, RunResults

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

QuestionKey = tuple[int, str, int, int]
"""(deliverable, rubric, point, repeat)"""
ImageKey = tuple[str, str, int, int]
"""(model, task, deliverable, attempt)"""
Refuse = Callable[[str], None]


class Suite(ABC):
    """One benchmark. Instances hold no state."""

    name: ClassVar[str]
    title: ClassVar[str]
    licence: ClassVar[str]
    source: ClassVar[str]
    """Authors and repository."""
    files: ClassVar[str] = "an order file, one JSON object a line"
    """What `suite.path` is."""
    shipped: ClassVar[Path | None] = None
    """The tasks of a suite that is part of local-bench; None asks for `suite.path`."""
    attempts: ClassVar[int] = 1
    """Images of each deliverable that the benchmark's protocol asks for."""
    repeats: ClassVar[int] = 1
    """How often each question is asked."""
    scores_of_judge: ClassVar[Sequence[str]]
    """Names of the scores that `scores` returns."""
    thresholds: ClassVar[Mapping[str, float] | None] = None
    """Score -> what it must reach for an image to be accepted, in the place of the config's `acceptance`."""
    pass_fail: ClassVar[Sequence[str]] = ()
    """Scores that are one judge's pass/fail decision: a panel votes on them, whatever `panel_word` says."""
    metrics_by_task: ClassVar[frozenset[str]] = frozenset()
    """Metrics that are computed only for tasks that list them."""
    layout: ClassVar[str | None] = None
    """Name of the benchmark in whose layout results are exported; None for a suite without one."""

    # tasks

    def read_tasks(self, path: Path, keep: KeepImage, refuse: Refuse | None = None) -> list[Task]:
        """Reads the benchmark's files at `path`. `keep` stores an input image and returns its pixel digest; `refuse` is
        called with a sentence for a case that is left out, where the reader can leave it out. TaskFileError for files
        that cannot be read, and where `refuse` is None for such a case."""
        return read_orders(path, keep)

    def tasks(
        self,
        path: str | None,
        keep: KeepImage,
        part: str | None = None,
        written: str | None = None,
        refuse: Refuse | None = None,
    ) -> list[Task]:
        """The tasks, or those of one part of the benchmark, completed by the file `written` (`local-bench extract`).

        `refuse` is called for every case that is left out; without it such a case is a TaskFileError. ConfigError for a
        path that is missing or not wanted, and for an unknown part.
        """
        if self.shipped is not None and path is not None:
            raise ConfigError(f"suite.path: the suite {self.name!r} ships with its tasks: leave the path out")
        if self.shipped is None and path is None:
            raise ConfigError(
                f"suite.path: the suite {self.name!r} is read from {self.files}: say where that is, or "
                f"`local-bench suites fetch {self.name} --out FOLDER`"
            )
        tasks = self.read_tasks(self.shipped or Path(str(path)), keep, refuse)
        if written is not None:
            tasks = with_written(tasks, Path(written))
        return tasks if part is None else _of_part(tasks, part)

    # what generators are asked for

    @abstractmethod
    def deliverables(self, task: Task) -> list[Deliverable]:
        """The images that a task asks for, each with its prompt and input images."""

    def fitted(self, task: Task, takes: Takes) -> list[Deliverable] | str:
        """What a model with these inputs is asked for, or in one sentence why the task is not supported by it."""
        return self.deliverables(task)

    # what judges are asked

    @abstractmethod
    def questions(
        self, task: Task, images: Mapping[int, str], order_swap: bool = False
    ) -> Iterator[tuple[QuestionKey, Question]]:
        """Questions about one model's images of a task (deliverable -> pixel digest). Questions about the same images
        follow each other, so that the judge's caches serve them. With `order_swap` sets are also shown in the other
        order."""

    @abstractmethod
    def scores(self, task: Task, verdicts: Mapping[QuestionKey, Verdict]) -> dict[int, list[Score]]:
        """Deliverable -> scores, from the answers to `questions`."""

    def enrichment_question(self, task: Task) -> Question | None:
        """What `local-bench extract` asks a judge to add to a task whose file lacks it; None if it lacks nothing."""
        return None

    def rules_question(self, task: Task) -> Question | None:
        """As `enrichment_question`, for the task's hard rules (`extract --rules`)."""
        return None

    # ground truth

    has_ground_truth: ClassVar[bool] = False
    """Whether `ground_truth` knows anything."""

    def ground_truth(self, task: Task, images: "Mapping[int, NDArray[np.uint8]]") -> dict[int, GroundTruth]:
        """What is known about one model's images of a task, uint8 RGB of shape (height, width, 3) by deliverable."""
        return {}

    # the benchmark's own files

    def published(self, results: RunResults) -> dict[str, Published]:
        """The benchmark's published numbers by model, or under `all` where it gives them together."""
        return {}

    def write_results(self, results: RunResults, out: Path) -> list[Path]:
        """Writes the results in the benchmark's own layout below `out`; returns the files that `score` reads."""
        raise UserError(f"results of {self.name} have no layout of their own: read RUN/exports instead")

    def result_notes(self, results: RunResults) -> list[str]:
        """What `write_results` leaves out, a sentence each."""
        return []

    def read_annotations(
        self, files: Sequence[Path], images: Sequence[ImageResult]
    ) -> Iterator[tuple[ImageKey, dict[str, Any] | None]]:
        """The benchmark's result files as annotations of a run's images; None where a file has no verdict.
        ResultFileError for a malformed file."""
        raise UserError(
            f"{self.name} has no result files that could be read as annotations: give a file of annotations"
        )


def _of_part(tasks: list[Task], part: str) -> list[Task]:
    parts = {task.task_id: (task.category, *task.own.get("parts", ())) for task in tasks}
    found = [task for task in tasks if part in parts[task.task_id]]
    if not found:
        known = dict.fromkeys(name for names in parts.values() for name in names)
        suggestion = hint(part, known, f"there are {', '.join(known)}")
        raise ConfigError(f"suite.part: there is no part {part!r}: {suggestion}")
    return found
