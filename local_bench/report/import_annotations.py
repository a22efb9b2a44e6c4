"""A benchmark's result files as labels of a run's images, which `agreement`, `settle --people` and the rest read.

Who they are from, people or a judge, stands nowhere in the files: it is told as the rater's name. An entry without a
verdict is no label and is left out, counted.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from local_bench.core.errors import ResultFileError, UserError
from local_bench.core.storage import write_new
from local_bench.report.official.formats import format_of
from local_bench.report.official.made import Made, made
from local_bench.runs.rundir import RunDir
from local_bench.settle.ice import LIMITS, TASKS
from local_bench.suites.hype_edit_1.results import read_judgements
from local_bench.suites.hype_edit_1.suite import PASS
from local_bench.suites.ice_bench.results import read_eval_result
from local_bench.suites.ice_bench.suite import VLLM_QA
from local_bench.suites.idea_bench.results import read_results
from local_bench.suites.servimage.results import read_annotations

Label = tuple[tuple[str, str, int, int], dict[str, Any] | None]
"""((model, task, deliverable, attempt), what is said of it; None where nothing is)"""


def write_labels(run: RunDir, name: str, files: Sequence[Path], rater: str, out: Path) -> tuple[int, int]:
    """Writes a label a line to `out`; returns (labels, entries without a verdict).

    In idea-bench and ice-bench a file is one model's: NAME.csv, or NAME/eval_result.txt. ResultFileError names file and
    reason for a malformed row and for one about an image that the run has not; UserError for another suite's files and
    where `out` is one of the files or holds something else than these labels.
    """
    if any(out.resolve() == file.resolve() for file in files):
        raise UserError(f"--labels {out} is one of the files to read: give the name of a new file")
    own = format_of(run)
    if name != own:
        raise UserError(
            f"{run.path} is a run of {run.config.suite.name}: it has no images that files of {name} are about"
        )
    rows = made(run)
    there = {(row.model, row.task.task_id, row.deliverable, row.attempt) for row in rows}
    lines, left = [], 0
    for key, said in _labels(name, files, rows):
        if key not in there:
            model, task, deliverable, attempt = key
            what = f"image {deliverable} of {task!r}, attempt {attempt}, by {model!r}"
            raise ResultFileError(f"{', '.join(map(str, files))}: the run has no {what}: take it out")
        if said is None:
            left += 1
            continue
        names = ("model", "task_id", "deliverable", "attempt")
        lines.append(dict(zip(names, key, strict=True)) | {"rater": rater} | said)
    if not lines:
        raise ResultFileError(f"{', '.join(map(str, files))}: nothing in there is decided: there is nothing to take")
    write_new(out, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode(), "labels")
    return len(lines), left


def _labels(name: str, files: Sequence[Path], rows: Sequence[Made]) -> Iterator[Label]:
    match name:
        case "hype-edit-1":
            for row in read_judgements(files).rows:
                said = None if row.passed is None else {PASS: row.passed, "overall": row.passed}
                yield (row.model, row.task_id, 1, row.attempt), said
        case "servimage":
            for image in read_annotations(files).images:
                said = None if image.accepted is None else {"overall": image.accepted}
                yield (image.model, image.task_id, image.deliverable, 1), said
        case "ice-bench":
            for file in files:
                for item in read_eval_result(file, TASKS, LIMITS):
                    if VLLM_QA in item.metrics:
                        yield (file.parent.name, item.item_id, 1, 1), {VLLM_QA: item.metrics[VLLM_QA]}
        case _:
            yield from _idea(files, rows)


def _idea(files: Sequence[Path], rows: Sequence[Made]) -> Iterator[Label]:
    """One label a case, on its first image."""
    cases = {(row.task.own["uid"], row.task.own["case_id"]): row.task.task_id for row in rows}
    for file in files:
        said: dict[str, dict[str, float]] = {}
        for row in read_results(file):
            task = cases.get((row.task_id, row.case_id))
            if task is None:
                raise ResultFileError(f"{file}: the run has no case {row.case_id} of task {row.task_id}: take it out")
            known = [score for score in row.scores if score is not None]
            of = said.setdefault(task, {})
            if known:
                of[f"question_{row.question}"] = fmean(known)
        for task, of in said.items():
            yield (file.stem, task, 1, 1), of or None
