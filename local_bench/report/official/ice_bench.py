"""A run as ICE-Bench's results: results/METHOD/gen_info.json and eval_result.txt, the images beside them.

A metric that could not be had is left out of its line, and an image that could not be made has a line without metrics:
the official scorer and ours read both. An item that the model does not support has no line.
"""

import json
from pathlib import Path

from local_bench.report.official.made import Made, made, models, write_picture, write_text
from local_bench.report.published import ice_bench as numbers
from local_bench.report.published.answer import Published
from local_bench.runs.rundir import RunDir
from local_bench.suites.ice_bench.results import SEPARATOR, Item


def published(run: RunDir) -> dict[str, Published]:
    """Each model's numbers, from the ledger."""
    rows = made(run)
    items = {model: _items([row for row in rows if row.model == model]) for model in models(rows)}
    return {model: numbers.published(of) for model, of in items.items() if of}


def write(run: RunDir, out: Path) -> list[Path]:
    """Writes the files of every model below `out`/results, paths in them relative to `out`; returns what to score."""
    rows = made(run)
    files = []
    for model in models(rows):
        own = [row for row in rows if row.model == model and row.attempt == 1]
        folder = f"results/{model}"
        places = {}
        for row in (row for row in own if row.pixels_sha256):
            path = write_picture(run, row.pixels_sha256 or "", out, f"{folder}/images/{row.task.task_id}.png")
            if path is not None:
                places[row.task.task_id] = path.relative_to(out).as_posix()
        write_text(out, f"{folder}/gen_info.json", json.dumps(places, indent=1) + "\n")
        lines = [
            SEPARATOR.join(
                (item.item_id, item.task, json.dumps({k: v for k, v in item.metrics.items() if v is not None}))
            )
            for item in _items(own)
        ]
        files.append(write_text(out, f"{folder}/eval_result.txt", "".join(f"{line}\n" for line in lines)))
    return files


def _items(rows: list[Made]) -> list[Item]:
    return [
        Item(row.task.task_id, row.task.category, _metrics(row)) for row in rows if row.supported and row.attempt == 1
    ]


def _metrics(row: Made) -> dict[str, float | None]:
    """By the benchmark's names: a metric read off another model than its own stands under its own name all the same,
    and the run's provenance says which it was."""
    found: dict[str, float | None] = {}
    for name in row.task.metrics:
        ways = [score for score in row.scores.values() if score.name.partition(":")[0] == name]
        ways.sort(key=lambda score: (score.value is None, score.name))
        found[name] = ways[0].value if ways and row.pixels_sha256 else None
    return found
