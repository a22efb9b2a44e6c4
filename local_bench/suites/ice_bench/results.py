"""ICE-Bench's `eval_result.txt`: one line an item, `ItemID#;#Task#;#{"metric": value, …}`, raw metrics as measured."""

import difflib
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_bench.core import strictjson
from local_bench.core.errors import ResultFileError
from local_bench.core.files import read_text
from local_bench.core.messages import kind

SEPARATOR = "#;#"
_ROUNDING = 1e-4
"""By how much float32 arithmetic may exceed a metric's limits (a cosine of 1.0000001)."""


@dataclass(frozen=True)
class Item:
    """One item's raw metrics; None where a metric could not be had (null in the file)."""

    item_id: str
    task: str
    metrics: dict[str, float | None]


def read_eval_result(path: Path, tasks: Collection[str], limits: Mapping[str, tuple[float, float]]) -> list[Item]:
    """The items of the file, in its order; `tasks` are the names that a task may have, `limits` the least and the
    greatest value of the metrics that have them.

    ResultFileError with file, line and reason: for a line of another form, an unknown task, a metric that is no
    finite number or outside its limits, an item that stands there twice, a file without items.
    """
    lines = read_text(path, ResultFileError, missing="give an eval_result.txt of ICE-Bench").splitlines()
    items: list[Item] = []
    first: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        item = _item(line.strip(), f"{path}, line {number}", tasks, limits)
        if item.item_id in first:
            twice = f"the item {item.item_id!r} stands on line {first[item.item_id]} too"
            raise ResultFileError(f"{path}, line {number}: {twice}: keep one of them")
        first[item.item_id] = number
        items.append(item)
    if not items:
        raise ResultFileError(f"{path} holds no items: give a file with one line an item")
    return items


def _item(line: str, where: str, tasks: Collection[str], limits: Mapping[str, tuple[float, float]]) -> Item:
    parts = line.split(SEPARATOR, 2)
    if len(parts) != 3 or not parts[0]:
        raise ResultFileError(f"{where}: an item is ItemID{SEPARATOR}Task{SEPARATOR}JSON: mend the line")
    item_id, task, text = parts
    if task not in tasks:
        near = difflib.get_close_matches(task, tasks, 1, 0.5)
        hint = f"did they mean {near[0]!r}?" if near else "the tasks are those of the benchmark's data.jsonl"
        raise ResultFileError(f"{where}: there is no task {task!r}: {hint}")
    try:
        values = strictjson.loads(text)
    except (ValueError, RecursionError) as e:
        way_out = "write null for a metric that could not be had"
        raise ResultFileError(f"{where}: the metrics are not JSON ({e}): {way_out}") from None
    if not isinstance(values, dict):
        raise ResultFileError(f"{where}: the metrics are a JSON object, not {kind(values)}: mend the line")
    return Item(item_id, task, {name: _value(name, value, where, limits) for name, value in values.items()})


def _value(name: str, value: Any, where: str, limits: Mapping[str, tuple[float, float]]) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ResultFileError(f"{where}: {name} is a finite number, or null where it could not be had")
    low, high = limits.get(name, (-math.inf, math.inf))
    if not low - _ROUNDING <= value <= high + _ROUNDING:
        raise ResultFileError(f"{where}: {name} is a number from {low:g} to {high:g}, not {value:g}: correct the value")
    return float(value)
