"""IDEA-Bench's results CSV: one row per question of a case, with the judge's answer, score and reason of each repeat.

A run is exported as such a CSV with outputs/METHOD/CASE/0001.jpg. The columns are the benchmark's own; `gemini_result`
contains the answer of the run's judge, of several judges the majority's. A case without answers has rows without
scores; a case that the model does not support has no rows, and in an annotator's CSV none that was not shown.
"""

import csv
import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from local_bench.core.errors import ResultFileError, RunImageError, short
from local_bench.core.files import read_text
from local_bench.core.images import count_card, stitched
from local_bench.core.table import guarded, unguarded
from local_bench.core.types import Collage, Verdict
from local_bench.suites.run_results import FORMATS, ImageResult, RunResults, write_file

REPEATS = 3
QUESTIONS = 6
ROWS = 306
"""Rows that the official scorer expects: 51 cases with six questions."""
HEADER = (
    *("task_name", "task_id", "case_id", "question_id", "text_prompt", "stitched_image"),
    *(f"{name}_{k}" for k in range(1, REPEATS + 1) for name in ("gemini_result", "score", "explanation")),
)
SCORES = {"0": 0, "1": 1, "0.0": 0, "1.0": 1}
NONE = {"", "None", "null", "nan"}
MAX_FIELD = 1_000_000
_UID = re.compile(r"[0-9]{4}")

CATEGORY_OF = {
    **dict.fromkeys(("0024", "0026", "0028"), "T2I"),
    **dict.fromkeys(("0063", "0072"), "I2I"),
    **dict.fromkeys(("0064", "0065", "0073"), "Is2I"),
    **dict.fromkeys(("0014", "0015", "0016", "0017"), "T2Is"),
    **dict.fromkeys(("0044", "0045", "0046", "0049"), "I(s)2Is"),
}
"""Each mini task's category as in the official scorer: sixteen tasks, though the paper counts 18."""


@dataclass(frozen=True)
class Row:
    """One question about one case; a score is None if the judge gave none."""

    task_id: str
    task_name: str
    case_id: str
    question: int
    """From 1."""
    scores: tuple[int | None, ...]
    """One per repeat."""
    category: str | None = None
    """From the case's meta.json; None if only the uid is known (a results CSV has no column for it)."""


def read_results(path: Path) -> list[Row]:
    """Read the rows in the file's order. ResultFileError with file, line and reason: for another header, an unknown or
    duplicate question, a score that is not 0, 1 or empty, a file without rows."""
    rows: list[Row] = []
    first: dict[tuple[str, str, int], int] = {}
    columns: dict[str, int] = {}
    text = read_text(path, ResultFileError, missing="give a results CSV of IDEA-Bench")
    header = next(filter(str.strip, text.splitlines()), "")
    try:
        with io.StringIO(text, newline="") as file:
            csv.field_size_limit(MAX_FIELD)
            lines = csv.reader(file, strict=True, delimiter=max(",;\t", key=header.count))  # `;` where 0,5 is a number
            for fields in lines:
                where = f"{path}, line {lines.line_num}"
                if not any(field.strip() for field in fields):
                    continue  # spreadsheets write `,,,` for an empty row
                if not columns:
                    columns = _columns([name.strip() for name in fields], where)
                    continue
                row = _row(fields, columns, where)
                key = (row.task_id, row.case_id, row.question)
                if key in first:
                    what = f"question {row.question} of case {row.case_id} of task {row.task_id}"
                    raise ResultFileError(f"{where}: duplicate {what}, first on line {first[key]}: keep one")
                first[key] = lines.line_num
                rows.append(row)
    except csv.Error as e:
        raise ResultFileError(f"{path}, line {lines.line_num}: invalid CSV ({e}): correct the line") from None
    if not rows:
        raise ResultFileError(f"{path} contains no results: give a file with one row per question")
    return rows


def _columns(header: list[str], where: str) -> dict[str, int]:
    header = [name or f"column {i}" for i, name in enumerate(header, 1)]  # spreadsheets write empty columns too
    duplicate = next((name for name in header if header.count(name) > 1), None)
    if duplicate is not None:
        raise ResultFileError(f"{where}: duplicate column {duplicate!r}: keep one")
    needed = ("task_name", "task_id", "case_id", "question_id", *(f"score_{k}" for k in range(1, REPEATS + 1)))
    lacking = next((name for name in needed if name not in header), None)
    if lacking is not None:
        raise ResultFileError(f"{where}: the column {lacking!r} is missing: use the benchmark's header")
    return {name: i for i, name in enumerate(header)}


def _row(fields: list[str], columns: dict[str, int], where: str) -> Row:
    if len(fields) != len(columns):
        raise ResultFileError(f"{where}: {len(fields)} fields for {len(columns)} columns: correct the line")

    def field(name: str) -> str:
        return unguarded(fields[columns[name]].strip())

    question = field("question_id").removesuffix(".0")
    if question not in map(str, range(1, QUESTIONS + 1)):
        raise ResultFileError(f"{where}: question_id must be 1 to {QUESTIONS}, not {short(question)}")
    scores = []
    for k in range(1, REPEATS + 1):
        score = field(f"score_{k}")
        if score not in SCORES and score not in NONE:
            raise ResultFileError(f"{where}: score_{k} must be 0, 1 or empty, not {short(score)}")
        scores.append(SCORES.get(score))
    uids = []
    for name in ("task_id", "case_id"):
        if not (text := field(name)):
            raise ResultFileError(f"{where}: {name} is empty: give the case's value")
        uid = text.removesuffix(".0").zfill(4)  # spreadsheets remove leading zeros, pandas may write 24.0
        if not _UID.fullmatch(uid):
            raise ResultFileError(f"{where}: {name} must have four digits, as in meta.json, not {short(text)}")
        uids.append(uid)
    return Row(uids[0], field("task_name"), uids[1], int(question), tuple(scores))


RUBRIC = "idea_question"
"""The rubric of the six questions."""
Verdicts = Mapping[str, Mapping[tuple[str, int, int], Verdict]]
Case = list[ImageResult]
"""One model's images of one case."""


def results_by_model(results: RunResults) -> dict[str, list[Row]]:
    """Each model's answers, computed from the ledger; only models with a supported case."""
    of_model = ((model, cases) for model, cases in _cases(results).items() if cases)
    return {model: [row for case in cases for row in rows_of(case, results.verdicts)] for model, cases in of_model}


def write(results: RunResults, out: Path) -> list[Path]:
    """Write images, collages and answers to `out`; return the CSVs, one per model."""
    verdicts, files = results.verdicts, []
    for model, cases in _cases(results).items():
        buffer = io.StringIO(newline="")
        lines = csv.writer(buffer)
        lines.writerow(HEADER)
        for case in cases:
            of_task = case[0].task.own
            for image in case:
                if image.pixels_sha256:
                    name = f"{image.deliverable:04d}.jpg"
                    results.write_image(image.pixels_sha256, out, f"outputs/{model}/{of_task['case_dir']}/{name}")
            for row in rows_of(case, verdicts):
                folder = f"outputs/{model}_stitched/{of_task['case_dir']}"
                collage = _write_sheet(results, case, row.question, out, folder)
                text = case[0].task.evaluation_points[row.question - 1]
                shown = "" if collage is None else collage.relative_to(out).as_posix()
                cells: list[object] = [row.task_name, row.task_id, row.case_id, row.question, text, shown]
                for k, score in enumerate(row.scores):
                    verdict = _verdict(case, verdicts, row.question - 1, k)
                    if verdict is None:
                        cells += ["", "", "the judge was not reached"]
                    else:
                        cells += [verdict.raw, "" if score is None else str(score), verdict.unscored or ""]
                lines.writerow(map(guarded, cells))
        files.append(write_file(out, f"eval_results/{model}.csv", buffer.getvalue()))
    return files


def _cases(results: RunResults) -> dict[str, list[Case]]:
    by_model: dict[str, dict[str, Case]] = {model: {} for model in results.models}
    for row in results.images:
        if row.attempt == 1 and row.supported and row.shown:
            by_model[row.model].setdefault(row.task.task_id, []).append(row)
    return {model: list(cases.values()) for model, cases in by_model.items()}


def _verdict(case: Case, verdicts: Verdicts, point: int, repeat: int) -> Verdict | None:
    of_images = (verdicts.get(image.work_id, {}).get((RUBRIC, point, repeat)) for image in case if image.pixels_sha256)
    return next((verdict for verdict in of_images if verdict is not None), None)


def rows_of(case: Case, verdicts: Verdicts) -> list[Row]:
    """The answers to the questions about a case."""
    task, rows = case[0].task, []
    for k in range(QUESTIONS):
        repeats = [_verdict(case, verdicts, k, repeat) for repeat in range(REPEATS)]
        scores = tuple(None if v is None or v.answer is None else int(v.answer["met"]) for v in repeats)
        rows.append(Row(task.own["uid"], task.title, task.own["case_id"], k + 1, scores, task.category))
    return rows


def _write_sheet(results: RunResults, case: Case, question: int, out: Path, folder: str) -> Path | None:
    """Write the collage that the judge received for a question; None if there is no output or an image cannot be
    read."""
    collage = case[0].task.own["sheets"][question - 1]
    generated = {image.deliverable: image.pixels_sha256 for image in case if image.pixels_sha256}
    outputs = [generated[i] for i in collage["outputs"] if i in generated]
    if not outputs:
        return None
    if collage["card"]:
        collage_image = count_card(len(outputs))
    else:
        try:
            inputs = [results.load_input(sha) for sha in collage["given"]]
            shown = [*inputs, *(results.load(sha) for sha in outputs)]
        except RunImageError:
            return None  # reported elsewhere
        collage_image = stitched(shown, Collage(rows=(len(inputs), len(outputs))))
    buffer = io.BytesIO()
    collage_image.save(buffer, **FORMATS["jpg"])
    return write_file(out, f"{folder}/{question:04d}.jpg", buffer.getvalue())
