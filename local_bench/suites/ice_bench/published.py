"""ICE-Bench's scores from an eval_result.txt."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum

from local_bench.core.errors import count
from local_bench.core.table import Column, table_of
from local_bench.core.types import Score, Task
from local_bench.settle.intervals import stratified_interval
from local_bench.suites.ice_bench.results import Item
from local_bench.suites.ice_bench.scoring import TASKS, composite, dimensions, item_scores, needed, overall, range_of
from local_bench.suites.published import Published, listed

COMPOSITE = "ice_composite"


@dataclass(frozen=True)
class _Task:
    score: float | None
    """None, as are both bounds, if a needed metric has no value at all."""
    low: float | None
    high: float | None
    dimensions: dict[str, float]
    n: int
    n_unscored: int
    lacking: tuple[str, ...]
    """Metrics that no item has."""
    items: list[float]
    """Score of each item; empty if `score` is None."""


def published(items: Sequence[Item]) -> Published:
    """Scores of the tasks and overall, in [0, 1]. A metric's mean is over the items that have it; the bounds assume the
    metric's worst and best value where it is missing. A task is unscored if none of its items has one of the needed
    metrics: its score and both bounds are null, and like a task without items it is excluded from `overall`,
    `overall_low` and `overall_high`."""
    by_task: dict[str, list[Item]] = {}
    for item in items:
        by_task.setdefault(item.task, []).append(item)
    tasks = {name: _task(name, by_task[name]) for name in TASKS if name in by_task}
    scores = {name: task.score for name, task in tasks.items()}
    lows = {name: task.low for name, task in tasks.items()}
    highs = {name: task.high for name, task in tasks.items()}
    whole = [overall(by_name) for by_name in (scores, lows, highs)]
    scored = [task.items for task in tasks.values() if task.items]
    ends = {name: stratified_interval([(1.0, task.items)]) if task.items else None for name, task in tasks.items()}
    ends_overall = stratified_interval([(1 / len(scored), values) for values in scored])
    absent = [name for name in TASKS if name not in by_task]
    unscored = [name for name, score in scores.items() if score is None]
    data = {
        "suite": "ice-bench",
        "tasks": scores,
        "overall": whole[0],
        "tasks_low": lows,
        "tasks_high": highs,
        "overall_low": whole[1],
        "overall_high": whole[2],
        "tasks_ci95_low": {name: interval and interval[0] for name, interval in ends.items()},
        "tasks_ci95_high": {name: interval and interval[1] for name, interval in ends.items()},
        "overall_ci95_low": ends_overall and ends_overall[0],
        "overall_ci95_high": ends_overall and ends_overall[1],
        "dimensions": {name: task.dimensions for name, task in tasks.items()},
        "missing_tasks": absent,
        "unscored_tasks": unscored,
        "n_items": {name: task.n for name, task in tasks.items()},
        "n_unscored": {name: task.n_unscored for name, task in tasks.items()},
    }
    rows = [(name, t.score, ends[name], t.low, t.high, t.n, t.n_unscored) for name, t in tasks.items()]
    n_unscored = sum(task.n_unscored for task in tasks.values())
    whole_row = ("all", whole[0], ends_overall, *whole[1:], len(items), n_unscored)
    return Published(data, [table_of("tasks", _COLUMNS, [*rows, whole_row])], _notes(tasks, absent))


_COLUMNS = (
    *(Column("0", "task"), Column("1", "score", ".4f")),
    *(Column(f"2.{i}", end, ".4f", "95 % (other items)", below=True) for i, end in enumerate(("low", "high"))),
    *(Column("3", "low", ".4f"), Column("4", "high", ".4f"), Column("5", "items"), Column("6", "unscored")),
)


def image_score(task: Task, scores: Mapping[str, Score]) -> Score:
    """The composite of one image (eqs. 1 to 10), in [0, 1], from its raw metrics by the benchmark's names; unscored if
    a needed one has no value.

    An item is scored by its own task's recipe. An image of another benchmark is scored as an edit (one recipe for 18
    tasks) if its task gives a source alone, and as Text2Image if it gives no image. With a reference the score does not
    apply: the recipe depends on what it shows (a face, a style, a subject), which other benchmarks do not state."""
    name = task.category
    if name not in TASKS:
        if task.reference_sha256:
            return Score(COMPOSITE, None, applies=False)
        name = "Text2Image" if task.source_sha256 is None else "Color Editing"
    by_metric = {metric: scores.get(metric) for metric in needed(name)}
    means = {
        metric: score.value for metric, score in by_metric.items() if score is not None and score.value is not None
    }
    lacking = [
        f"{metric} {score.unscored or 'does not apply' if score else 'was not computed'}"
        for metric, score in by_metric.items()
        if metric not in means
    ]
    return Score(COMPOSITE, None, "; ".join(lacking)) if lacking else Score(COMPOSITE, composite(name, means))


def _task(name: str, items: Sequence[Item]) -> _Task:
    means: dict[str, float] = {}
    worst: dict[str, float] = {}
    best: dict[str, float] = {}
    open_values = 0
    lacking = []
    for metric in needed(name):
        values = [v for v in (item.metrics.get(metric) for item in items) if v is not None]
        left = len(items) - len(values)
        open_values += left
        low, high = range_of(metric)
        if not values:
            lacking.append(metric)
            continue
        worse, better = (max, min) if low > high else (min, max)  # a cosine may be negative
        worst[metric] = fsum([*values, left * worse(low, *values)]) / len(items)
        best[metric] = fsum([*values, left * better(high, *values)]) / len(items)
        means[metric] = fsum(values) / len(values)
    present = [{name: value for name, value in item.metrics.items() if value is not None} for item in items]
    return _Task(
        score=None if lacking else composite(name, means),
        low=None if lacking else composite(name, worst),
        high=None if lacking else composite(name, best),
        dimensions={} if lacking else dimensions(name, means),
        n=len(items),
        n_unscored=open_values,
        lacking=tuple(lacking),
        items=[] if lacking else item_scores(name, present),
    )


def _notes(tasks: dict[str, _Task], absent: Sequence[str]) -> list[str]:
    notes = []
    if absent:
        them = f"{len(absent)} of {len(TASKS)} tasks {'is' if len(absent) == 1 else 'are'}"
        notes.append(f"{them} not in the file and not in the mean: {listed(absent)}")
    notes += [
        f"{name} is unscored and not in the mean: no item has {listed(task.lacking)}"
        for name, task in tasks.items()
        if task.lacking
    ]
    if some := sum(task.n_unscored for task in tasks.values()):
        them = count(some, "metric values are")
        notes.append(f"{them} missing: means are over the others, the bounds assume the worst and the best")
    return notes
