"""The base class of benchmarks: tasks, prompts, questions, scores and result files.

A benchmark is a package `suites/<name>/` with `tasks` (reader of its files), `results` (its result files, read and
written), `published` (its numbers) and `suite` (the `Suite` subclass, with its prompts, questions and scores).
Other packages add benchmarks with an entry point in the group `local_bench.suites`; see docs/extending.md.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from local_bench.core.errors import ConfigError, UserError, hint
from local_bench.core.files import IMAGE_SUFFIXES, is_safe_id
from local_bench.core.types import Deliverable, GroundTruth, Question, Score, Task, Unsupported, Verdict
from local_bench.models.cards import Takes
from local_bench.suites.published import Published, ScoreOptions
from local_bench.suites.run_results import ImageResult, RunResults, TaskFigure
from local_bench.suites.task_files import KeepImage, Refuse, read_task_file, with_written

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

QuestionKey = tuple[int, str, int, int]
"""(deliverable, rubric, point, repeat)"""
ImageKey = tuple[str, str, int, int]
"""(model, task, deliverable, attempt)"""
ImageFile = tuple[str, str, int, int, Path]
"""(model, task, deliverable from 1, attempt from 1, file)"""

CNS_SET = "cns_set"
"""The rubric for the consistency of a set, judged in both orders with `order_swap`."""


class Suite(ABC):
    """One benchmark. Instances are stateless."""

    name: ClassVar[str]
    title: ClassVar[str]
    licence: ClassVar[str]
    source: ClassVar[str]
    """Authors and repository."""
    files: ClassVar[str] = "a task file, one JSON object per line"
    """Description of the file or folder that `suite.path` must be."""
    shipped: ClassVar[Path | None] = None
    """Task file included in local-bench; None if `suite.path` is required."""
    attempts: ClassVar[int] = 1
    """Number of images per deliverable in the benchmark's protocol."""
    repeats: ClassVar[int] = 1
    """Number of repeats of each question."""
    scores_of_judge: ClassVar[Sequence[str]]
    """Names of the scores that `scores` returns."""
    top_score: ClassVar[float | None] = None
    """The end of the judge's scores' scale, which starts at 0; None if it is not known."""
    thresholds: ClassVar[Mapping[str, float] | None] = None
    """Score -> minimum value for acceptance, which replaces the config's `acceptance`; None: the config's."""
    rubrics: ClassVar[Mapping[str, Sequence[str]]] = {}
    """Rubric -> fields of its answer that must exist, checked before a run."""
    pass_fail: ClassVar[Sequence[str]] = ()
    """Scores that are one judge's pass/fail decision: a panel decides them by majority, independent of
    `panel_word`."""
    lent: ClassVar[Mapping[str, str]] = {}
    """Its scores of an image of another suite (`suite.questions_from`) -> their names there; empty: it has none."""
    derived: ClassVar[str] = ""
    """Name of the score of `derived_scores`."""
    metrics_by_task: ClassVar[frozenset[str]] = frozenset()
    """Metrics that are computed only for tasks that list them."""
    of_tasks: ClassVar[Sequence[tuple[str, str]]] = ()
    """What every task of it has in `Task.own`: the key, and the type as SQLite names it (`text`, `array`)."""
    categories: ClassVar[Collection[str]] = ()
    """The categories of its tasks; empty if they may have any."""
    unsupported: ClassVar[Unsupported] = "text_only"
    """Default of `suite.unsupported`: the benchmark's protocol."""
    numbers_are_settlement: ClassVar[bool] = False
    """Whether `published` is the settlement of its tasks."""
    layout: ClassVar[str | None] = None
    """Name of the layout in which results are exported; None for a suite without one."""
    score_options: ClassVar[Collection[str] | None] = None
    """The options of `local-bench score` that `score` reads, as `ScoreOptions` names them; None: no `score`."""
    scores_one_file: ClassVar[bool] = False
    """Whether `score` reads the results of one file at a time."""
    exported_options: ClassVar[Mapping[str, str]] = {}
    """Option of `local-bench score` -> the file of `write_results` for it."""
    paper: ClassVar[str] = ""
    """`module:NAME` of the tables and figures of its paper, a sequence of `report.papers.contents.Entry`
    (`local-bench reproduce`)."""
    tasks_differ: ClassVar[bool] = False
    """Whether the runs of one table of the paper may have different tasks, as the splits of a benchmark."""

    # tasks

    def read_tasks(self, path: Path, keep: KeepImage, refuse: Refuse | None = None) -> list[Task]:
        """Read the benchmark's files at `path`. `keep` stores an input image and returns its pixel digest; `refuse` is
        called with a message for each case that is skipped. TaskFileError for files that cannot be read, and for
        such a case if `refuse` is None."""
        return read_task_file(path, keep)

    def tasks(
        self,
        path: str | None,
        keep: KeepImage,
        part: str | None = None,
        written: str | None = None,
        refuse: Refuse | None = None,
    ) -> list[Task]:
        """The tasks of the benchmark or of one part of it, with the data of the file `written` (`local-bench extract`).

        `refuse` is called for every case that is skipped; without it such a case is a TaskFileError. ConfigError for a
        missing or superfluous path, and for an unknown part.
        """
        if self.shipped is not None and path is not None:
            raise ConfigError(f"suite.path: the suite {self.name!r} includes its tasks: remove the path")
        if self.shipped is None and path is None:
            raise ConfigError(
                f"suite.path: the suite {self.name!r} is read from {self.files}: give its path, or run "
                f"`local-bench suites fetch {self.name} --out FOLDER`"
            )
        read: Any = self.read_tasks(self.shipped or Path(str(path)), keep, refuse)
        is_list = isinstance(read, list | tuple)
        kinds = {type(task).__name__ for task in read if not isinstance(task, Task)} if is_list else ()
        if kinds or not is_list:
            where, got = f"{type(self).__module__}.{type(self).__name__}", min(kinds, default=type(read).__name__)
            raise ConfigError(
                f"suite {self.name}: {where}.read_tasks returns {got} instead of a list of Task: correct it"
            )
        tasks: list[Task] = list(read) if written is None else with_written(read, Path(written))
        if part is None:
            return tasks
        parts = {task.task_id: (task.category, *task.own.get("parts", ())) for task in tasks}
        of_part = [task for task in tasks if part in parts[task.task_id]]
        if not of_part:
            names_of_parts = dict.fromkeys(name for names in parts.values() for name in names)
            raise ConfigError(f"suite.part: unknown part {part!r}: {hint(part, names_of_parts)}")
        return of_part

    # generation

    @abstractmethod
    def deliverables(self, task: Task) -> list[Deliverable]:
        """The images that a task requests, each with its prompt and input images."""

    def fitted(self, task: Task, takes: Takes) -> list[Deliverable] | str:
        """The deliverables for a model with these inputs, or one sentence why the model does not support the task."""
        return self.deliverables(task)

    # judging

    @abstractmethod
    def questions(
        self, task: Task, images: Mapping[int, str], order_swap: bool = False
    ) -> Iterator[tuple[QuestionKey, Question]]:
        """Questions about one model's images of a task (deliverable -> pixel digest). Questions about the same images
        are adjacent, so that the judge's caches are used. With `order_swap` sets are also judged in reverse order."""

    @abstractmethod
    def scores(self, task: Task, verdicts: Mapping[QuestionKey, Verdict]) -> dict[int, list[Score]]:
        """Deliverable -> scores, computed from the verdicts on `questions`."""

    def scores_of_made(
        self, task: Task, verdicts: Mapping[QuestionKey, Verdict], images: Mapping[int, str]
    ) -> dict[int, list[Score]]:
        """As `scores`, where only `images` of the task's deliverables were made. For suites in which an image's scores
        depend on the others of its set."""
        return self.scores(task, verdicts)

    def borrowing(self, task: Task) -> Task | None:
        """Another suite's task, with one image, in the form that `questions` and `lent_scores` expect; None if
        they do not apply to such a task."""
        return task

    def lent_scores(self, task: Task, verdicts: Mapping[QuestionKey, Verdict]) -> list[Score]:
        """The scores that `lent` names, among others, of the one image of a task from `borrowing`."""
        return self.scores(task, verdicts)[1]

    def derived_scores(self, results: RunResults, lent: bool) -> Iterator[tuple[str, Score]]:
        """(work id, score) of existing images: scores that follow from several scores of an image, for runs with
        `suite.questions_from`. `lent`: the images are another suite's, and the scores have the names in `lent`."""
        yield from ()

    def enrichment_question(self, task: Task) -> Question | None:
        """The question with which `local-bench extract` generates a task's missing data; None if nothing is missing."""
        return None

    def rules_question(self, task: Task) -> Question | None:
        """As `enrichment_question`, for the task's hard rules (`extract --rules`)."""
        return None

    # human annotation

    annotation_protocol: ClassVar[str] = "accept"
    """Default of `annotate --protocol`."""

    def points_for_people(self, task: Task) -> tuple[str, ...]:
        """The evaluation points or questions that annotators answer about a set, all of whose images they are shown."""
        return task.evaluation_points

    def scores_of_points(self, task: Task, met: Sequence[bool]) -> dict[str, float]:
        """Scores of an image set whose evaluation points are met or not, in the order of `points_for_people`;
        empty if the benchmark computes none from them."""
        return {}

    def annotated(self, results: RunResults, ratings: Mapping[str, Mapping[str, Any]]) -> RunResults:
        """The results with one annotator's decisions, or the consensus: `ratings` has scores and `overall` by the work
        ids of the images that were shown."""
        images = [
            replace(i, accepted=ratings.get(i.work_id, {}).get("overall"), shown=i.work_id in ratings)
            for i in results.images
        ]
        return replace(results, images=images)

    # ground truth

    has_ground_truth: ClassVar[bool] = False
    """Whether `ground_truth` is implemented."""

    def ground_truth(self, task: Task, images: "Mapping[int, NDArray[np.uint8]]") -> dict[int, GroundTruth]:
        """Ground truth of one model's images of a task; `images` are uint8 RGB (height, width, 3) by deliverable."""
        return {}

    # the benchmark's file formats

    def figures_by_task(self, results: RunResults) -> Iterator[TaskFigure]:
        """The benchmark's own figures, by task, for the comparison of models; of each figure, the tasks that it has."""
        yield from ()

    def published(self, results: RunResults) -> dict[str, Published]:
        """The benchmark's published statistics by model, or under `all` if they combine models."""
        return {}

    def score(self, files: Sequence[Path], options: ScoreOptions) -> Published:
        """The published statistics of the benchmark's own result files (`local-bench score`). ResultFileError for a
        malformed file."""
        raise NotImplementedError  # of a suite without `score_options`

    def find_images(self, folder: Path) -> Iterator[ImageFile]:
        """The images in `folder`, in the benchmark's layout (`local-bench import`)."""
        raise UserError(f"{self.name} has no layout of images that can be imported: write a manifest")

    def write_results(self, results: RunResults, out: Path) -> list[Path]:
        """Write the results in the benchmark's layout to `out`; return the files that `score` reads."""
        raise UserError(f"{self.name} has no result format of its own: use the files in RUN/exports")

    def result_notes(self, results: RunResults) -> list[str]:
        """What `write_results` does not include, one sentence each."""
        return []

    def read_annotations(
        self, files: Sequence[Path], images: Sequence[ImageResult]
    ) -> Iterator[tuple[ImageKey, dict[str, Any] | None]]:
        """Read the benchmark's result files as annotations of a run's images; None for entries without a verdict.
        ResultFileError for a malformed file."""
        raise UserError(f"{self.name} has no result files that can be read as annotations: give an annotation file")


def score_of(name: str, verdict: Verdict | None, field: str) -> Score:
    """The score of a field of a judge's answer, with its uncertainty if the judge gives probabilities."""
    if verdict is None:
        return Score(name, None, "the judge was not reached")
    variance = verdict.variance(field)
    return Score(name, verdict.value(field), verdict.unscored, spread=None if variance is None else sqrt(variance))


def which_image(task: Task, deliverable: int) -> str:
    """Text for the judge that identifies the image among the images of the task."""
    n, what = len(task.deliverables), task.deliverables[deliverable - 1]
    if n == 1:
        return f"The only image of the order: {what}"
    others = "; ".join(f"{i}. {other}" for i, other in enumerate(task.deliverables, 1) if i != deliverable)
    return f"Image {deliverable} of {n}: {what}\nThe other images of the order, which are not shown: {others}"


_NUMBER = re.compile(r"0*([1-9][0-9]{0,3})")


def images_by_task(folder: Path, top: str, attempts: bool = False) -> Iterator[ImageFile]:
    """The images in [TOP/]METHOD/TASK/NUMBER.*; a number is an attempt or a deliverable. With `attempts` also below a
    folder per dataset."""
    root = folder / top if (folder / top).is_dir() else folder
    for method in (method for dataset in (_folders(root) if attempts else [root]) for method in _folders(dataset)):
        if method.name.endswith("_stitched"):  # IDEA-Bench's collages
            continue
        for task in _folders(method):
            for file in sorted(task.iterdir()):
                number = _NUMBER.fullmatch(file.stem)
                if number is None or file.suffix.lower() not in IMAGE_SUFFIXES:
                    continue
                if not is_safe_id(task.name):
                    raise UserError(
                        f"{task}: its name is no valid task id: use at most 128 letters, digits, '.', '_', '-'"
                    )
                n = int(number[1])
                yield (method.name, task.name, *((1, n) if attempts else (n, 1)), file)


def _folders(folder: Path) -> list[Path]:
    return [path for path in sorted(folder.iterdir()) if path.is_dir()]
