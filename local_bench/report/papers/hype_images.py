"""HYPE-EDIT-1's figures of images: the attempts at one task, and examples of tasks."""

from PIL import Image

from local_bench.analysis.official import image_results
from local_bench.core.errors import UserError
from local_bench.core.table import Column, Table
from local_bench.core.types import Task
from local_bench.report.panels import Figure, Images
from local_bench.report.papers.hype_edit_1 import MODEL
from local_bench.report.papers.inputs import Request, once
from local_bench.runs.rundir import RunDir
from local_bench.suites.hype_edit_1.results import WORDS
from local_bench.suites.run_results import ImageResult

_EXAMPLES = 5
_SIDE = 512
"""Maximum pixels of an image in a figure."""


def _small(image: Image.Image) -> Image.Image:
    small = image.convert("RGB")
    small.thumbnail((_SIDE, _SIDE))
    return small


def _inputs(run: RunDir, task: Task) -> Images:
    shas = task.input_images
    captions = tuple(f"input {i}" for i in range(1, len(shas) + 1))
    return Images("", tuple(_small(run.image_store.load_input(sha)) for sha in shas), captions)


def figure_1(request: Request) -> Figure:
    """The inputs of one task and every attempt of every model; RunImageError if an image is damaged."""
    tasks = {task.task_id: task for run in request.runs for task in run.store.tasks()}
    task_id = request.options.task or next(iter(tasks))
    if task_id not in tasks:
        raise UserError(
            f"the runs have no task {task_id!r}: --task is one of their {len(tasks)}, {next(iter(tasks))!r} …"
        )
    of_runs: list[tuple[RunDir, dict[str, list[ImageResult]]]] = []
    for run in request.runs:
        by_model: dict[str, list[ImageResult]] = {}
        for row in image_results(run):
            if row.task.task_id == task_id and row.supported:
                by_model.setdefault(row.model, []).append(row)
        of_runs.append((run, by_model))
    once([(run.path, by_model) for run, by_model in of_runs])
    first = next(run for run, _ in of_runs if any(t.task_id == task_id for t in run.store.tasks()))
    given_images = _inputs(first, tasks[task_id])
    panels = [Images(tasks[task_id].brief, given_images.images, given_images.captions)]
    rows = []
    for run, by_model in of_runs:
        for model, attempts in by_model.items():
            verdicts = [WORDS[row.accepted if row.pixels_sha256 else None] for row in attempts]
            rows += [(model, row.attempt, verdict) for row, verdict in zip(attempts, verdicts, strict=True)]
            images = tuple(
                None if row.pixels_sha256 is None else _small(run.image_store.load(row.pixels_sha256))
                for row in attempts
            )
            captions = tuple(f"{r.attempt}: {v or 'no verdict'}" for r, v in zip(attempts, verdicts, strict=True))
            panels.append(Images(model, images, captions))
    columns = (MODEL, Column("attempt", "Attempt", "d"), Column("verdict", "Verdict"))
    title = f"HYPE-EDIT-1, figure 1: every attempt at {task_id}"
    return Figure(Table(title, columns, tuple(rows)), tuple(panels))


def figure_2(request: Request) -> Figure:
    """The first task of each type, at most five; of more types the first."""
    chosen: dict[str, tuple[RunDir, Task]] = {}
    for run in request.runs:
        for task in run.store.tasks():
            if task.unscored is None:
                chosen.setdefault(task.category, (run, task))
    if not chosen:
        raise UserError("no task of the runs has its images: give a run whose tasks have them")
    examples = list(chosen.values())[:_EXAMPLES]
    panels = []
    for run, task in examples:
        inputs = _inputs(run, task)
        panels.append(Images(f"{task.category}: {task.brief}", inputs.images, inputs.captions))
    columns = (
        *(Column("task_id", "Task"), Column("type", "Task type"), Column("instruction", "Instruction")),
        Column("inputs", "Input images", "d"),
    )
    rows = tuple(
        (task.task_id, task.category, task.brief, len(panel.images))
        for (_, task), panel in zip(examples, panels, strict=True)
    )
    notes = ("the paper's authors chose five tasks: here it is the first of each type",)
    return Figure(Table("HYPE-EDIT-1, figure 2: examples of tasks", columns, rows, notes), tuple(panels), columns=2)
