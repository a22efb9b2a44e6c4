"""Tables and figures for papers of one run, in its `exports/`."""

from collections.abc import Callable
from pathlib import Path

from local_bench.analysis.settlement import Accounting
from local_bench.core.environment import require
from local_bench.core.errors import MissingExtra
from local_bench.report.panels import Figure
from local_bench.report.site.details import RunDetails
from local_bench.report.site.paper import figures, tables, write_figures, write_tables
from local_bench.report.site.run_figures import run_figures
from local_bench.report.site.summary import summary
from local_bench.runs.rundir import RunDir


def write_exports(run: RunDir, money: Accounting, note: Callable[[str], None]) -> list[Path]:
    """Write the run's data and the tables for papers to `<run>/exports/`; return the files. Without the extra `tables`
    there are no files of data, and earlier ones, which may have other numbers, are removed. Raises as the functions
    that write them."""
    try:
        require("tables")
    except MissingExtra as e:
        note(f"the run's data are not exported: {e}")
        for parquet in (run.path / "exports").glob("*.parquet"):
            parquet.with_suffix(".csv").unlink(missing_ok=True)
            parquet.unlink()
        return write_run_tables(run, money)
    from local_bench.report import exports

    return exports.write_exports(run, money) + write_run_tables(run, money)


def write_run_tables(run: RunDir, money: Accounting) -> list[Path]:
    """Write the leaderboard, scores, categories and significance to `<run>/exports/tables/`; return the files.

    StorageError if a write fails."""
    return write_tables(tables(summary([run], [money])), run.path / "exports" / "tables")


def write_run_figures(run: RunDir, money: Accounting) -> list[Path]:
    """Write every figure to `<run>/exports/figures/`, with its numbers as CSV; return the files. StorageError if a
    write fails."""
    return write_figures(all_figures(run, money), run.path / "exports" / "figures")


def all_figures(run: RunDir, money: Accounting) -> dict[str, Figure]:
    """All figures of a run by file name."""
    people = RunDetails(run, {}).decided_by_people
    return figures(summary([run], [money])) | run_figures(run, money, run.store.outcomes(), people)
