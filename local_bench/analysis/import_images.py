"""Writes manifests for `imported` models from images in a benchmark's layout, and annotations from its result files.

Manifests are written to the top of the given folder, because image paths must not leave their manifest's folder.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from local_bench.analysis.official import format_of, image_results, suite_of_layout
from local_bench.core.errors import ResultFileError, UserError
from local_bench.core.files import is_safe_id, write_new
from local_bench.runs.rundir import RunDir
from local_bench.suites.base import ImageKey
from local_bench.suites.registry import suite


def write_manifests(name: str, folder: Path) -> list[dict[str, Any]]:
    """Find the images below `folder` in the layout `name` and write `METHOD.manifest.jsonl` for each method. Return the
    `method`, `manifest`, number `n` of images and highest number of `attempts` of each.

    UserError if the folder does not exist or has no images in that layout, if two files are the same image, or if a
    manifest with other content exists.
    """
    if not folder.is_dir():
        raise UserError(f"{folder} is not a folder: give the folder with the benchmark's outputs")
    files = list(suite_of_layout(name).find_images(folder))
    if not files:
        raise UserError(f"{folder} has no images in the layout of {name}: give the folder with its outputs")
    seen: dict[tuple[str, str, int, int], Path] = {}
    for method, task, deliverable, attempt, file in files:
        other = seen.setdefault((method, task, deliverable, attempt), file)
        if other != file:
            raise UserError(
                f"{folder}: {other.name} and {file.name} of {task!r} by {method!r} are the same image: remove one"
            )
    manifests = []
    for method in dict.fromkeys(file_[0] for file_ in files):
        if not is_safe_id(method):
            raise UserError(
                f"{folder}: {method!r} is not a valid model name: use at most 128 letters, digits, '.', '_' and '-'"
            )
        of_method = sorted(file_ for file_ in files if file_[0] == method)
        lines = [
            {
                "task_id": task,
                "deliverable": deliverable,
                "attempt": attempt,
                "file": file.relative_to(folder).as_posix(),
            }
            for _, task, deliverable, attempt, file in of_method
        ]
        path = folder / f"{method}.manifest.jsonl"
        data = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode()
        write_new(path, data, "images")  # users may add costs to it
        attempts = max(file_[3] for file_ in of_method)
        manifests.append({"method": method, "manifest": str(path), "n": len(of_method), "attempts": attempts})
    return manifests


def write_labels(run: RunDir, name: str, files: Sequence[Path], rater: str, out: Path) -> tuple[int, int]:
    """Write one annotation per line to `out`; return (annotations, entries without a verdict). The files do not name
    the `rater`.

    ResultFileError names file and reason for a malformed row or an unknown image; UserError for another suite's files,
    or if `out` is one of the files or has other content.
    """
    if any(out.resolve() == file.resolve() for file in files):
        raise UserError(f"--labels {out} is one of the input files: give the name of a new file")
    layout = format_of(run)
    if name != layout:
        raise UserError(
            f"{run.path} is a run of {run.config.suite.name}, which files of {name} do not describe: give its own "
            "benchmark"
        )
    rows = image_results(run)
    keys = {(row.model, row.task.task_id, row.deliverable, row.attempt) for row in rows}
    lines, n_skipped = [], 0
    seen = set[ImageKey]()
    for key, scores in suite(run.config.suite.name).read_annotations(files, rows):
        model, task, deliverable, attempt = key
        what = f"image {deliverable} of {task!r}, attempt {attempt}, by {model!r}"
        if key not in keys:
            raise ResultFileError(f"{', '.join(map(str, files))}: the run has no {what}: remove it")
        if key in seen:
            raise ResultFileError(f"{', '.join(map(str, files))}: {what} is in two of the files: keep one")
        seen.add(key)
        if scores is None:
            n_skipped += 1
            continue
        names = ("model", "task_id", "deliverable", "attempt")
        lines.append(dict(zip(names, key, strict=True)) | {"rater": rater} | scores)
    if not lines:
        raise ResultFileError(f"{', '.join(map(str, files))}: no entry has a verdict: there is nothing to import")
    write_new(out, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines).encode(), "labels")
    return len(lines), n_skipped
