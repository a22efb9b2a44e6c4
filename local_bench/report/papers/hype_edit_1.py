"""HYPE-EDIT-1's tables and summary charts, with intervals and by type of task; and its figures of images."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations
from pathlib import Path
from typing import Any

from PIL import Image

from local_bench.analysis.official import image_results
from local_bench.core.errors import UserError, count
from local_bench.core.table import Cell, Column, Table
from local_bench.core.types import Task
from local_bench.report.panels import Bars, Figure, Images, Series
from local_bench.report.papers.inputs import Request, once
from local_bench.runs.rundir import RunDir
from local_bench.settle.attempts import FAIL, MISSING, Outcomes, count_attempts
from local_bench.suites.hype_edit_1.published import (
    PROTOCOL_ATTEMPTS,
    UNBIASED,
    Review,
    differing,
    model_json,
    outcomes,
)
from local_bench.suites.hype_edit_1.results import WORDS, Judgements, joined, judgements, read_file, read_raters
from local_bench.suites.published import api_prices
from local_bench.suites.run_results import ImageResult

MODEL = Column("model", "Model")


@dataclass(frozen=True)
class _Figure:
    """A column of table 4 or a chart of figures 3 to 5."""

    key: str
    name: str
    form: str
    scale: int = 1
    """What a value is multiplied by."""
    printed: bool = True
    """Whether table 4 has it."""


FIGURES = (
    _Figure("pass_rate", "Pass Rate (%)", ".1f", 100),
    _Figure("pass_at_10", "Pass@10 (%)", ".1f", 100, printed=False),
    _Figure("pass_at_4", "Pass@4 (%)", ".1f", 100),
    _Figure("expected_attempts", "Expected Attempts", ".2f"),
    _Figure("effective_cost_usd", "Effective Cost ($)", ".2f"),
    _Figure("hype_gap", "Hype Gap (%)", ".1f", 100, printed=False),
)
"""In the order of figures 3 to 5."""


@dataclass(frozen=True)
class Gathered:
    """All sources as one table."""

    judgements: Judgements
    models: tuple[str, ...]
    requested: dict[str, dict[str, int]]
    """Model -> task -> attempts."""
    split: dict[str, str]
    """Task -> `public` or `private`: the data set's name."""
    types: dict[str, list[str]]
    """Task -> its types; of runs only."""
    usd: dict[str, Fraction]
    """What an attempt cost, by model."""

    def table(self, model: str, task_ids: Iterable[str]) -> Outcomes:
        """One model's verdicts on those of these tasks that were requested of it (tasks, attempts)."""
        own, kept = self.requested[model], set(task_ids)
        rows = [row for row in self.judgements.rows if row.model == model and row.task_id in kept]
        return outcomes(rows, {task_id: attempts for task_id, attempts in own.items() if task_id in kept})


def gathered(request: Request) -> Gathered:
    """A model may be in two sources only with different tasks, as in the public and the private split. UserError if a
    model and a task are in two sources."""
    sources: list[tuple[Path, Judgements]] = []
    types: dict[str, list[str]] = {}
    paid: dict[str, list[tuple[Fraction, int]]] = {}
    for run, results in request.results:
        images = results.images
        of_run = judgements(images)
        sources.append((run.path, of_run))
        types |= {task.task_id: task.category.split("+") for task in run.store.tasks()}
        for model, usd in results.usd_per_image.items():
            n = sum(image.model == model and image.pixels_sha256 is not None for image in images)
            paid.setdefault(model, []).append((Fraction(usd), n))
    if request.options.raters and request.files:
        sources.append((request.files[0], read_raters(request.files)[0]))
    else:
        sources += [(path, read_file(path)) for path in request.files]
    for (first, verdicts), (second, other) in combinations(sources, 2):
        if set(verdicts.task_ids) & set(other.task_ids):
            once([(first, verdicts.models), (second, other.models)])
    usd_of = {
        model: sum((usd * n for usd, n in parts), Fraction(0)) / sum(n for _, n in parts)
        for model, parts in paid.items()
    }
    every = [verdicts for _, verdicts in sources]
    stated = request.costs_of([model for verdicts in every for model in verdicts.models], {})
    usd_of |= {model: Fraction(usd) for model, usd in stated.items()}
    union = joined(every, [row for verdicts in every for row in verdicts.rows])
    judged = {row.model for row in union.rows}
    models = tuple(model for model in union.models if model in judged)
    return Gathered(
        union,
        models,
        {model: union.requested(model) for model in models},
        {task_id: verdicts.dataset for verdicts in every for task_id in verdicts.task_ids},
        types,
        usd_of,
    )


def table_2(request: Request) -> Table:
    """Statistics of the runs' tasks."""
    tasks = {task.task_id: task for run in request.runs for task in run.store.tasks()}
    images = [len(t.input_images) for t in tasks.values()]
    types = [kind for task in tasks.values() for kind in task.category.split("+")]
    splits = [str(task.own["dataset"]) for task in tasks.values()]
    sizes = [task.size for task in tasks.values() if task.size is not None]
    counted = {kind: types.count(kind) for kind in dict.fromkeys(types)}
    kinds = sorted(counted, key=lambda kind: -counted[kind])
    repeats = dict.fromkeys(str(max(row.attempt for row in image_results(run))) for run in request.runs)
    rows: list[tuple[Cell, ...]] = [("Total tasks", str(len(tasks)))]
    rows += [(f"{split.capitalize()} tasks", str(splits.count(split))) for split in dict.fromkeys(splits)]
    rows += [("Single-image tasks", str(images.count(1))), ("Multi-image tasks", str(sum(n > 1 for n in images)))]
    rows.append((f"Task types ({'/'.join(kinds)})", "/".join(str(counted[kind]) for kind in kinds)))
    ends = (f"{min(side)}-{max(side)}" for side in zip(*sizes, strict=True))
    rows.append(("Resolution range (width x height)", " x ".join(ends)))
    rows.append(("Repeats per task", "/".join(repeats)))
    notes = [
        "the resolution is the target's width and height, as the task file has them",
        *(["a task of several types counts in each of them"] if len(types) > len(tasks) else []),
        *([f"{count(n, 'tasks lack their images and are')} in neither count"] if (n := images.count(0)) else []),
    ]
    columns = (Column("statistic", "Statistic"), Column("value", "Value"))
    return Table("HYPE-EDIT-1, table 2: statistics of the benchmark", columns, tuple(rows), tuple(notes))


def table_3(request: Request) -> Table:
    """The cost of an attempt, metered or given; without sources, as assumed in the paper."""
    columns = (MODEL, Column("usd_per_candidate", "Cost per candidate ($)", ".6g"))
    if not request.runs and not request.files:
        prices = api_prices("hype-edit-1")
        rows = tuple((model, float(usd)) for model, usd in prices.exact.items())
        return Table("HYPE-EDIT-1, table 3: cost per candidate, as the paper assumed it", columns, rows)
    data = gathered(request)
    costs = tuple((model, None if model not in data.usd else float(data.usd[model])) for model in data.models)
    return Table("HYPE-EDIT-1, table 3: cost per candidate", columns, costs)


def table_4(request: Request) -> Table:
    """Reliability and effective cost of all tasks given; with `by_type` by type of task, with pass@10 and the gap."""
    data, options = gathered(request), request.options
    if options.by_type and not data.types:
        raise UserError("result files do not have the types of tasks: give runs for --by-type")
    figures = [figure for figure in FIGURES if figure.printed or options.by_type or options.intervals]
    columns = [MODEL, *([Column("type", "Task type"), Column("tasks", "Tasks", "d")] if options.by_type else [])]
    columns += _columns(figures, options.intervals, ranks=True)
    kinds = list(dict.fromkeys(kind for types in data.types.values() for kind in types)) if options.by_type else [None]
    rows = []
    for model in data.models:
        for kind in kinds:
            ids = [task_id for task_id in data.split if kind is None or kind in data.types[task_id]]
            row = _row(data, model, ids) | {"type": kind, "tasks": len(data.table(model, ids))}
            rows.append(tuple(row[column.key] for column in columns))
    title = f"HYPE-EDIT-1, table 4: reliability and effective cost{' by type of task' if options.by_type else ''}"
    within = "type" if options.by_type else None
    return Table(title, tuple(columns), tuple(rows), _notes(data, data.split, options.intervals), ranked_within=within)


def _columns(figures: Sequence[_Figure], with_ends: bool, ranks: bool = False) -> list[Column]:
    """With `with_ends` also of the unbiased estimate, if the figure is another, and of the ends of its interval."""
    columns = []
    for f in figures:
        columns.append(Column(f.key, f.name, f.form, "", f.key.startswith("pass") if ranks else None))
        named = {UNBIASED[f.key]: "unbiased"} if f.key in UNBIASED else {}
        named |= {f"{f.key}_{end}": end for end in ("low", "high")}
        columns += [Column(key, f"{f.name}, {name}", f.form) for key, name in named.items()] if with_ends else []
    return columns


def _row(data: Gathered, model: str, ids: Iterable[str]) -> dict[str, Any]:
    """The model's published figures on these tasks by the columns' keys, in the paper's units."""
    values = model_json(count_attempts(data.table(model, ids)), data.usd.get(model), Review())
    row: dict[str, Any] = {"model": model}
    for f in FIGURES:
        low, high = values["intervals"][f.key] or (None, None)
        named = {key: values[key] for key in (f.key, UNBIASED.get(f.key, f.key))}
        named |= {f"{f.key}_low": low, f"{f.key}_high": high}
        row |= {key: None if value is None else f.scale * value for key, value in named.items()}
    return row


def _notes(data: Gathered, ids: Iterable[str], with_ends: bool) -> tuple[str, ...]:
    tables = {model: data.table(model, ids) for model in data.models}
    verdicts = {model: int((table >= FAIL).sum()) for model, table in tables.items()}
    requested = {model: int((table >= MISSING).sum()) for model, table in tables.items()}
    left = sum(requested.values()) - sum(verdicts.values())
    unpriced = [model for model in data.models if model not in data.usd]
    counts = ", ".join(f"{model} {n} of {requested[model]}" for model, n in verdicts.items())
    notes = [f"attempts with a verdict: {counts}"]
    if left:
        notes.append(f"{count(left, 'attempts have no verdict and count')} as not passed")
    if unpriced:
        notes.append(f"there is no cost for {', '.join(unpriced)}: the effective cost is empty")
    if (most := max((k for of in data.requested.values() for k in of.values()), default=0)) != PROTOCOL_ATTEMPTS:
        notes.append(f"the attempts go up to {most}, the protocol's to {PROTOCOL_ATTEMPTS}")
    notes += differing(data.requested)
    if with_ends:
        notes.append("low and high: 95 %, for tasks like these, of the unbiased estimate; a cost may be open above")
    return tuple(notes)


def summary(request: Request, split: str) -> Figure:
    """Figures 3 to 5: six charts of all tasks (`combined`) or of one split."""
    data = gathered(request)
    ids = [task_id for task_id, part in data.split.items() if split in ("combined", part)]
    if not ids:
        existing = ", ".join(dict.fromkeys(data.split.values()))
        raise UserError(f"no source has the {split} split (existing: {existing}): give a run or a file of it")
    with_ends = request.options.intervals
    columns = [MODEL, *_columns(FIGURES, with_ends)]
    by_model = [_row(data, model, ids) for model in data.models]
    panels = []
    for f in FIGURES:
        ends = ((row[f"{f.key}_low"], row[f"{f.key}_high"]) for row in by_model if with_ends)
        intervals = tuple(None if low is None else (low, high) for low, high in ends)
        panels.append(Bars(f.name, data.models, (Series(f.name, tuple(row[f.key] for row in by_model), intervals),)))
    rows = tuple(tuple(row[column.key] for column in columns) for row in by_model)
    number = {"combined": 3, "public": 4, "private": 5}[split]
    title = f"HYPE-EDIT-1, figure {number}: {split} split, {count(len(ids), 'tasks')}"
    return Figure(Table(title, tuple(columns), rows, _notes(data, ids, with_ends)), tuple(panels))


_EXAMPLES = 5
_SIDE = 512
"""Maximum pixels of an image in a figure."""


def _small(image: Image.Image) -> Image.Image:
    small = image.convert("RGB")
    small.thumbnail((_SIDE, _SIDE))
    return small


def _inputs(run: RunDir, task: Task, title: str) -> Images:
    shas = task.input_images
    captions = tuple(f"input {i}" for i in range(1, len(shas) + 1))
    return Images(title, tuple(_small(run.image_store.load_input(sha)) for sha in shas), captions)


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
    panels = [_inputs(first, tasks[task_id], tasks[task_id].brief)]
    rows = []
    for run, by_model in of_runs:
        for model, attempts in by_model.items():
            verdicts = [WORDS[row.accepted if row.pixels_sha256 else None] for row in attempts]
            rows += [(model, row.attempt, verdict) for row, verdict in zip(attempts, verdicts, strict=True)]
            images = tuple(
                None if row.pixels_sha256 is None else _small(run.image_store.load(row.pixels_sha256))
                for row in attempts
            )
            nothing = (v or ("no verdict" if image else "no image") for v, image in zip(verdicts, images, strict=True))
            captions = tuple(f"{r.attempt}: {word}" for r, word in zip(attempts, nothing, strict=True))
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
    panels = [_inputs(run, task, f"{task.category}: {task.brief}") for run, task in examples]
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
