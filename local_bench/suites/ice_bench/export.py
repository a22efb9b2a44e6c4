"""Exports a run as ICE-Bench results: results/METHOD/gen_info.json and eval_result.txt, with the images.

A metric without a value is omitted from its line, and an image that could not be generated has a line without metrics:
the official scorer and ours read both. An item that the model does not support has no line. A task is omitted if none
of its items has one of the needed metrics: the official scorer would end with a KeyError, or score an editing task
without `vllmqa` by another formula. A metric computed with another model than the benchmark's (`clip_cap:tiny-clip`) is
written under that name, which no official score reads.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from local_bench.suites.ice_bench import published as numbers
from local_bench.suites.ice_bench.results import SEPARATOR, Item
from local_bench.suites.ice_bench.scoring import needed
from local_bench.suites.published import Published
from local_bench.suites.run_results import ImageResult, RunResults, write_text


@dataclass(frozen=True)
class Results:
    """One model's results."""

    items: list[Item]
    """Items of every supported task, with their available metrics; variants under their own names."""

    @property
    def lacking(self) -> dict[str, tuple[str, ...]]:
        """Task -> needed metrics that none of its items has; only tasks that lack any."""
        absent_by_task: dict[str, tuple[str, ...]] = {}
        for task in dict.fromkeys(item.task for item in self.items):
            of_task = [item.metrics for item in self.items if item.task == task]
            absent = tuple(name for name in needed(task) if all(metrics.get(name) is None for metrics in of_task))
            if absent:
                absent_by_task[task] = absent
        return absent_by_task

    @property
    def scored(self) -> list[Item]:
        """The items that the official scorer can read: those of tasks that lack no needed metric."""
        lacking = self.lacking
        return [item for item in self.items if item.task not in lacking]

    @property
    def notes(self) -> list[str]:
        """Omissions: one sentence per set of missing metrics, and one for the variants."""
        by_metrics: dict[tuple[str, ...], list[str]] = {}
        for task, absent in self.lacking.items():
            by_metrics.setdefault(absent, []).append(task)
        notes = [
            f"omitted from the official results, since none of their items has {', '.join(absent)}: {', '.join(tasks)}"
            for absent, tasks in by_metrics.items()
        ]
        if variants := sorted({name for item in self.items for name in item.metrics if ":" in name}):
            notes.append(f"not among the official metrics, written under their own names: {', '.join(variants)}")
        return notes


def results_by_model(results: RunResults) -> dict[str, Results]:
    """Each model's results, computed from the ledger; only models with a supported task."""
    rows = results.images
    by_model = {model: Results(_items([row for row in rows if row.model == model])) for model in results.models}
    return {model: result for model, result in by_model.items() if result.items}


def published(results: RunResults) -> dict[str, Published]:
    """Each model's numbers, computed from the ledger: equal to those of `score` on the files that `write` writes."""
    by_model = {}
    for model, result in results_by_model(results).items():
        numbers_of = numbers.published(result.scored)
        by_model[model] = replace(numbers_of, notes=[*result.notes, *numbers_of.notes])
    return by_model


def notes(results: RunResults) -> list[str]:
    """What `write` omits, one sentence each."""
    return [f"{model}: {sentence}" for model, result in results_by_model(results).items() for sentence in result.notes]


def write(results: RunResults, out: Path) -> list[Path]:
    """Write the files of every model to `out`/results, with paths relative to `out`; return the files to score: the
    eval_result.txt of every model that has a task with all its metrics."""
    rows = results.images
    by_model = results_by_model(results)
    files = []
    for model in results.models:
        folder = f"results/{model}"
        paths = {}
        for row in (row for row in rows if row.model == model and row.attempt == 1 and row.pixels_sha256):
            path = results.write_image(row.pixels_sha256 or "", out, f"{folder}/images/{row.task.task_id}.png")
            if path is not None:
                paths[row.task.task_id] = path.relative_to(out).as_posix()
        write_text(out, f"{folder}/gen_info.json", json.dumps(paths, indent=1) + "\n")
        items = by_model[model].scored if model in by_model else []
        if items:
            files.append(write_text(out, f"{folder}/eval_result.txt", "".join(f"{_line(item)}\n" for item in items)))
    return files


def _line(item: Item) -> str:
    metrics = {name: value for name, value in item.metrics.items() if value is not None}
    return SEPARATOR.join((item.item_id, item.task, json.dumps(metrics)))


def _items(rows: Sequence[ImageResult]) -> list[Item]:
    return [
        Item(row.task.task_id, row.task.category, _metrics(row)) for row in rows if row.supported and row.attempt == 1
    ]


def _metrics(row: ImageResult) -> dict[str, float | None]:
    """The task's metrics by the benchmark's names, None for a metric without a value; a variant (`NAME:CARD`) under its
    own name."""
    metrics: dict[str, float | None] = dict.fromkeys(row.task.metrics)
    for name, score in row.scores.items():
        if name.partition(":")[0] in row.task.metrics:
            metrics[name] = score.value if row.pixels_sha256 else None
    return metrics
