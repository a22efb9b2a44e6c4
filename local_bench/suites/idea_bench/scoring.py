"""IDEA-Bench's hierarchical score (sec. 3.3): six yes/no questions per case on three levels.

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

from local_bench.settle.intervals import stratified_interval

QUESTIONS = 6
REPEATS = 3
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
    return _mean(list(subtasks))


def overall(categories: Mapping[str, Fraction | None]) -> Fraction:
    """Mean of the five categories, None and absent ones as 0 (table 2)."""
    return sum((categories.get(name) or Fraction(0) for name in CATEGORIES), Fraction(0)) / len(CATEGORIES)


def interval(categories: Iterable[Sequence[Subtask]], n: int) -> tuple[float, float] | None:
    """95 % interval, for other cases of the same tasks, of the mean of `n` categories, absent ones as 0. None if a task
    has one case."""
    return stratified_interval(
        [(1 / n / len(subtasks), task.cases) for subtasks in categories for task in subtasks], 100
    )


def _mean(values: list[Fraction]) -> Fraction | None:
    return sum(values, Fraction(0)) / len(values) if values else None
