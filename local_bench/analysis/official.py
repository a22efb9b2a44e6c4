"""A run's results in its benchmark's own layout, and the numbers that the benchmark publishes."""

from decimal import Decimal
from pathlib import Path

from local_bench.analysis.agreement import judge_labels
from local_bench.analysis.economics import usd_per_image
from local_bench.analysis.settlement import accounting
from local_bench.core.errors import UserError
from local_bench.core.storage import storage_errors, write_atomic
from local_bench.core.suggest import hint
from local_bench.runs.rundir import RunDir
from local_bench.runs.scoring import majority_verdicts, verdicts_of
from local_bench.suites.published import Published
from local_bench.suites.registry import suite, suite_names
from local_bench.suites.run_results import ImageResult, RunResults

MARK = ".local-bench-export"
"""The file that marks a folder of exports."""


def run_results(run: RunDir) -> RunResults:
    """What the run produced, from its store."""
    by_judge = [verdicts_of(run.store, judge_id) for judge_id in judge_labels(run)]
    costs = usd_per_image(run.store, accounting(run.store, run.config.settlement))
    return RunResults(
        images=image_results(run),
        usd_per_image={model: Decimal(usd.numerator) / Decimal(usd.denominator) for model, usd in costs.items()},
        verdicts={} if not by_judge else by_judge[0] if len(by_judge) == 1 else majority_verdicts(by_judge),
        load=run.image_store.load,
        load_input=run.image_store.load_input,
    )


def image_results(run: RunDir) -> list[ImageResult]:
    """One row for every image that the run asks for, in the plan's order."""
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


def layouts() -> list[str]:
    """Names of the benchmarks that have a layout of their own."""
    return list(dict.fromkeys(layout for name in suite_names() if (layout := suite(name).layout)))


def format_of(run: RunDir) -> str | None:
    """In which layout the run's results are given; None for a suite without one."""
    return suite(run.config.suite.name).layout


def export(run: RunDir, name: str, out: Path) -> list[Path]:
    """Writes the run in the layout `name` below `out`, and returns the files that `local-bench score` reads.

    Images that are missing, damaged or altered are left out and noted in `run.image_store`.
    UserError for an unknown layout and for that of another suite, and for a folder with other files in it;
    StorageError if the disk refuses.
    """
    check_format(name)
    own = format_of(run)
    if name != own:
        raise UserError(
            f"{run.path} is a run of {run.config.suite.name}, which is written as {own}: give --format {own}"
        )
    _claim(out, run.path)
    return suite(run.config.suite.name).write_results(run_results(run), out)


def export_notes(run: RunDir) -> list[str]:
    """What the run's layout leaves out, a sentence each."""
    return suite(run.config.suite.name).result_notes(run_results(run))


def _claim(out: Path, run_dir: Path) -> None:
    """Marks `out` as a folder of exports. UserError where it holds files and is not one, so that nobody's own data set,
    whose files have the same names, is overwritten; PathError where it is a file."""
    if out.resolve().is_relative_to((run_dir / "exports").resolve()):
        return
    mark = out / MARK
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        foreign = not mark.exists() and any(out.iterdir())
    if foreign:
        raise UserError(f"{out} holds files that no export wrote: give a new or empty folder with --out")
    write_atomic(
        mark, b"Written by local-bench export; a later export replaces the files of its layout in this folder.\n"
    )


def check_format(name: str) -> None:
    """UserError for an unknown layout."""
    known = layouts()
    if name not in known:
        suggestion = hint(name, known, f"there are {', '.join(known)}")
        raise UserError(f"there is no layout {name!r}: {suggestion}")


def official(run: RunDir) -> dict[str, Published]:
    """The benchmark's published numbers by model, or under `all` where the benchmark gives them together; nothing
    before the run is planned, and for a suite without numbers of its own."""
    return suite(run.config.suite.name).published(run_results(run)) if run.store.task_totals()[0] else {}
