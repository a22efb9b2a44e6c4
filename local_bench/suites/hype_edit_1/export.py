"""Exports a run as HYPE-EDIT-1 results: outputs/DATASET/MODEL/TASK/001.webp (lossless) and judgements in schema 2.

An undecided attempt has the verdict null, which the benchmark's page shows as not judged yet; an attempt at an
unsupported task, or that an annotator was not shown, has no entry. `ratings.jsonl` has the judge's score of each
attempt, used to select the best of several, and `costs.json` the cost per attempt. Times are not written, since no
result depends on them.
"""

import json
from pathlib import Path

from local_bench.suites.hype_edit_1 import published as numbers
from local_bench.suites.hype_edit_1.questions import RATING
from local_bench.suites.hype_edit_1.results import SCHEMA_VERSION, AttemptScore, Judgement, Judgements
from local_bench.suites.published import Published
from local_bench.suites.run_results import ImageResult, RunResults, write_text

OPTIONS = {"scores": "ratings.jsonl", "costs": "costs.json"}
WORDS = {True: "PASS", False: "FAIL", None: None}


def published(results: RunResults) -> dict[str, Published]:
    """The numbers of all models in the benchmark's form, computed from the ledger; with the cost per attempt if it is
    known."""
    rows = results.images
    judged = judgements(rows)
    if not judged.rows:
        return {}
    return {"all": numbers.published(judged, results.usd_per_image or None, numbers.Review(), _ratings(rows))}


def judgements(rows: list[ImageResult]) -> Judgements:
    """The decisions about a run's images, in the form of the benchmark's file; without unsupported tasks."""
    judged = tuple(Judgement(row.model, row.task.task_id, row.attempt, _passed(row)) for row in rows if row.supported)
    task_ids = tuple(dict.fromkeys(row.task.task_id for row in rows))
    return Judgements(_dataset(rows) if rows else "", tuple(dict.fromkeys(row.model for row in rows)), task_ids, judged)


def write(results: RunResults, out: Path) -> list[Path]:
    """Write images, judgements and ratings to `out`; return the judgement file."""
    rows = results.images
    dataset = _dataset(rows)
    names = sorted(results.models)  # the official page numbers the sorted folders of outputs
    width = max(2, len(str(len(names))))
    alias = {model: f"M{i:0{width}d}" for i, model in enumerate(names, 1)}
    verdicts: dict[str, dict[str, dict[str, dict[str, str | None]]]] = {}
    for row in rows:
        of_task = verdicts.setdefault(row.task.task_id, {})
        if not row.supported or not row.shown:
            continue
        name = f"{row.attempt:03d}.webp"
        of_task.setdefault(alias[row.model], {})[name] = {"verdict": WORDS[_passed(row)]}
        if row.pixels_sha256:
            results.write_image(row.pixels_sha256, out, f"outputs/{dataset}/{row.model}/{row.task.task_id}/{name}")
    sheet = {
        "schema_version": SCHEMA_VERSION,
        "dataset": dataset,
        "tasks_dir": "tasks",
        "outputs_dir": "outputs",
        "models": {alias[model]: model for model in names},
        "judgements": verdicts,
    }
    ratings = [json.dumps(vars(rating)) for rating in _ratings(rows)]
    results.write_costs(out)
    write_text(out, "ratings.jsonl", "".join(f"{line}\n" for line in ratings))
    return [write_text(out, f"judgements/{dataset}.json", json.dumps(sheet, indent=2) + "\n")]


def _passed(row: ImageResult) -> bool | None:
    return row.accepted if row.pixels_sha256 else None


def _dataset(rows: list[ImageResult]) -> str:
    return str(rows[0].task.own["dataset"])


def _ratings(rows: list[ImageResult]) -> list[AttemptScore]:
    rated = [(row, row.scores.get(RATING)) for row in rows if row.supported and row.pixels_sha256]
    return [
        AttemptScore(row.model, row.task.task_id, row.attempt, None if score is None else score.value)
        for row, score in rated
    ]
