"""IDEA-Bench's tables, from the answers to its six questions: the judge's, or in tables 2 to 7 people's, as in the
paper."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from local_bench.analysis.agreement import judge_labels
from local_bench.analysis.official import image_results, run_results
from local_bench.annotation.ratings import load_annotations
from local_bench.core.errors import ConfigError, UserError, count
from local_bench.core.table import Cell, Column, Table
from local_bench.core.types import Task
from local_bench.models.cards import card
from local_bench.report.papers.inputs import Request, once
from local_bench.report.render import DAGGER
from local_bench.suites.idea_bench.published import CATEGORIES, average_notes, category_of, published
from local_bench.suites.idea_bench.results import CATEGORY_OF, REPEATS, Row, read_results, results_by_model
from local_bench.suites.idea_bench.suite import SCORES, rephrased
from local_bench.suites.idea_bench.tasks import FOR_PEOPLE, read_categories
from local_bench.suites.registry import suite

Case = tuple[str, str]
"""(the task's uid, case id)"""


@dataclass
class Labels:
    """The labels of all runs."""

    answers: dict[str, list[Row]] = field(default_factory=dict)
    """Model -> the annotators' consensus; a question without one has no score."""
    raters: set[str] = field(default_factory=set)
    tied: set[tuple[str, Case, int]] = field(default_factory=set)
    """(model, case, question) with as many annotators for yes as for no."""
    not_made: set[tuple[str, Case]] = field(default_factory=set)
    """(model, case) without any image, for which the model failed: it scores 0 (sec. 3.3.1)."""
    combined: set[tuple[str, Case, int]] = field(default_factory=set)
    """(model, case, question) that an annotator answered with a fraction: repeats of a result file combined."""
    by_judges_questions: set[Case] = field(default_factory=set)
    """Mini cases without questions for people."""

    def notes(self, counted: Callable[[Row], bool] = lambda _: True) -> list[str]:
        """The numbers of annotators and of labelled, tied and unlabelled questions in the counted rows, and how they
        differ from the paper's."""
        rows = [
            (m, (row.task_id, row.case_id), row) for m, part in self.answers.items() for row in part if counted(row)
        ]
        shown = [(m, case, row) for m, case, row in rows if (m, case) not in self.not_made]
        labelled = sum(row.scores[0] is not None for _, _, row in shown)
        tied = sum((m, case, row.question) in self.tied for m, case, row in shown)
        cases = {case for _, case, _ in rows}
        notes = [
            f"people: {count(len(self.raters), 'annotators')}; {labelled} of {count(len(shown), 'questions have')} a "
            f"label, {tied} are tied and {len(shown) - labelled - tied} have none; a score that depends on these is "
            "missing"
        ]
        if n := sum((m, case, row.question) in self.combined for m, case, row in shown):
            notes.append(f"people: {count(n, 'labels are fractions')} (combined repeats); each counts as one yes or no")
        if absent := len({(m, case) for m, case, _ in rows} & self.not_made):
            notes.append(f"people: {count(absent, 'cases have')} no image and score 0")
        if cases & self.by_judges_questions:
            notes.append(
                f"people: {count(len(cases & self.by_judges_questions), 'mini cases have')} no eval.json in the run, "
                "so the questions are the judge's; in the paper they are those of eval.json"
            )
        return notes


CLIP_SCORE = "clip_cap"
_METHOD = Column("method", "Method")
_PARAMETERS = Column("parameters_b", "Param. (B)", "g")
_WITH_ENCODERS = "parameters are those of the model cards, encoders included; the paper counts without them"
Results = Mapping[str, Sequence[Row]]


def gathered(request: Request) -> Results:
    """Model -> answers; each file has one method's answers and is named after it. UserError if a model is in two
    sources."""
    if request.runs:
        of_runs = [(run.path, results_by_model(run_results(run))) for run in request.runs]
        once(of_runs)
        return {model: rows for _, by_model in of_runs for model, rows in by_model.items()}
    once([(path, [path.stem]) for path in request.files], "the method")
    files = {path.stem: read_results(path) for path in request.files}
    if request.options.tasks is None:
        return files
    kinds = read_categories(request.options.tasks, lambda _: None)  # `score` and a run name the case
    return {name: [replace(row, category=kinds.get(row.task_id)) for row in rows] for name, rows in files.items()}


def _answers(request: Request) -> tuple[Results, Labels | None]:
    """Model -> answers: people's with `--people`, else the judge's."""
    if not request.options.people:
        return gathered(request), None
    labels = labels_of(request)
    return labels.answers, labels


def _certain(data: Mapping[str, Any]) -> dict[str, Any]:
    """The published numbers without those that open questions could change."""

    def same(low: float | None, high: float | None) -> float | None:
        return low if low == high else None

    kept = {
        key: {name: same(low, data[f"{key}_high"][name]) for name, low in data[key].items()}
        for key in ("tasks", "categories")
    }
    return {**data, **kept, "overall": same(data["overall"], data["overall_high"])}


def _rephrased(request: Request, counted: Callable[[Task], bool] = lambda _: True) -> dict[str, int]:
    """Model -> number of the counted cases for which it received rephrased prompts; only models with any."""
    cases: dict[str, set[str]] = {}
    for run in request.runs:
        tasks = {task.task_id: task for task in run.store.tasks() if counted(task)}
        for row in run.store.candidates():
            if row.task_id in tasks and rephrased(tasks[row.task_id], row.prompt):
                cases.setdefault(row.model, set()).add(row.task_id)
    return {model: len(case_ids) for model, case_ids in cases.items()}


def _named(model: str, marked: Mapping[str, int]) -> str:
    return f"{model}{DAGGER}" if model in marked else model


def _dagger_note(marked: Mapping[str, int]) -> list[str]:
    if not marked:
        return []
    cases = ", ".join(f"{model} {n}" for model, n in marked.items())
    return [f"{DAGGER}: prompts rephrased by an MLLM (`local-bench extract`); cases with such prompts: {cases}"]


def _parameters(request: Request) -> dict[str, float]:
    """Model -> billions of parameters by its card; only of models that have a card here."""
    billions = {}
    for run in request.runs:
        for model in run.config.models:
            if model.imported is not None:
                continue
            try:
                billions[model.label] = card(model.card, "generator").parameters_b
            except ConfigError:
                continue  # a run of another installation: its cards need not be here
    return billions


def table_1(request: Request) -> Table:
    """The row of the runs' own tasks."""
    tasks: dict[str, Task] = {task.task_id: task for run in request.runs for task in run.store.tasks()}
    present = {task.category for task in tasks.values()}
    judges = sorted({label for run in request.runs for label in judge_labels(run).values()})
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
        "IDEA-Bench, table 1: statistics of the benchmark", columns, ((*row, length, ", ".join(judges) or None),), notes
    )


def table_2(request: Request) -> Table:
    """The five categories, of all tasks whose category is known; a dash counts 0 in the average."""
    answers_of, labels = _answers(request)
    sizes, marked = _parameters(request), _rephrased(request)
    columns = (
        *(_METHOD, _PARAMETERS),
        *(Column(name, name, ".2f", "Scores on All Categories", True) for name in CATEGORIES),
        Column("average", "Avg. Score", ".2f", higher_is_better=True),
    )
    rows, notes = [], list[str]()
    for model, answers in answers_of.items():
        numbers = published(answers)
        data, model_notes = numbers.data, [note for note in numbers.notes if not note.endswith("_high")]
        if labels is not None:
            data = _certain(numbers.data)
            low, high = numbers.data["overall"], numbers.data["overall_high"]
            between = [] if low == high else [f"the average is between {low:.2f} and {high:.2f}"]
            model_notes = [*between, *average_notes(data["without_tasks"], data["without_category"])]
        if data["overall"] is not None and (low := numbers.data["overall_ci95_low"]) is not None:
            ends = f"{low:.2f} to {numbers.data['overall_ci95_high']:.2f}"
            model_notes = [*model_notes, f"the average's 95 % interval, for other cases of the same tasks, is {ends}"]
        rows.append((_named(model, marked), sizes.get(model), *_categories(data), data["overall"]))
        notes += [f"{model}: {note}" for note in model_notes]
    of_people = _missing(answers_of) if labels is None else labels.notes()
    notes = [*([_WITH_ENCODERS] if sizes else []), *_dagger_note(marked), *of_people, *dict.fromkeys(notes)]
    return Table("IDEA-Bench, table 2: scores by category", columns, tuple(rows), tuple(notes))


def _missing(answers_of: Results, tasks: Collection[str] | None = None) -> list[str]:
    """How many answers about the tasks (by uid; all by default) have no score, and the averages if all were yes: one
    sentence per model."""
    notes = []
    for model, rows in answers_of.items():
        data = published([row for row in rows if tasks is None or row.task_id in tasks]).data
        if n := data["n_unscored"] + data["n_missing"]:
            best = {name: data["categories_high"][name] for name in CATEGORIES if name not in data["without_tasks"]}
            most = ", ".join(f"{name} {high:.2f}" for name, high in best.items() if high is not None)
            notes.append(
                f"{model}: {count(n, 'answers have no score and count')} as no; with yes at best {most or 'unknown'}"
            )
    return notes


def _categories(data: Mapping[str, Any]) -> list[Cell]:
    return [None if name in data["without_tasks"] else data["categories"][name] for name in CATEGORIES]


def subtasks(request: Request, category: str) -> Table:
    """Tables 3 to 7: the scores of one category's tasks, and their mean."""
    answers_of, labels = _answers(request)
    names: dict[str, str] = {}
    for rows in answers_of.values():
        by_uid: dict[str, list[Row]] = {}
        for row in rows:
            by_uid.setdefault(row.task_id, []).append(row)
        names |= {uid: uid_rows[0].task_name for uid, uid_rows in by_uid.items() if category_of(uid_rows) == category}
    if not names and category in {task.category for run in request.runs for task in run.store.tasks()}:
        raise UserError(f"no model has an image for the tasks of {category}: give a run with a model that supports any")
    if not names:
        raise UserError(
            f"nothing given has a task of {category}: give a run with such tasks, or with result files the dataset "
            "folder as --tasks"
        )
    sizes, marked = _parameters(request), _rephrased(request, lambda task: task.category == category)
    columns = (
        *(_METHOD, _PARAMETERS),
        *(Column(uid, name, ".2f", "Subtasks Score", True) for uid, name in sorted(names.items())),
        Column("average", "Avg. Score", ".2f", higher_is_better=True),
    )
    cells = []
    for model, rows in answers_of.items():
        data = published(rows).data if labels is None else _certain(published(rows).data)
        scores = [data["tasks"].get(uid) for uid in sorted(names)]
        average = None if category in data["without_tasks"] else data["categories"][category]
        cells.append((_named(model, marked), sizes.get(model), *scores, average))
    number = 3 + CATEGORIES.index(category)
    of_people = _missing(answers_of, names) if labels is None else labels.notes(lambda row: row.task_id in names)
    notes = (*([_WITH_ENCODERS] if sizes else []), *_dagger_note(marked), *of_people)
    return Table(f"IDEA-Bench, table {number}: subtasks of {category}", columns, tuple(cells), notes)


def table_8(request: Request) -> Table:
    """The mini subset: CLIPScore, the judge (G.) and people (H.), whose answers are labels, or result files of the same
    form."""
    answers_of = gathered(request)
    files = [path for path in request.options.people if path.suffix == ".csv"]
    labels = labels_of(request) if request.options.people and not files else None
    of_people: Results = _of_files(request, files, answers_of) if labels is None else labels.answers
    unscored = sum(row.scores.count(None) for people_rows in of_people.values() for row in people_rows) if files else 0
    name, clip = _clip_scores(request)
    marked = _rephrased(request, lambda task: task.own["uid"] in CATEGORY_OF)
    groups = (*CATEGORIES, "Avg. Score")
    columns = (
        *(_METHOD, Column("clip_score", "CLIPScore", ".4f")),
        *(Column(f"{group}_{key}", name, ".2f", group) for group in groups for key, name in (("g", "G."), ("h", "H."))),
    )
    rows = []
    for model, answers in answers_of.items():
        judge, people = _mini(answers), _mini(of_people.get(model, ()), only_certain=labels is not None)
        scores = (cell for pair in zip(judge, people, strict=True) for cell in pair)
        rows.append((_named(model, marked), clip.get(model), *scores))
    notes = [
        "G. is the run's judge; the categories are the 16 tasks of the official scorer, though the paper counts 18",
        *_dagger_note(marked),
        *_missing(answers_of, CATEGORY_OF),
        *([] if labels is None else labels.notes(lambda row: row.task_id in CATEGORY_OF)),
        *([] if of_people else ["people's answers are not given: --people RUN, or METHOD.csv like the results CSV"]),
        *([f"people: {count(unscored, 'answers in files have no score and count')} as no"] if unscored else []),
        *([] if clip else [f"no image has the metric {CLIP_SCORE}, so there is no CLIPScore"]),
        *([f"CLIPScore is the metric {name}"] if clip and name != CLIP_SCORE else []),
    ]
    return Table("IDEA-Bench, table 8: the mini subset", columns, tuple(rows), tuple(notes))


def _of_files(request: Request, files: Sequence[Path], answers_of: Results) -> Results:
    """Model -> people's answers in the files METHOD.csv. UserError if other labels are given too, and for a method that
    no source has."""
    other = next((path for path in request.options.people if path not in files), None)
    if other is not None:
        raise UserError(f"{files[0]} is a result file and {other} is not: give METHOD.csv files or annotations of runs")
    stray = next((path for path in files if path.stem not in answers_of), None)
    if stray is not None:
        raise UserError(f"{stray} is of the method {stray.stem!r}, which no source has: name the file METHOD.csv")
    return {path.stem: read_results(path) for path in files}


def _mini(rows: Sequence[Row], only_certain: bool = False) -> list[Cell]:
    kept = [replace(row, category=None) for row in rows if row.task_id in CATEGORY_OF]
    if not kept:
        return [None] * (len(CATEGORIES) + 1)
    data = published(kept).data
    data = _certain(data) if only_certain else data
    return [*_categories(data), data["overall"]]


def _clip_scores(request: Request) -> tuple[str, dict[str, float]]:
    """(the metric, model -> the mean of CLIP's cosine of prompt and image over its images of mini tasks that have it);
    without `clip_cap` the same by another CLIP model."""
    values: dict[str, dict[str, list[float]]] = {}
    for run in request.runs:
        for row in image_results(run):
            if row.attempt > 1 or row.task.own["uid"] not in CATEGORY_OF:
                continue
            for name, score in row.scores.items():
                if name.partition(":")[0] == CLIP_SCORE and score.value is not None:
                    values.setdefault(name, {}).setdefault(row.model, []).append(score.value)
    name = min(values, default=CLIP_SCORE)  # a name without a card is the first
    return name, {model: fmean(cosines) for model, cosines in values.get(name, {}).items()}


NO = (0,) * REPEATS


def labels_of(request: Request) -> Labels:
    """The labels of every run. UserError if they cannot be read, and if a model is in two runs."""
    file = next((path for path in request.options.people if path.suffix == ".csv"), None)
    if file is not None:
        raise UserError(f"--people {file} is a result file: give it instead of the run, or annotations as --people")
    once([(run.path, run.store.models()) for run in request.runs])
    result = Labels()
    for run, path in request.labelled:
        labels, results = load_annotations(path, run, {}), run_results(run)
        images = {image.work_id: image for image in results.images if image.attempt == 1}
        cases = {work_id: (image.model, _case(image.task)) for work_id, image in images.items()}
        failed = {cases[work_id] for work_id, image in images.items() if image.unscored is not None}
        failed -= {cases[work_id] for work_id, image in images.items() if image.unscored is None}
        consensus = {name: labels.consensus.get(name, {}) for name in SCORES}
        ratings = {w: {name: by_id[w].decision for name, by_id in consensus.items() if w in by_id} for w in images}
        for k, name in enumerate(SCORES, 1):
            result.tied |= {(*cases[work_id], k) for work_id in labels.tied.get(name, ()) if work_id in cases}
            rated = [by_id for opinion in labels.raters.values() for by_id in opinion.get(name, {}).items()]
            result.combined |= {(*cases[w], k) for w, r in rated if w in cases and r.number not in (None, 0, 1)}
        for model, rows in results_by_model(suite("idea-bench").annotated(results, ratings)).items():
            result.answers[model] = [
                replace(row, scores=NO) if (model, (row.task_id, row.case_id)) in failed else row for row in rows
            ]
        result.raters |= labels.raters.keys()
        result.not_made |= failed
        result.by_judges_questions |= {
            _case(task) for task in run.store.tasks() if "mini" in task.own["parts"] and FOR_PEOPLE not in task.own
        }
    return result


def _case(task: Task) -> Case:
    return str(task.own["uid"]), str(task.own["case_id"])
