"""The benchmarks' own layouts by name."""

import difflib
import importlib
from pathlib import Path
from types import ModuleType

from local_bench.core.errors import UserError
from local_bench.core.storage import storage_errors, write_atomic
from local_bench.core.types import Task
from local_bench.runs.rundir import RunDir
from local_bench.suites.published import Published

OFFICIAL = ("servimage", "idea-bench", "hype-edit-1", "ice-bench")
MARK = ".local-bench-export"
"""The file that marks a folder of exports."""
_OF_SUITE = {"studio": "servimage", "printshop": "servimage"}
"""Suites that are settled as another benchmark is."""


def format_of(run: RunDir) -> str | None:
    """In which layout the run's results are given; None for a suite without one."""
    name = run.config.suite.name
    name = _OF_SUITE.get(name, name)
    return name if name in OFFICIAL else None


def export(run: RunDir, name: str, out: Path) -> list[Path]:
    """Writes the run in the layout `name` below `out`, and returns the files that `local-bench score` reads.

    Pictures that are missing, damaged or altered are left out and noted in `run.pictures`.
    UserError for a layout that there is not or that is another suite's, and for a folder with other files in it;
    StorageError if the disk refuses.
    """
    check_format(name)
    own = format_of(run)
    if name != own:
        raise UserError(
            f"{run.path} is a run of {run.config.suite.name}, which is written as {own}: give --format {own}"
        )
    _claim(out, run.path)
    files: list[Path] = _module(name).write(run, out)
    return files


def export_notes(run: RunDir, name: str) -> list[str]:
    """What the layout `name` leaves out of the run, a sentence each."""
    module = _module(name)
    found: list[str] = module.notes(run) if hasattr(module, "notes") else []
    return found


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
    """UserError where there is no such layout."""
    if name not in OFFICIAL:
        near = difflib.get_close_matches(name, OFFICIAL, 1, 0.4)
        hint = f"did you mean {near[0]!r}?" if near else f"there are {', '.join(OFFICIAL)}"
        raise UserError(f"there is no layout {name!r}: {hint}")


def official(run: RunDir) -> dict[str, Published]:
    """The benchmark's published numbers from the ledger, by model, or under `all` where the benchmark gives them
    together; nothing before the run is planned, and for a suite without numbers of its own."""
    name = format_of(run)
    tasks: list[Task] = run.store.tasks()
    if name is None or not tasks:
        return {}
    found: dict[str, Published] = _module(name).published(run)
    return found


def _module(name: str) -> ModuleType:
    return importlib.import_module(f"local_bench.report.official.{name.replace('-', '_')}")
