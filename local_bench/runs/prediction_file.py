"""Files of predictions of payment for the images of runs, one JSON object a line."""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import Field

from local_bench.core import strictjson
from local_bench.core.errors import UserError
from local_bench.core.files import storage_errors, write_atomic
from local_bench.core.yamlfile import Strict, check
from local_bench.runs.store import CandidateRow


class PredictionLine(Strict):
    """One line: what one source predicts for one image of a run."""

    work_id: str = Field(min_length=1, max_length=200)
    model: str
    task_id: str
    deliverable: int = Field(ge=1)
    attempt: int = Field(1, ge=1)
    probability: float | None = Field(None, ge=0, le=1)
    """Of payment; null if there is none."""
    accepted: bool | None = None
    """Whether it predicts payment."""
    unscored: str | None = None
    """Why there is no prediction."""
    source: str = Field(min_length=1, max_length=300)
    """The predictor, or the judge with its protocol and its question."""
    question_id: str | None = None
    """Identity of the judge's question; null for predictors."""
    used_in_training: bool = False
    """Whether the image's task trained or calibrated the predictor."""


def columns_of(row: CandidateRow) -> dict[str, Any]:
    """The fields of a line that name its image."""
    return {name: getattr(row, name) for name in ("work_id", "model", "task_id", "deliverable", "attempt")}


@dataclass(frozen=True)
class PredictionFile:
    """The predictions of one source."""

    name: str
    by_work_id: Mapping[str, PredictionLine]


def check_new_file(file: Path) -> None:
    """UserError if the file exists."""
    with storage_errors(file):
        exists = file.exists() or file.is_symlink()
    if exists:
        raise UserError(f"{file} exists: give the name of a new file for the predictions")


def write_predictions(lines: Iterable[PredictionLine], file: Path) -> None:
    """Write all lines, replacing the file at once."""
    text = "".join(json.dumps(line.model_dump(mode="json"), ensure_ascii=False) + "\n" for line in lines)
    write_atomic(file, text.encode())


def read_predictions(file: Path) -> PredictionFile:
    """Read the predictions of one source. UserError names file, line and reason."""
    by_work_id: dict[str, PredictionLine] = {}
    name = ""
    hint = "give a file written by `local-bench predictor apply` or `predictor zero-shot`"
    for _, where, data in strictjson.objects(file, UserError, "a prediction", missing=hint, unreadable=hint):
        line = check(data, PredictionLine, where, error=UserError)
        if line.work_id in by_work_id:
            raise UserError(f"{where}: the image has a prediction on an earlier line: keep one of them")
        if name and line.source != name:
            raise UserError(f"{where}: it is of {line.source!r} and the first line of {name!r}: give a file for each")
        by_work_id[line.work_id], name = line, line.source
    if not by_work_id:
        raise UserError(f"{file} has no predictions: {hint}")
    return PredictionFile(name, by_work_id)
