"""The suites by name: those of local-bench and of installed packages, and those that consist of files:
`suites/NAME.yaml` in a config folder, with a task file and rubrics.
"""

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import ClassVar

from pydantic import Field

from local_bench.core.environment import entry_points, load_object, made_by
from local_bench.core.errors import ConfigError, hint
from local_bench.core.files import config_files, is_safe_id, refuse_own, user_config_dirs
from local_bench.core.types import Deliverable, Question, Score, Task, Unsupported, Verdict
from local_bench.core.yamlfile import Strict, load_yaml
from local_bench.suites.base import QuestionKey, Suite

POINT = "point"


class Description(Strict):
    """The file `suites/NAME.yaml`."""

    title: str
    licence: str
    source: str
    """Authors and repository."""
    tasks: str
    """The task file, relative to this file (docs/reference/task-files.md)."""
    rubrics: dict[str, list[str]] = Field(min_length=1)
    """Rubric -> the fields of its answer that are scores. Each rubric is one question about every image."""
    per_point: list[str] = Field(default=[])
    """Rubrics that are one question for each of the task's evaluation points instead, in the slot `point`; a score is
    the mean over the points."""
    thresholds: dict[str, float] = Field(min_length=1)
    """Score -> minimum value; an image is accepted if it reaches all of them."""
    top_score: float | None = Field(None, gt=0)
    """The end of the scores' scale, which starts at 0; omit it if it is not known."""
    attempts: int = Field(1, ge=1)
    """Number of images per deliverable in the benchmark's protocol."""
    unsupported: Unsupported = "text_only"
    """Default of `suite.unsupported`."""


class FilesSuite(Suite):
    """A benchmark of a `Description`. Slots of its rubrics: title, brief, category, deliverable, and point; roles of
    images: image, and source and reference where the task has them."""

    slots = ("title", "brief", "category", "deliverable", POINT)
    description: ClassVar[Description]

    def deliverables(self, task: Task) -> list[Deliverable]:
        several = len(task.deliverables) > 1
        return [
            Deliverable(
                task.task_id, i, f"{what}. {task.brief}" if several else task.brief, task.input_images, task.mask_sha256
            )
            for i, what in enumerate(task.deliverables, 1)
        ]

    def questions(
        self, task: Task, images: Mapping[int, str], order_swap: bool = False
    ) -> Iterator[tuple[QuestionKey, Question]]:
        roles = ("image", *("source",) * (task.source_sha256 is not None), *("reference",) * len(task.reference_sha256))
        for deliverable, image in sorted(images.items()):
            what = task.deliverables[deliverable - 1]
            texts = (task.title, task.brief, task.category, what)
            for rubric in self.description.rubrics:
                points = task.evaluation_points if rubric in self.description.per_point else ("",)
                for k, point in enumerate(points):
                    slots = tuple(zip(self.slots, (*texts, point), strict=True))
                    question = Question(rubric, k, (image, *task.input_images), slots, roles)
                    yield (deliverable, rubric, k, 0), question

    def scores(self, task: Task, verdicts: Mapping[QuestionKey, Verdict]) -> dict[int, list[Score]]:
        return {
            deliverable: [
                self._score(task, verdicts, deliverable, rubric, field)
                for rubric, fields in self.description.rubrics.items()
                for field in fields
            ]
            for deliverable in range(1, len(task.deliverables) + 1)
        }

    def _score(
        self, task: Task, verdicts: Mapping[QuestionKey, Verdict], deliverable: int, rubric: str, field: str
    ) -> Score:
        n = len(task.evaluation_points) if rubric in self.description.per_point else 1
        values = []
        for k in range(n):
            verdict = verdicts.get((deliverable, rubric, k, 0))
            value = None if verdict is None else verdict.value(field)
            if value is None:
                reason = "the judge was not reached" if verdict is None else verdict.unscored
                return Score(field, None, reason or f"the answer to {rubric} has no {field}")
            values.append(value)
        return Score(field, fmean(values)) if values else Score(field, None, "the task has no evaluation points")


@cache
def _described(path: Path, mtime_ns: int, size: int) -> Suite:
    """The suite that a file describes, read again when the file has changed. ConfigError if it is not valid."""
    description = load_yaml(path, Description)
    fields = [field for rubric in description.rubrics.values() for field in rubric]
    unknown = sorted({*description.thresholds} - {*fields}) + sorted({*description.per_point} - {*description.rubrics})
    if unknown:
        raise ConfigError(f"{path}: {unknown[0]!r} is not under rubrics: add it, or correct the name")
    if len(set(fields)) < len(fields):
        raise ConfigError(f"{path}: two rubrics have a field of the same name: rename one")
    attributes = {
        "name": path.stem,
        "shipped": path.parent / description.tasks,
        "scores_of_judge": tuple(fields),
        "rubrics": description.rubrics,
        "description": description,
        **description.model_dump(
            include={"title", "licence", "source", "thresholds", "top_score", "attempts", "unsupported"}
        ),
    }
    kind: type[FilesSuite] = type("DescribedSuite", (FilesSuite,), attributes)
    return kind()


PLUGINS = "local_bench.suites"
"""Group of entry points `name = "package.module:Class"` with subclasses of `Suite`; built-in names take precedence."""
BUILT_IN_SUITES = {
    "studio": "local_bench.suites.studio.suite:Studio",
    "printshop": "local_bench.suites.printshop.suite:PrintShop",
    "servimage": "local_bench.suites.servimage.suite:ServImage",
    "hype-edit-1": "local_bench.suites.hype_edit_1.suite:HypeEdit1",
    "idea-bench": "local_bench.suites.idea_bench.suite:IdeaBench",
    "ice-bench": "local_bench.suites.ice_bench.suite:IceBench",
}


def suite_names() -> list[str]:
    """Names of all suites: built-in ones, then those of installed packages and of config folders."""
    described = {path.stem for folder in user_config_dirs() for path in (folder / "suites").glob("*.yaml")}
    return list(dict.fromkeys([*_known(), *sorted(described)]))


def all_suites(report: Callable[[str], None] = lambda _: None) -> list[Suite]:
    """All suites that can be loaded, built-in ones first; `report` is called with the fault of every other one."""
    loaded = []
    for name in suite_names():
        try:
            loaded.append(suite(name))
        except ConfigError as e:
            report(str(e))
    return loaded


def suite(name: str) -> Suite:
    """The suite of that name. ConfigError with the nearest name, or with the reason why a package's suite cannot be
    loaded."""
    where = BUILT_IN_SUITES.get(name) or _known().get(name)
    if where is not None:
        return _loaded(name, where)
    if is_safe_id(name) and (files := config_files(f"suites/{name}.yaml")):
        stat = files[0].stat()
        return _described(files[0].absolute(), stat.st_mtime_ns, stat.st_size)
    raise ConfigError(f"suite.name: unknown suite {name!r}: {hint(name, suite_names())}")


@cache
def _loaded(name: str, where: str) -> Suite:
    refuse_own(f"suites/{name}.yaml", "suite" if name in BUILT_IN_SUITES else f"or installed suite ({where})")
    kind = load_object(where, f"suite.name: {name!r}")
    if not (isinstance(kind, type) and issubclass(kind, Suite)):
        raise ConfigError(f"suite.name: {where} is not a subclass of local_bench.Suite: correct or remove that package")
    with made_by(f"suite.name: {where} is not complete"):
        entry = kind()
    absent = [key for key in ("name", "title", "licence", "source", "scores_of_judge") if not hasattr(entry, key)]
    unknown = sorted({*(entry.thresholds or {}), *entry.pass_fail} - {*entry.scores_of_judge}) if not absent else []
    if absent or unknown or entry.name != name:
        fault = f"has no {absent[0]!r}" if absent else f"has the name {entry.name!r}, and its entry point {name!r}"
        fault = f"decides by {unknown[0]!r}, which is not in scores_of_judge" if unknown else fault
        raise ConfigError(f"suite.name: {where} {fault}: correct that package")
    return entry


def _known() -> dict[str, str]:
    plugins = sorted((point.name, point.value) for point in entry_points(PLUGINS))
    return BUILT_IN_SUITES | {name: where for name, where in plugins if name not in BUILT_IN_SUITES}
