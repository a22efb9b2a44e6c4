"""IDEA-Bench's tables, from the answers to its six questions."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import fmean
from typing import Any

from local_bench.analysis.agreement import judge_labels
from local_bench.analysis.official import image_results, run_results
from local_bench.core.errors import ConfigError, UserError
from local_bench.core.types import Task
from local_bench.models.cards import card
from local_bench.report.papers.inputs import Given, once
from local_bench.report.papers.table import Cell, Column, Table
from local_bench.settle.idea import CATEGORIES
from local_bench.suites.idea_bench.export import results_by_model
from local_bench.suites.idea_bench.published import category_of, published
from local_bench.suites.idea_bench.results import CATEGORY_OF, Row, read_results
from local_bench.suites.idea_bench.tasks import read_categories

CLIP_SCORE = "clip_cap"
_METHOD = Column("method", "Method")
_PARAMETERS = Column("parameters_b", "Param. (B)", "g")
_WITH_ENCODERS = "parameters are those of the model cards, encoders included; the paper counts without them"
Results = Mapping[str, Sequence[Row]]


def gathered(given: Given) -> Results:
    """Model -> answers; each file has one method's answers and is named after it. UserError if a model is in two
    sources."""
    if given.runs:
        of_runs = [(run.path, results_by_model(run_results(run))) for run in given.runs]
        once(of_runs)
        return {model: rows for _, of in of_runs for model, rows in of.items()}
    once([(path, [path.stem]) for path in given.files], "the method")
    found = {path.stem: read_results(path) for path in given.files}
    if given.options.tasks is None:
        return found
    known = read_categories(given.options.tasks, lambda _: None)  # `score` and a run name the case
    return {name: [replace(row, category=known.get(row.task_id)) for row in rows] for name, rows in found.items()}


def _parameters(given: Given) -> dict[str, float]:
    """Model -> billions of parameters by its card; only of models that have a card here."""
    found = {}
    for run in given.runs:
        for model in run.config.models:
            if model.imported is not None:
                continue
            try:
                found[model.label] = card(model.card, "generator").parameters_b
            except ConfigError:
                continue  # a run of another installation: its cards need not be here
    return found


def table_1(given: Given) -> Table:
    """The row of the runs' own tasks."""
    tasks: dict[str, Task] = {task.task_id: task for run in given.runs for task in run.store.tasks()}
    present = {task.category for task in tasks.values()}
    judges = sorted({label for run in given.runs for label in judge_labels(run).values()})
    columns = (
        *(Column("benchmark", "Benchmark"), Column("tasks", "Tasks", "d"), Column("cases", "Cases", "d")),
        *(Column(name, name, group="Evaluation Category") for name in CATEGORIES),
        *(Column("length", "Avg. Length", ".2f"), Column("judge", "MLLM Eval.")),
    )
    uids = {str(task.own["uid"]) for task in tasks.values()}
    length = fmean(len(task.brief.split()) for task in tasks.values())
    row: tuple[Cell, ...] = ("IDEA-Bench", len(uids), len(tasks), *(c in present for c in CATEGORIES))
    notes = (
        "the length is in words separated by white space; the paper does not name its unit",
        "the other benchmarks' rows are from their publications and are left out",
    )
    return Table(
        "IDEA-Bench, table 1: statistics of the benchmark",
        columns,
        ((*row, length, ", ".join(judges) or None),),
        notes,
    )


def table_2(given: Given) -> Table:
    """The five categories, of all tasks whose category is known; a dash counts 0 in the average."""
    found = {model: published(rows) for model, rows in gathered(given).items()}
    sizes = _parameters(given)
    columns = (
        *(_METHOD, _PARAMETERS),
        *(Column(name, name, ".2f", "Scores on All Categories", True) for name in CATEGORIES),
        Column("average", "Avg. Score", ".2f", higher_is_better=True),
    )
    rows = tuple((model, sizes.get(model), *_categories(of.data), of.data["overall"]) for model, of in found.items())
    notes = tuple(dict.fromkeys(f"{model}: {note}" for model, of in found.items() for note in of.notes))
    return Table("IDEA-Bench, table 2: scores by category", columns, rows, (*_sized(sizes), *notes))


def _sized(sizes: Mapping[str, float]) -> tuple[str, ...]:
    return (_WITH_ENCODERS,) if sizes else ()


def _categories(data: Mapping[str, Any]) -> list[Cell]:
    return [None if name in data["without_tasks"] else data["categories"][name] for name in CATEGORIES]


def subtasks(given: Given, category: str) -> Table:
    """Tables 3 to 7: the scores of one category's tasks, and their mean."""
    found = gathered(given)
    names: dict[str, str] = {}
    for rows in found.values():
        by_uid: dict[str, list[Row]] = {}
        for row in rows:
            by_uid.setdefault(row.task_id, []).append(row)
        names |= {uid: of[0].task_name for uid, of in by_uid.items() if category_of(of) == category}
    if not names:
        raise UserError(
            f"nothing given has a task of {category}: give a run with such tasks, or with result files the dataset "
            "folder as --tasks"
        )
    sizes = _parameters(given)
    columns = (
        *(_METHOD, _PARAMETERS),
        *(Column(uid, name, ".2f", "Subtasks Score", True) for uid, name in sorted(names.items())),
        Column("average", "Avg. Score", ".2f", higher_is_better=True),
    )
    cells = []
    for model, rows in found.items():
        data = published(rows).data
        scores = [data["tasks"].get(uid) for uid in sorted(names)]
        average = None if category in data["without_tasks"] else data["categories"][category]
        cells.append((model, sizes.get(model), *scores, average))
    number = 3 + CATEGORIES.index(category)
    return Table(f"IDEA-Bench, table {number}: subtasks of {category}", columns, tuple(cells), _sized(sizes))


def table_8(given: Given) -> Table:
    """The mini subset: CLIPScore, the judge (G.) and people (H.), whose answers are result files of the same form."""
    found = gathered(given)
    of_people = {path.stem: read_results(path) for path in given.options.people}
    stray = next((name for name in of_people if name not in found), None)
    if stray is not None:
        path = next(path for path in given.options.people if path.stem == stray)
        raise UserError(f"{path} is of the method {stray!r}, which no source has: name the file METHOD.csv")
    clip = _clip_scores(given)
    groups = (*CATEGORIES, "Avg. Score")
    columns = (
        *(_METHOD, Column("clip_score", "CLIPScore", ".4f")),
        *(Column(f"{group}_{key}", name, ".2f", group) for group in groups for key, name in (("g", "G."), ("h", "H."))),
    )
    rows = []
    for model, answers in found.items():
        judge, people = _mini(answers), _mini(of_people.get(model, ()))
        rows.append((model, clip.get(model), *(cell for pair in zip(judge, people, strict=True) for cell in pair)))
    notes = [
        "G. is the run's judge; the categories are the 16 tasks of the official scorer, though the paper counts 18",
        *([] if of_people else ["people's answers are not given: --people METHOD.csv, in the form of the results CSV"]),
        *([] if clip else [f"no image has the metric {CLIP_SCORE}, so there is no CLIPScore"]),
    ]
    return Table("IDEA-Bench, table 8: the mini subset", columns, tuple(rows), tuple(notes))


def _mini(rows: Sequence[Row]) -> list[Cell]:
    kept = [replace(row, category=None) for row in rows if row.task_id in CATEGORY_OF]
    if not kept:
        return [None] * (len(CATEGORIES) + 1)
    data = published(kept).data
    return [*_categories(data), data["overall"]]


def _clip_scores(given: Given) -> dict[str, float]:
    """Model -> the mean of CLIP's cosine of prompt and image over its images of mini tasks that have it."""
    values: dict[str, list[float]] = {}
    for run in given.runs:
        for row in image_results(run):
            score = row.scores.get(CLIP_SCORE)
            if (
                score is not None
                and score.value is not None
                and row.attempt == 1
                and row.task.own["uid"] in CATEGORY_OF
            ):
                values.setdefault(row.model, []).append(score.value)
    return {model: fmean(of) for model, of in values.items()}
