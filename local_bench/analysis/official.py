"""A run's results in its benchmark's file layout, and the benchmark's published statistics."""

import json
from collections import defaultdict
from dataclasses import fields, replace
from decimal import Decimal
from fractions import Fraction
from itertools import takewhile
from pathlib import Path
from typing import Any

import pandas as pd
from pydantic import TypeAdapter

from local_bench.analysis.agreement import judge_labels
from local_bench.analysis.economics import usd_per_image
from local_bench.analysis.settlement import accounting
from local_bench.annotation.exchange import annotation_lines
from local_bench.annotation.protocol import OVERALL
from local_bench.annotation.ratings import load_annotations
from local_bench.annotation.session import no_image
from local_bench.core.errors import UserError, hint
from local_bench.core.files import storage_errors, write_atomic
from local_bench.core.money import MICRO, nearest_micro_usd
from local_bench.core.table import Column, Table
from local_bench.core.types import Score, digest
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import majority_verdicts, verdicts_of
from local_bench.runs.store import plain
from local_bench.suites.base import Suite
from local_bench.suites.published import Published
from local_bench.suites.questions_from import derived_scores
from local_bench.suites.registry import all_suites, suite
from local_bench.suites.run_results import ImageResult, RunResults

MARK = ".local-bench-export"
"""The file that marks a folder with exports, and lists their files by layout."""
_MARKED = "Written by local-bench export; a later export of a layout replaces and removes its files listed here.\n"


def run_results(run: RunDir) -> RunResults:
    """The run's results, read from its store."""
    by_judge = [verdicts_of(run.store, judge_id) for judge_id in judge_labels(run)]
    costs = usd_per_image(run.store, accounting(run.store, run.config.settlement))
    # the store has whole micro-USD, the config all digits of the cost of imported images
    configured = {m.label: m.imported.cost_usd_per_image for m in run.config.models if m.imported}
    for model, usd in costs.items():
        exact = configured.get(model)
        if exact and usd * MICRO == nearest_micro_usd(exact):  # it is that of each image
            costs[model] = Fraction(exact)
    return RunResults(
        images=image_results(run),
        usd_per_image={model: Decimal(usd.numerator) / Decimal(usd.denominator) for model, usd in costs.items()},
        verdicts={} if not by_judge else by_judge[0] if len(by_judge) == 1 else majority_verdicts(by_judge),
        load=run.image_store.load,
        load_input=run.image_store.load_input,
    )


def image_results(run: RunDir) -> list[ImageResult]:
    """One row per candidate, in the plan's order."""
    tasks = {task.task_id: task for task in run.store.tasks()}
    scores = run.store.scores_by_candidate()
    return [
        ImageResult(
            work_id=row.candidate.work_id,
            model=row.candidate.model,
            task=tasks[row.candidate.task_id],
            deliverable=row.candidate.deliverable,
            attempt=row.candidate.attempt,
            pixels_sha256=row.candidate.image,
            unscored=row.candidate.unscored,
            accepted=row.accepted,
            scores=scores.get(row.candidate.work_id, {}),
        )
        for row in run.store.outcomes()
    ]


def derived(run: RunDir) -> pd.DataFrame:
    """The scores that follow from several scores of an image (`suites.questions_from`), with their images; no rows
    without `suite.questions_from`."""
    name, questions_from = run.config.suite.name, run.config.suite.questions_from
    scores = derived_scores(name, questions_from, run_results(run)) if questions_from else ()
    rows = [{"work_id": work_id, "kind": "benchmark", **vars(score)} for work_id, score in scores]
    names = ("work_id", "model", "task_id", "category", "deliverable", "attempt")
    columns = ["work_id", "kind", *(field.name for field in fields(Score))]
    return plain(pd.DataFrame(rows, columns=columns).merge(run.store.frame("outcomes", names), on="work_id"))


def format_of(run: RunDir) -> str | None:
    """Name of the layout of the run's results; None for a suite without one."""
    return suite(run.config.suite.name).layout


def export(run: RunDir, name: str, out: Path) -> list[Path]:
    """Write the run in the layout `name` to `out`, remove what only an earlier export in this layout wrote there, and
    return the files that `local-bench score` reads.

    Missing, damaged or altered images are left out and recorded in `run.image_store`. UserError for an unknown layout,
    another suite's layout, or a folder with other files; StorageError if a write fails.
    """
    suite_of_layout(name)
    _check_own(run, name)
    earlier = _claim(out, run.path)
    before = _files(out)
    files = suite(run.config.suite.name).write_results(run_results(run), out)
    written = {path: at for path, at in _files(out).items() if before.get(path) != at}
    with storage_errors(out):
        for path in (out / path for path in earlier.get(name, ()) if path in before and path not in written):
            path.unlink()
            for folder in takewhile(lambda of: of != out and not any(of.iterdir()), path.parents):
                folder.rmdir()
    write_atomic(out / MARK, (_MARKED + json.dumps(earlier | {name: list(written)}, indent=0)).encode())
    return files


def _files(folder: Path) -> dict[str, tuple[int, int]]:
    """Relative path -> what differs once the file has been replaced."""
    found = {path.relative_to(folder).as_posix(): path.lstat() for path in folder.rglob("*") if not path.is_dir()}
    return {path: (at.st_ino, at.st_mtime_ns) for path, at in sorted(found.items())}


def export_notes(run: RunDir) -> list[str]:
    """What the run's layout does not include, one sentence each."""
    return suite(run.config.suite.name).result_notes(run_results(run))


def _claim(out: Path, run_dir: Path) -> dict[str, list[str]]:
    """Layout -> files of earlier exports to `out`. UserError if it has files and is not marked, so that a data set with
    the same file names is not overwritten; PathError if it is a file."""
    mark, own = out / MARK, out.resolve().is_relative_to((run_dir / "exports").resolve())
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        if not own and not mark.exists() and any(out.iterdir()):
            raise UserError(f"{out} has files that are not from an export: give a new or empty folder with --out")
        if not mark.exists():
            write_atomic(mark, _MARKED.encode())
        text = mark.read_bytes().partition(b"\n")[2]
    try:
        return TypeAdapter(dict[str, list[str]]).validate_json(text or "{}")
    except ValueError:
        raise UserError(f"{mark} is damaged: give another folder with --out") from None


def suite_of_layout(name: str) -> Suite:
    """The suite that defines a layout. UserError for an unknown layout."""
    with_layout = [entry for entry in all_suites() if entry.layout]
    of_layout = {entry.layout: entry for entry in with_layout} | {entry.name: entry for entry in with_layout}
    available = list(dict.fromkeys(str(entry.layout) for entry in with_layout))
    if name not in available:
        raise UserError(f"unknown layout {name!r}: {hint(name, available)}")
    return of_layout[name]


_COST = (Column("model", "generation"), Column("usd", "cost per image", ",.6f", unit="$"))


def official(run: RunDir) -> dict[str, Published]:
    """The benchmark's published statistics by model, or under `all` if the benchmark combines models; empty before
    the run is planned, and for a suite without published statistics."""
    if not run.store.task_totals()[0]:
        return {}
    results = run_results(run)
    by_model = suite(run.config.suite.name).published(results)
    for model, usd in results.usd_per_image.items():
        if model in by_model:  # the tables of all models have the costs themselves
            cost = Table("generation", _COST, ((model, float(usd)),))
            by_model[model] = replace(by_model[model], tables=[*by_model[model].tables, cost])
    return by_model


def export_people(run: RunDir, name: str, out: Path) -> list[Path]:
    """Write each annotator's result files in the layout `name` to `out/ANNOTATOR/`, adjudications to
    `out/ANNOTATOR.adjudication/`, and the consensus (majority, or adjudicated) about all images to `out/consensus/`;
    images are not written. Return the files that `local-bench score` reads. UserError for another suite's layout or
    existing folders."""
    _check_own(run, name)
    work_ids = {row.key: row.work_id for row in run.store.candidates()}
    by_folder: dict[str, dict[str, dict[str, Any]]] = defaultdict(dict)
    for line in annotation_lines(run):
        rater = line["rater"]
        safe = all(c.isalnum() or c in "-_." for c in rater) and not rater.startswith(".")
        taken = rater == "consensus" or rater.endswith(".adjudication")
        named = rater if safe and not taken else f"annotator-{digest(rater)[:8]}"
        folder_name = f"{named}.adjudication" if line.get("adjudication") else named
        by_folder[folder_name][work_ids[line["model"], line["task_id"], line["deliverable"], line["attempt"]]] = line
    of_suite, results, files = suite(run.config.suite.name), replace(run_results(run), load=no_image), list[Path]()
    consensus = load_annotations(run.path, run).consensus
    by_folder["consensus"] = {
        w: {OVERALL: None} | {name: ratings[w].decision for name, ratings in consensus.items() if w in ratings}
        for w in work_ids.values()
    }
    for folder_name, ratings in sorted(by_folder.items()):
        folder = out / folder_name
        if folder.exists():
            raise UserError(f"{folder} exists: give a new folder with --out")
        files += of_suite.write_results(of_suite.annotated(results, ratings), folder)
    return files


def _check_own(run: RunDir, name: str) -> None:
    layout = format_of(run)
    if name != layout:
        use = f"whose layout is {layout}: give --format {layout}"
        without = f"a suite without a file layout: use the tables in {run.path / 'exports'}"
        raise UserError(f"{run.path} is a run of {run.config.suite.name}, {use if layout else without}")
