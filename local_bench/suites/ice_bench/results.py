"""ICE-Bench's `eval_result.txt`: one line per item, `ItemID#;#Task#;#{"metric": value, …}`, raw metric values."""

import difflib
import math
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_bench.core import strictjson
from local_bench.core.errors import ResultFileError, UserError, kind
from local_bench.core.files import is_safe_id, read_text, safe_join
from local_bench.core.types import MAX_SCORE
from local_bench.suites.base import ImageFile
from local_bench.suites.json_io import line_of, read_object

SEPARATOR = "#;#"
_ROUNDING = 1e-4
"""Tolerance for float32 values outside a metric's limits (a cosine of 1.0000001)."""


@dataclass(frozen=True)
class Item:
    """One item's raw metrics; None for a metric without a value (null in the file)."""

    item_id: str
    task: str
    metrics: dict[str, float | None]


def read_eval_result(path: Path, tasks: Collection[str], limits: Mapping[str, tuple[float, float]]) -> list[Item]:
    """Read the items in the file's order; `tasks` are the known task names, `limits` the minimum and maximum of metrics
    that have them.

    ResultFileError with file, line and reason: for a malformed line, an unknown task, a metric that is not a finite
    number or outside its limits, a duplicate item, a file without items.
    """
    lines = read_text(path, ResultFileError, missing="give an eval_result.txt of ICE-Bench").splitlines()
    items: list[Item] = []
    first: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        item = _item(line.strip(), f"{path}, line {number}", tasks, limits)
        if item.item_id in first:
            duplicate = f"duplicate item {item.item_id!r}, first on line {first[item.item_id]}"
            raise ResultFileError(f"{path}, line {number}: {duplicate}: keep one")
        first[item.item_id] = number
        items.append(item)
    if not items:
        raise ResultFileError(f"{path} contains no items: give a file with one line per item")
    return items


def _item(line: str, where: str, tasks: Collection[str], limits: Mapping[str, tuple[float, float]]) -> Item:
    parts = line.split(SEPARATOR, 2)
    if len(parts) != 3 or not parts[0]:
        raise ResultFileError(f"{where}: an item must be ItemID{SEPARATOR}Task{SEPARATOR}JSON: correct the line")
    item_id, task, text = parts
    if task not in tasks:
        near = difflib.get_close_matches(task, tasks, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else "use the task names of the benchmark's data.jsonl"
        raise ResultFileError(f"{where}: unknown task {task!r}: {hint}")
    try:
        values = strictjson.loads(text)
    except (ValueError, RecursionError) as e:
        remedy = "write null for a metric without a value"
        raise ResultFileError(f"{where}: the metrics are not valid JSON ({e}): {remedy}") from None
    if not isinstance(values, dict):
        raise ResultFileError(f"{where}: the metrics must be a JSON object, not {kind(values)}: correct the line")
    return Item(item_id, task, {name: _value(name, value, where, limits) for name, value in values.items()})


def _value(name: str, value: Any, where: str, limits: Mapping[str, tuple[float, float]]) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ResultFileError(f"{where}: {name} must be a finite number, or null if it has no value")
    low, high = limits.get(name, (-MAX_SCORE, MAX_SCORE))
    if not low - _ROUNDING <= value <= high + _ROUNDING:
        raise ResultFileError(f"{where}: {name} must be between {low:g} and {high:g}, not {value:g}: correct the value")
    return float(value)


def find_images(folder: Path) -> Iterator[ImageFile]:
    """The images in METHOD/gen_info.json, {item: path from the working folder of the benchmark's code}."""
    for info in sorted(folder.rglob("gen_info.json")):
        data, text = read_object(info, "gen_info.json", UserError)
        for item, relative in data.items():
            where = f"{info}, line {line_of(text, [item])}"
            if not isinstance(relative, str) or not is_safe_id(item):
                raise UserError(f"{where}: expected an item's id and the path of its image: correct the line")
            ups = [up for up in (info.parent, *info.parents[1:4]) if up.is_relative_to(folder)]
            try:
                paths = [safe_join(up, relative) for up in ups]
            except UserError as e:
                raise UserError(f"{where}: {e}") from None
            file = next((path for path in paths if path.is_file()), None)
            if file is None:
                raise UserError(f"{where}: {relative} does not exist: add the file or remove the line")
            yield info.parent.name, item, 1, 1, folder / file.relative_to(folder.resolve())
