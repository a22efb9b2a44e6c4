"""HYPE-EDIT-1's judgements (schema 2): task -> model's alias -> "001.webp" -> {"verdict": "PASS" or "FAIL", …}.

`models` in the same file maps the aliases to model names; other contents (paths, times) are ignored.

A run is exported as such a file with outputs/DATASET/MODEL/TASK/001.webp (lossless). An undecided attempt has the
verdict null, which the benchmark's page shows as not judged yet, and `made` false if it has no image; an attempt at an
unsupported task, or that an annotator was not shown, has no entry. `ratings.jsonl` has the judge's score of each
attempt, used to select the best of several, and `costs.json` the cost per attempt. Times are not written.
"""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from local_bench.core import strictjson
from local_bench.core.errors import ResultFileError, kind, short
from local_bench.suites.run_results import ImageResult, RunResults, write_file
from local_bench.suites.task_files import line_of, read_json

RATING = "rating"
SCHEMA_VERSION = 2
MAX_ATTEMPTS = 1000
VERDICTS = {"PASS": True, "FAIL": False}
_FILE = re.compile(r"0*([1-9][0-9]{0,3})\.[a-z]{3,4}")


@dataclass(frozen=True)
class Judgement:
    """The verdict on one attempt; `passed` is None for an entry without a verdict."""

    model: str
    task_id: str
    attempt: int
    """From 1."""
    passed: bool | None
    made: bool = True
    """Whether there is an image."""


@dataclass(frozen=True)
class Judgements:
    dataset: str
    models: tuple[str, ...]
    """Model names in the file's order of aliases, including those without a judgement."""
    task_ids: tuple[str, ...]
    rows: tuple[Judgement, ...]
    parts: tuple["Judgements", ...] = ()
    """The files or runs of which this is the union."""

    def requested(self, model: str) -> dict[str, int]:
        """Task -> attempts, of the files that have the model: its highest attempt with an entry in the file, or in all
        if it has none there; others were not requested of it."""
        files = [part for part in self.parts if model in part.models] or [self]
        highest = [max((row.attempt for row in file.rows if row.model == model), default=0) for file in files]
        ascending = sorted((most or max(highest), file.task_ids) for most, file in zip(highest, files, strict=True))
        return {task_id: most for most, task_ids in ascending for task_id in task_ids}


def read_judgements(paths: Sequence[Path]) -> Judgements:
    """The judgements of one or several files as one table: the public and the private split, or one file per model.

    ResultFileError as in `read_file`, and for an attempt that is judged in two files.
    """
    parts = [read_file(path) for path in paths]
    judged_in: dict[tuple[str, str, int], Path] = {}
    for path, part in zip(paths, parts, strict=True):
        for row in part.rows:
            key = (row.model, row.task_id, row.attempt)
            if key in judged_in:
                what = f"attempt {row.attempt} of {row.task_id!r} by {row.model!r}"
                raise ResultFileError(
                    f"{path}: {what} is judged in {judged_in[key]} too: keep one of them, or give --raters if each "
                    "file is another rater's"
                )
            judged_in[key] = path
    return joined(parts, [row for part in parts for row in part.rows])


def read_raters(paths: Sequence[Path]) -> tuple[Judgements, list[Judgement]]:
    """The judgements of several raters of the same images, one file each, as one table, and those that stay undecided.

    An attempt passes if more than half of the files that contain it say PASS, and fails if more than half say FAIL; a
    tie is undecided, and so is a result that votes without a verdict could change. ResultFileError as in `read_file`,
    and if no attempt is in more than one file.
    """
    parts = [read_file(path) for path in paths]
    votes: dict[tuple[str, str, int], list[Judgement]] = {}
    for row in (row for part in parts for row in part.rows):
        votes.setdefault((row.model, row.task_id, row.attempt), []).append(row)
    if all(len(file_votes) == 1 for file_votes in votes.values()):
        raise ResultFileError(
            f"--raters: no attempt is judged in more than one of {', '.join(map(str, paths))}: give files of several "
            "raters of the same images, or omit --raters"
        )
    rows = []
    for key, file_votes in votes.items():
        cast = [vote.passed for vote in file_votes]
        verdict = next((verdict for verdict in (True, False) if 2 * cast.count(verdict) > len(cast)), None)
        rows.append(Judgement(*key, verdict, any(vote.made for vote in file_votes)))
    return joined(parts, rows), [row for row in rows if row.passed is None and row.made]


def joined(parts: Sequence[Judgements], rows: Sequence[Judgement]) -> Judgements:
    """The union of several files or runs with these rows."""
    return Judgements(
        "+".join(dict.fromkeys(part.dataset for part in parts if part.dataset)),
        tuple(dict.fromkeys(name for part in parts for name in part.models)),
        tuple(dict.fromkeys(task_id for part in parts for task_id in part.task_ids)),
        tuple(rows),
        tuple(parts),
    )


def read_file(path: Path) -> Judgements:
    """The judgements in the file. ResultFileError with file, line and reason: for another schema, an alias without a
    model, two aliases for one model, a duplicate attempt, a verdict that is neither PASS nor FAIL, no attempt."""
    data, text = read_json(path, "file of judgements", wanted=dict)
    if data.get("schema_version") != SCHEMA_VERSION:
        version = data.get("schema_version")
        raise ResultFileError(
            f"{path}: schema_version is {short(version)}, but only schema {SCHEMA_VERSION} is supported"
        )

    def fault(keys: list[str], what: str) -> ResultFileError:
        return ResultFileError(f"{path}, line {line_of(text, keys)}: {what}")

    names = _objects(data.get("models"), fault, ["models"], "models")
    for alias, name in names.items():
        if not isinstance(name, str) or not name or list(names.values()).count(name) > 1:
            raise fault(
                ["models", alias], f"the alias {alias!r} must map to the name of one model, used by no other alias"
            )
    judgements = _objects(data.get("judgements"), fault, ["judgements"], "judgements")
    rows: list[Judgement] = []
    for task_id, by_alias in judgements.items():
        at = ["judgements", task_id]
        for alias, files in _objects(by_alias, fault, at, "a task's judgements").items():
            if alias not in names:
                raise fault([*at, alias], f"the alias {alias!r} is not defined: add it to models")
            rows += _attempts(
                names[alias], task_id, _objects(files, fault, [*at, alias], "a model's judgements"), fault, [*at, alias]
            )
    if not rows:
        raise ResultFileError(f"{path} contains no attempt of any model: give a file with judgements")
    return Judgements(str(data.get("dataset", "")), tuple(names.values()), tuple(judgements), tuple(rows))


@dataclass(frozen=True)
class AttemptScore:
    """A judge's score of one attempt, on any scale on which more is better."""

    model: str
    task_id: str
    attempt: int
    score: float | None


def read_attempt_scores(path: Path) -> list[AttemptScore]:
    """A judge's scores, one JSON object per line: model, task_id, attempt and score (null: none given). The file is not
    part of the benchmark; it is used to select the best of several attempts. ResultFileError with file, line and
    reason."""
    rows: dict[tuple[str, str, int], AttemptScore] = {}
    remedy = "give one JSON object per line: model, task_id, attempt, score"
    for _, where, data in strictjson.objects(path, ResultFileError, "an attempt's score", missing=remedy):
        model, task_id, attempt, score = (data.get(name) for name in ("model", "task_id", "attempt", "score"))
        if not isinstance(model, str) or not isinstance(task_id, str):
            raise ResultFileError(f"{where}: model and task_id must be strings: {remedy}")
        if isinstance(attempt, bool) or not isinstance(attempt, int) or not 1 <= attempt <= MAX_ATTEMPTS:
            raise ResultFileError(f"{where}: attempt must be an integer from 1 to {MAX_ATTEMPTS}, not {short(attempt)}")
        if score is not None and (
            isinstance(score, bool) or not isinstance(score, int | float) or not math.isfinite(score)
        ):
            raise ResultFileError(f"{where}: score must be a finite number or null, not {short(score)}")
        if (model, task_id, attempt) in rows:
            raise ResultFileError(f"{where}: duplicate attempt {attempt} of {task_id!r} by {model!r}: keep one")
        rows[model, task_id, attempt] = AttemptScore(model, task_id, attempt, None if score is None else float(score))
    return list(rows.values())


def _attempts(model: str, task_id: str, files: dict[str, Any], fault: Any, at: list[str]) -> list[Judgement]:
    rows: dict[int, Judgement] = {}
    for file, judgement in files.items():
        number = _FILE.fullmatch(file)
        attempt = int(number[1]) if number else 0
        if not 1 <= attempt <= MAX_ATTEMPTS:
            raise fault([*at, file], f"{file!r} is not the name of an attempt: expected 001.webp, 002.webp and so on")
        if attempt in rows:
            raise fault([*at, file], f"duplicate attempt {attempt} of {model!r}: keep one")
        entry = _objects(judgement, fault, [*at, file], "a judgement")
        verdict, made = entry.get("verdict"), entry.get("made") is not False
        if verdict is not None and (not isinstance(verdict, str) or verdict not in VERDICTS):
            raise fault([*at, file], f"the verdict must be PASS, FAIL or null, not {short(verdict)}")
        rows[attempt] = Judgement(model, task_id, attempt, None if verdict is None else VERDICTS[verdict], made)
    return list(rows.values())


def _objects(value: Any, fault: Any, at: list[str], what: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise fault(at, f"{what} must be a JSON object, not {kind(value)}")
    return value


OPTIONS = {"scores": "ratings.jsonl", "costs": "costs.json"}
WORDS = {True: "PASS", False: "FAIL", None: None}


def judgements(rows: list[ImageResult]) -> Judgements:
    """The decisions about a run's images, in the form of the benchmark's file; without unsupported tasks."""
    judged = tuple(_judgement(row) for row in rows if row.supported)
    task_ids = tuple(dict.fromkeys(row.task.task_id for row in rows))
    dataset = str(rows[0].task.own["dataset"]) if rows else ""
    return Judgements(dataset, tuple(dict.fromkeys(row.model for row in rows)), task_ids, judged)


def write(results: RunResults, out: Path) -> list[Path]:
    """Write images, judgements and ratings to `out`; return the judgement file."""
    rows = results.images
    dataset = str(rows[0].task.own["dataset"])
    names = sorted(results.models)  # the official page numbers the sorted folders of outputs
    width = max(2, len(str(len(names))))
    alias = {model: f"M{i:0{width}d}" for i, model in enumerate(names, 1)}
    verdicts: dict[str, dict[str, dict[str, dict[str, str | bool | None]]]] = {}
    for row in rows:
        of_task = verdicts.setdefault(row.task.task_id, {})
        if not row.supported or not row.shown:
            continue
        name = f"{row.attempt:03d}.webp"
        judged, of_model = _judgement(row), of_task.setdefault(alias[row.model], {})
        of_model[name] = {"verdict": WORDS[judged.passed]} | ({} if judged.made else {"made": False})
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
    results.write_costs(out)
    write_file(out, "ratings.jsonl", "".join(f"{json.dumps(vars(rating))}\n" for rating in ratings(rows)))
    return [write_file(out, f"judgements/{dataset}.json", json.dumps(sheet, indent=2) + "\n")]


def _judgement(row: ImageResult) -> Judgement:
    made = row.pixels_sha256 is not None
    return Judgement(row.model, row.task.task_id, row.attempt, row.accepted if made else None, made)


def ratings(rows: list[ImageResult]) -> list[AttemptScore]:
    """The judge's score of every image that was made."""
    rated = [(row, row.scores.get(RATING)) for row in rows if row.supported and row.pixels_sha256]
    return [
        AttemptScore(row.model, row.task.task_id, row.attempt, None if score is None else score.value)
        for row, score in rated
    ]
