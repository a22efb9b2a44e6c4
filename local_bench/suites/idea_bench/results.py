"""IDEA-Bench's results CSV: one row per question of a case, with the judge's answer, score and reason of each
repeat."""

import csv
import io
from dataclasses import dataclass
from pathlib import Path

from local_bench.core.errors import ResultFileError, short
from local_bench.core.files import read_text
from local_bench.core.table import unguarded

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
    text = read_text(path, ResultFileError, missing="give a results CSV of IDEA-Bench")
    try:
        with io.StringIO(text, newline="") as file:
            csv.field_size_limit(MAX_FIELD)
            lines = csv.reader(file, strict=True)
            columns = _columns(next(lines, []), path)
            for fields in lines:
                where = f"{path}, line {lines.line_num}"
                if not any(field.strip() for field in fields):
                    continue  # spreadsheets write `,,,` for an empty row
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


def _columns(header: list[str], path: Path) -> dict[str, int]:
    duplicate = next((name for name in header if header.count(name) > 1), None)
    if duplicate is not None:
        raise ResultFileError(f"{path}, line 1: duplicate column {duplicate!r}: keep one")
    needed = ("task_name", "task_id", "case_id", "question_id", *(f"score_{k}" for k in range(1, REPEATS + 1)))
    lacking = next((name for name in needed if name not in header), None)
    if lacking is not None:
        raise ResultFileError(f"{path}, line 1: the column {lacking!r} is missing: use the benchmark's header")
    return {name: i for i, name in enumerate(header)}


def _row(fields: list[str], columns: dict[str, int], where: str) -> Row:
    if len(fields) != len(columns):
        raise ResultFileError(f"{where}: {len(fields)} fields for {len(columns)} columns: correct the line")

    def field(name: str) -> str:
        return unguarded(fields[columns[name]].strip())

    question = field("question_id")
    if question not in map(str, range(1, QUESTIONS + 1)):
        raise ResultFileError(f"{where}: question_id must be 1 to {QUESTIONS}, not {short(question)}")
    scores = []
    for k in range(1, REPEATS + 1):
        score = field(f"score_{k}")
        if score not in SCORES and score not in NONE:
            raise ResultFileError(f"{where}: score_{k} must be 0, 1 or empty, not {short(score)}")
        scores.append(SCORES.get(score))
    for name in ("task_id", "case_id"):
        if not field(name):
            raise ResultFileError(f"{where}: {name} is empty: give the case's value")
    return Row(_uid(field("task_id")), field("task_name"), _uid(field("case_id")), int(question), tuple(scores))


def _uid(text: str) -> str:
    """Four digits; spreadsheets remove leading zeros."""
    return text.zfill(4) if text.isdigit() else text
