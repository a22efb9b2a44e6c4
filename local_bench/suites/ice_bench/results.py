"""ICE-Bench's `eval_result.txt`: one line per item, `ItemID#;#Task#;#{"metric": value, …}`, raw metric values.

A run is exported as results/METHOD/gen_info.json and eval_result.txt, with the images. A metric without a value is
omitted from its line, and an image that could not be generated has a line without metrics: the official scorer and ours
read both. An item that the model does not support has no line. A task is omitted if none of its items has one of the
needed metrics: the official scorer would end with a KeyError, or score an editing task without `vllmqa` by another
formula. A metric computed with another model than the benchmark's (`clip_cap:tiny-clip`) is written under that name,
which no official score reads.
"""

import difflib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_bench.core import strictjson
from local_bench.core.errors import ResultFileError, UserError, kind
from local_bench.core.files import is_safe_id, read_text, safe_join
from local_bench.core.types import MAX_SCORE
from local_bench.suites.base import ImageFile
from local_bench.suites.ice_bench.scoring import LIMITS, TASKS, needed
from local_bench.suites.run_results import ImageResult, RunResults, write_file
from local_bench.suites.task_files import line_of, read_json

SEPARATOR = "#;#"
_ROUNDING = 1e-4
"""Tolerance for float32 values outside a metric's limits (a cosine of 1.0000001)."""


@dataclass(frozen=True)
class Item:
    """One item's raw metrics; None for a metric without a value (null in the file)."""

    item_id: str
    task: str
    metrics: dict[str, float | None]


def read_eval_result(path: Path) -> list[Item]:
    """Read the items in the file's order.

    ResultFileError with file, line and reason: for a malformed line, an unknown task, a metric that is not a finite
    number or outside its limits, a duplicate item, a file without items.
    """
    lines = read_text(path, ResultFileError, missing="give an eval_result.txt of ICE-Bench").splitlines()
    items: list[Item] = []
    first: dict[str, int] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        item = _item(line.strip(), f"{path}, line {number}")
        if item.item_id in first:
            duplicate = f"duplicate item {item.item_id!r}, first on line {first[item.item_id]}"
            raise ResultFileError(f"{path}, line {number}: {duplicate}: keep one")
        first[item.item_id] = number
        items.append(item)
    if not items:
        raise ResultFileError(f"{path} contains no items: give a file with one line per item")
    return items


def _item(line: str, where: str) -> Item:
    parts = line.split(SEPARATOR, 2)
    if len(parts) != 3 or not parts[0]:
        raise ResultFileError(f"{where}: an item must be ItemID{SEPARATOR}Task{SEPARATOR}JSON: correct the line")
    item_id, task, text = parts
    if task not in TASKS:
        near = difflib.get_close_matches(task, TASKS, 1, 0.5)
        hint = f"did you mean {near[0]!r}?" if near else "use the task names of the benchmark's data.jsonl"
        raise ResultFileError(f"{where}: unknown task {task!r}: {hint}")
    try:
        values = strictjson.loads(text)
    except (ValueError, RecursionError) as e:
        remedy = "write null for a metric without a value"
        raise ResultFileError(f"{where}: the metrics are not valid JSON ({e}): {remedy}") from None
    if not isinstance(values, dict):
        raise ResultFileError(f"{where}: the metrics must be a JSON object, not {kind(values)}: correct the line")
    return Item(item_id, task, {name: _value(name, value, where) for name, value in values.items()})


def _value(name: str, value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ResultFileError(f"{where}: {name} must be a finite number, or null if it has no value")
    low, high = LIMITS.get(name, (-MAX_SCORE, MAX_SCORE))
    if not low - _ROUNDING <= value <= high + _ROUNDING:
        raise ResultFileError(f"{where}: {name} must be between {low:g} and {high:g}, not {value:g}: correct the value")
    return float(value)


def find_images(folder: Path) -> Iterator[ImageFile]:
    """The images in METHOD/gen_info.json, {item: path from the working folder of the benchmark's code}."""
    for info in sorted(folder.rglob("gen_info.json")):
        data, text = read_json(info, "gen_info.json", UserError, dict)
        for item, relative in data.items():
            where = f"{info}, line {line_of(text, [item])}"
            if not isinstance(relative, str) or not is_safe_id(item):
                raise UserError(f"{where}: expected an item's id and the path of its image: correct the line")
            method, top = info.absolute().parent, folder.resolve()
            try:
                paths = [safe_join(up, relative) for up in (method, *method.parents[:3])]
            except UserError as e:
                raise UserError(f"{where}: {e}") from None
            file = next((path for path in paths if path.is_relative_to(top) and path.is_file()), None)
            if file is None:
                raise UserError(f"{where}: {relative} does not exist: add the file or remove the line")
            yield method.name, item, 1, 1, folder / file.relative_to(top)


def results_by_model(results: RunResults) -> dict[str, list[Item]]:
    """Each model's items of every supported task, computed from the ledger, with their available metrics; variants
    under their own names. Only models with a supported task."""
    of_model = {model: _items([row for row in results.images if row.model == model]) for model in results.models}
    return {model: items for model, items in of_model.items() if items}


def scored(items: Sequence[Item]) -> tuple[list[Item], list[str]]:
    """The items that the official scorer can read, those of tasks of which it needs no metric that none of their items
    has; and what is omitted: one sentence per set of missing metrics, and one for the variants."""
    by_metrics: dict[tuple[str, ...], list[str]] = {}
    for task in dict.fromkeys(item.task for item in items):
        of_task = [item.metrics for item in items if item.task == task]
        absent = tuple(name for name in needed(task) if all(metrics.get(name) is None for metrics in of_task))
        by_metrics.setdefault(absent, []).append(task)
    complete = by_metrics.pop((), [])
    notes = [
        f"omitted from the official results, since none of their items has {', '.join(absent)}: {', '.join(tasks)}"
        for absent, tasks in by_metrics.items()
    ]
    if variants := sorted({name for item in items for name in item.metrics if ":" in name}):
        notes.append(f"not among the official metrics, written under their own names: {', '.join(variants)}")
    return [item for item in items if item.task in complete], notes


def notes(results: RunResults) -> list[str]:
    """What `write` omits, one sentence each."""
    return [f"{model}: {text}" for model, items in results_by_model(results).items() for text in scored(items)[1]]


def write(results: RunResults, out: Path) -> list[Path]:
    """Write the files of every model to `out`/results, with paths relative to `out`; return the files to score: the
    eval_result.txt of every model that has a task with all its metrics."""
    by_model = results_by_model(results)
    files = []
    for model in results.models:
        folder = f"results/{model}"
        paths = {}
        for row in results.images:
            if row.model != model or row.attempt != 1 or not row.pixels_sha256:
                continue
            path = results.write_image(row.pixels_sha256, out, f"{folder}/images/{row.task.task_id}.png")
            if path is not None:
                paths[row.task.task_id] = path.relative_to(out).as_posix()
        write_file(out, f"{folder}/gen_info.json", json.dumps(paths, indent=1) + "\n")
        text = ""
        for item in scored(by_model.get(model, ()))[0]:
            metrics = {name: value for name, value in item.metrics.items() if value is not None}
            text += SEPARATOR.join((item.item_id, item.task, json.dumps(metrics))) + "\n"
        if text:
            files.append(write_file(out, f"{folder}/eval_result.txt", text))
    return files


def _items(rows: Sequence[ImageResult]) -> list[Item]:
    """First attempts, with the task's metrics by the benchmark's names, None for a metric without a value; a variant
    (`NAME:CARD`) under its own name."""
    items = []
    for row in (row for row in rows if row.supported and row.attempt == 1):
        metrics: dict[str, float | None] = dict.fromkeys(row.task.metrics)
        for name, score in row.scores.items():
            if name.partition(":")[0] in row.task.metrics:
                metrics[name] = score.value if row.pixels_sha256 else None
        items.append(Item(row.task.task_id, row.task.category, metrics))
    return items
