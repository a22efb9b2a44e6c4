"""Exports a run as IDEA-Bench results: outputs/METHOD/CASE/0001.jpg, and a CSV with six questions per case and three
answers each.

The columns are the benchmark's own; `gemini_result` contains the answer of the run's judge, of several judges the
majority's. A case without answers has rows without scores; a case that the model does not support has no rows,
and in an annotator's CSV none that was not shown.
"""

import csv
import io
from collections.abc import Mapping
from pathlib import Path

from local_bench.core.errors import RunImageError
from local_bench.core.images import count_card, stitched
from local_bench.core.table import guarded
from local_bench.core.types import Collage, Score, Verdict
from local_bench.suites.idea_bench import published as numbers
from local_bench.suites.idea_bench.questions import RUBRIC
from local_bench.suites.idea_bench.results import HEADER, QUESTIONS, REPEATS, Row
from local_bench.suites.idea_bench.scoring import subtask
from local_bench.suites.published import Published
from local_bench.suites.run_results import FORMATS, ImageResult, RunResults, write_bytes, write_text

Verdicts = Mapping[str, Mapping[tuple[str, int, int], Verdict]]
CASE = "idea_case"
Case = list[ImageResult]
"""One model's images of one case."""


def published(results: RunResults) -> dict[str, Published]:
    """Each model's numbers, computed from the ledger."""
    return {model: numbers.published(rows) for model, rows in results_by_model(results).items()}


def results_by_model(results: RunResults) -> dict[str, list[Row]]:
    """Each model's answers, computed from the ledger; only models with a supported case."""
    verdicts = results.verdicts
    rows_by_model = {
        model: [row for case in cases for row in _rows(case, verdicts)] for model, cases in _cases(results).items()
    }
    return {model: rows for model, rows in rows_by_model.items() if rows}


def case_scores(results: RunResults) -> dict[str, Score]:
    """Work id of every image -> the score of its case in percent (sec. 3.3), which the images of a case share; unscored
    if answers are missing that could change it."""
    cases: dict[tuple[str, str, int], Case] = {}
    for row in results.images:
        cases.setdefault((row.model, row.task.task_id, row.attempt), []).append(row)
    by_work: dict[str, Score] = {}
    for case in cases.values():
        counted = subtask(numbers.answers(_rows(case, results.verdicts)))
        reason = None
        if counted.low != counted.high:
            reason = f"{counted.n_unscored} of {QUESTIONS * REPEATS} answers are missing"
        score = Score(CASE, None if reason else float(counted.low), reason)
        by_work |= {image.work_id: score for image in case if image.pixels_sha256}
    return by_work


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
            for row in _rows(case, verdicts):
                folder = f"outputs/{model}_stitched/{of_task['case_dir']}"
                collage = _write_sheet(results, case, row.question, out, folder)
                case_verdicts = [_verdict(case, verdicts, row.question - 1, k) for k in range(REPEATS)]
                answers = [_cells(score, verdict) for score, verdict in zip(row.scores, case_verdicts, strict=True)]
                text = case[0].task.evaluation_points[row.question - 1]
                shown = "" if collage is None else collage.relative_to(out).as_posix()
                cells = [row.task_name, row.task_id, row.case_id, row.question, text, shown]
                lines.writerow(map(guarded, [*cells, *(x for a in answers for x in a)]))
        files.append(write_text(out, f"eval_results/{model}.csv", buffer.getvalue()))
    return files


def _cases(results: RunResults) -> dict[str, list[Case]]:
    rows = [row for row in results.images if row.attempt == 1]
    by_model: dict[str, dict[str, Case]] = {model: {} for model in results.models}
    for row in rows:
        if row.supported and row.shown:
            by_model[row.model].setdefault(row.task.task_id, []).append(row)
    return {model: list(cases.values()) for model, cases in by_model.items()}


def _verdict(case: Case, verdicts: Verdicts, point: int, repeat: int) -> Verdict | None:
    of_images = (verdicts.get(image.work_id, {}).get((RUBRIC, point, repeat)) for image in case if image.pixels_sha256)
    return next((verdict for verdict in of_images if verdict is not None), None)


def _rows(case: Case, verdicts: Verdicts) -> list[Row]:
    of_task = case[0].task.own
    return [
        Row(
            of_task["uid"],
            case[0].task.title,
            of_task["case_id"],
            k + 1,
            tuple(_score(_verdict(case, verdicts, k, repeat)) for repeat in range(REPEATS)),
            case[0].task.category,
        )
        for k in range(QUESTIONS)
    ]


def _score(verdict: Verdict | None) -> int | None:
    return None if verdict is None or verdict.answer is None else int(verdict.answer["met"])


def _cells(score: int | None, verdict: Verdict | None) -> tuple[str, str, str]:
    if verdict is None:
        return "", "", "the judge was not reached"
    return verdict.raw, "" if score is None else str(score), verdict.unscored or ""


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
    return write_bytes(out, f"{folder}/{question:04d}.jpg", buffer.getvalue())
