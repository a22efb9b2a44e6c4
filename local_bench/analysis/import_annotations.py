"""Converts a benchmark's result files to annotations of a run's images, for `agreement`, `settle --people` and others.

The files do not name the rater, so the caller gives a name. Entries without a verdict are skipped and counted.
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
    """Write one annotation per line to `out`; return (annotations, entries without a verdict).

    In idea-bench and ice-bench a file belongs to one model: NAME.csv, or NAME/eval_result.txt. ResultFileError names
    file and reason for a malformed row or an unknown image; UserError for another suite's files, or if `out` is one of
    the files or has other content.
    """
    if any(out.resolve() == file.resolve() for file in files):
        raise UserError(f"--labels {out} is one of the input files: give the name of a new file")
    own = format_of(run)
    if name != own:
        raise UserError(
            f"{run.path} is a run of {run.config.suite.name}, which files of {name} do not describe: give its own "
            "benchmark"
        )
    rows = image_results(run)
    known = {(row.model, row.task.task_id, row.deliverable, row.attempt) for row in rows}
    lines, n_skipped = [], 0
    for key, scores in suite(run.config.suite.name).read_annotations(files, rows):
        if key not in known:
            model, task, deliverable, attempt = key
            what = f"image {deliverable} of {task!r}, attempt {attempt}, by {model!r}"
            raise ResultFileError(f"{', '.join(map(str, files))}: the run has no {what}: remove it")
        if scores is None:
            n_skipped += 1
            continue
        names = ("model", "task_id", "deliverable", "attempt")
        lines.append(dict(zip(names, key, strict=True)) | {"rater": rater} | scores)
    if not lines:
        raise ResultFileError(f"{', '.join(map(str, files))}: no entry has a verdict: there is nothing to import")
    write_new(out, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode(), "labels")
    return len(lines), n_skipped
