"""A benchmark's result files as labels of a run's images, which `agreement`, `settle --people` and the rest read.

Who they are from, people or a judge, stands nowhere in the files: it is told as the rater's name. An entry without a
verdict is no label and is left out, counted.
"""

import json
from collections.abc import Sequence
from pathlib import Path

from local_bench.analysis.official import format_of, image_results
from local_bench.core.errors import ResultFileError, UserError
from local_bench.core.storage import write_new
from local_bench.runs.rundir import RunDir
from local_bench.suites.registry import suite


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
    rows = image_results(run)
    there = {(row.model, row.task.task_id, row.deliverable, row.attempt) for row in rows}
    lines, left = [], 0
    for key, said in suite(run.config.suite.name).read_annotations(files, rows):
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
