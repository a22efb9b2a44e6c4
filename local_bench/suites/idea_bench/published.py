"""IDEA-Bench's hierarchical score (sec. 3.3): six yes/no questions per case on three levels; and its results table.

Questions 1 and 2 are task requirements, 3 and 4 completion, 5 and 6 detail and aesthetics. If a level has an answer
other than yes, the levels above it count 0. A case scores its sum over 6, averaged over the repeats; a subtask is the
mean of its cases in percent, a category the mean of its subtasks, the overall score the mean of the five categories,
with 0 for one that a model does not support ("-" in table 2).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from local_bench.core.errors import count
from local_bench.core.table import Column, table_of
from local_bench.core.types import Score
from local_bench.settle.intervals import stratified_interval
from local_bench.suites.idea_bench.results import CATEGORY_OF, QUESTIONS, REPEATS, ROWS, Case, Row, rows_of
from local_bench.suites.published import Published, listed, number
from local_bench.suites.run_results import RunResults

CATEGORIES = ("T2I", "I2I", "Is2I", "T2Is", "I(s)2Is")

YES, NO, UNSCORED, MISSING = 1, 0, -1, -2
Answers = NDArray[np.int8]
"""(cases, repeats, 6) YES, NO, UNSCORED or MISSING."""


def points(yes: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Points of six answers, 0 to 6: (..., 6) -> (...)."""
    task, completion, detail = (yes[..., i : i + 2] for i in (0, 2, 4))
    through = task.all(axis=-1)
    counted = task.sum(axis=-1) + through * (completion.sum(axis=-1) + completion.all(axis=-1) * detail.sum(axis=-1))
    return np.asarray(counted, dtype=np.int64)


@dataclass(frozen=True)
class Subtask:
    """Score of one task (a subtask in the paper), in percent; `low` with open answers as no, `high` as yes."""

    low: Fraction
    high: Fraction
    cases: tuple[float, ...]
    """Score of each case in percent, open answers as no."""
    n_unscored: int
    n_missing: int

    @property
    def n_cases(self) -> int:
        return len(self.cases)


def subtask(answers: Answers) -> Subtask:
    """Score of one task from its cases."""
    yes = points(answers == YES)
    ends = _percent(yes), _percent(points(answers != NO)), tuple(float(_percent(case)) for case in yes)
    return Subtask(*ends, int((answers == UNSCORED).sum()), int((answers == MISSING).sum()))


def _percent(counted: NDArray[np.int64]) -> Fraction:
    return Fraction(100 * int(counted.sum()), QUESTIONS * counted.size) if counted.size else Fraction(0)


def category(subtasks: Iterable[Fraction]) -> Fraction | None:
    """Mean of a category's subtasks; None without any: not supported by the model, or not run."""
    scores = list(subtasks)
    return sum(scores, Fraction(0)) / len(scores) if scores else None


def overall(categories: Mapping[str, Fraction | None]) -> Fraction:
    """Mean of the five categories, None and absent ones as 0 (table 2)."""
    return sum((categories.get(name) or Fraction(0) for name in CATEGORIES), Fraction(0)) / len(CATEGORIES)


def interval(categories: Iterable[Sequence[Subtask]], n: int) -> tuple[float, float] | None:
    """95 % interval, for other cases of the same tasks, of the mean of `n` categories, absent ones as 0. None if a task
    has one case."""
    return stratified_interval(
        [(1 / n / len(subtasks), task.cases) for subtasks in categories for task in subtasks], 100
    )


CASE = "idea_case"


def published(rows: Sequence[Row]) -> Published:
    """Scores of tasks, categories and overall, in percent."""
    by_task: dict[str, list[Row]] = {}
    for row in rows:
        by_task.setdefault(row.task_id, []).append(row)
    tasks = {uid: subtask(answers(by_task[uid])) for uid in sorted(by_task)}
    of_task = {uid: category_of(by_task[uid]) for uid in tasks}
    outside = [uid for uid in tasks if of_task[uid] is None]
    all_placed = not outside
    of_category = {name: [tasks[uid] for uid in tasks if of_task[uid] == name] for name in CATEGORIES}
    # a category without tasks counts 0 (a dash in table 2), unless a task of unknown category may belong to it
    empty = Fraction(0) if all_placed else None
    low = {name: category(task.low for task in of) if of else empty for name, of in of_category.items()}
    high = {name: category(task.high for task in of) if of else empty for name, of in of_category.items()}
    ends = {name: interval([subtasks], 1) if all_placed else None for name, subtasks in of_category.items()}
    ends_overall = interval(of_category.values(), len(CATEGORIES)) if all_placed else None
    unsupported = [name for name, of in of_category.items() if not of]
    left = sum(task.n_unscored for task in tasks.values()), sum(task.n_missing for task in tasks.values())
    data = {
        "suite": "idea-bench",
        "tasks": {uid: number(task.low) for uid, task in tasks.items()},
        "categories": {name: number(score) for name, score in low.items()},
        "overall": number(overall(low)) if all_placed else None,
        "tasks_high": {uid: number(task.high) for uid, task in tasks.items()},
        "categories_high": {name: number(score) for name, score in high.items()},
        "overall_high": number(overall(high)) if all_placed else None,
        "categories_ci95_low": {name: bounds and bounds[0] for name, bounds in ends.items()},
        "categories_ci95_high": {name: bounds and bounds[1] for name, bounds in ends.items()},
        "overall_ci95_low": ends_overall and ends_overall[0],
        "overall_ci95_high": ends_overall and ends_overall[1],
        "without_tasks": unsupported,
        "without_category": outside,
        "n_rows": len(rows),
        "n_cases": sum(task.n_cases for task in tasks.values()),
        "n_unscored": left[0],
        "n_missing": left[1],
    }
    names = {uid: task_rows[0].task_name for uid, task_rows in by_task.items()}
    rows_of_tasks = [
        {**vars(task), "uid": uid, "name": names[uid], "category": of_task[uid], "n_cases": task.n_cases}
        for uid, task in tasks.items()
    ]
    averages = [
        *((name, low[name], ends[name], high[name]) for name in CATEGORIES),
        ("all", data["overall"], ends_overall, data["overall_high"]),
    ]
    tables = [table_of("tasks", _TASKS, rows_of_tasks), table_of("categories", _CATEGORIES, averages)]
    return Published(data, tables, [*_notes(*left, len(rows)), *average_notes(unsupported, outside)])


def case_scores(results: RunResults) -> dict[str, Score]:
    """Work id of every image -> the score of its case in percent (sec. 3.3), which the images of a case share; unscored
    if answers are missing that could change it."""
    cases: dict[tuple[str, str, int], Case] = {}
    for row in results.images:
        cases.setdefault((row.model, row.task.task_id, row.attempt), []).append(row)
    by_work: dict[str, Score] = {}
    for case in cases.values():
        counted = subtask(answers(rows_of(case, results.verdicts)))
        reason = None
        if counted.low != counted.high:
            reason = f"{counted.n_unscored} of {QUESTIONS * REPEATS} answers are missing"
        score = Score(CASE, None if reason else float(counted.low), reason)
        by_work |= {image.work_id: score for image in case if image.pixels_sha256}
    return by_work


def answers(rows: Sequence[Row]) -> Answers:
    """One task's rows as a table (cases, repeats, questions); MISSING if there is no row."""
    cases = {case: i for i, case in enumerate(sorted({row.case_id for row in rows}))}
    table = np.full((len(cases), REPEATS, QUESTIONS), MISSING, dtype=np.int8)
    for row in rows:
        table[cases[row.case_id], :, row.question - 1] = [UNSCORED if s is None else s for s in row.scores]
    return table


def category_of(rows: Sequence[Row]) -> str | None:
    """A task's category: from its data (meta.json), or from the mini subset's uid; None if neither is known."""
    return next((row.category for row in rows if row.category), CATEGORY_OF.get(rows[0].task_id))


_TASKS = (
    *(Column("uid", "task"), Column("name", "name"), Column("category", "category")),
    *(Column("low", "score", ".2f"), Column("high", "at best", ".2f")),
    *(Column("n_cases", "cases"), Column("n_unscored", "unscored"), Column("n_missing", "missing")),
)
_CATEGORIES = (
    *(Column("0", "category"), Column("1", "score", ".2f")),
    *(Column(f"2.{i}", end, ".2f", "95 % (other cases)", below=True) for i, end in enumerate(("low", "high"))),
    Column("3", "at best", ".2f"),
)


def _notes(unscored: int, missing: int, n_rows: int) -> list[str]:
    notes = []
    if n_rows != ROWS:
        notes.append(
            f"the file has {count(n_rows, 'rows')} and the official scorer expects {ROWS}: a case without a row is "
            "not counted"
        )
    if unscored:
        them = count(unscored, "answers have no score: they count")
        notes.append(f"{them} as no, and as yes in values ending in _high")
    if missing:
        notes.append(f"{count(missing, 'answers have no row: they count')} as no, and as yes in values ending in _high")
    return notes


def average_notes(unsupported: Sequence[str], outside: Sequence[str]) -> list[str]:
    """What the averages do not contain: categories without answers (`without_tasks`), and tasks of unknown category
    (`without_category`)."""
    notes = []
    if unsupported and not outside:
        notes.append(f"no answers for tasks of {listed(unsupported)}: these categories count as 0 in the overall score")
    if outside:
        notes.append(
            f"the category of these tasks is unknown, so they are in no average and there is no overall score: "
            f"{listed(outside)}; "
            "give the benchmark's dataset folder (with each case's meta.json) as --tasks"
        )
    return notes
