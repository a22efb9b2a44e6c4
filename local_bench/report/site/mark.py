"""The file that marks a folder as a site and says of which state of the runs it is."""

import os
import shutil
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import local_bench
from local_bench.core.errors import UserError
from local_bench.core.files import configs_dir, read_text, storage_errors, user_config_dirs, write_atomic
from local_bench.core.types import digest

MARK = ".local-bench-site"
"""The files of a folder with this one are replaced by the next site."""
_TEXT = "Written by local-bench; the next report replaces the files in this folder.\n"
_LEFT_OUT = ("images", "inputs", "report", "exports", "logs", ".lock", "__pycache__")
"""What a site does not depend on: images have names of their content."""


def state(runs: Sequence[Path]) -> str:
    """A digest of everything that decides the site of these runs: names, sizes and times of change of their files
    (results, settings, annotations), of the config folders, and of this package."""
    folders = [*runs, *user_config_dirs(), configs_dir(), Path(local_bench.__file__).parent]
    return digest([[str(folder.resolve()), *files(folder)] for folder in folders])


def files(folder: Path) -> Iterator[list[str | int]]:
    for where, folders, files in os.walk(folder):
        folders[:] = sorted(set(folders).difference(_LEFT_OUT))
        for name in sorted(set(files).difference(_LEFT_OUT)):
            with suppress(FileNotFoundError):  # a temporary file
                status = os.stat(os.path.join(where, name), follow_symlinks=False)
                if not name.endswith(("-shm", "-journal")):  # SQLite's, of every reader, and while it writes
                    yield [os.path.relpath(where, folder), name, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def is_of(out: Path, state: str) -> bool:
    """Whether the folder has a complete site of this state."""
    try:
        return read_text(out / MARK, UserError, missing="write it again") == f"{_TEXT}{state}\n"
    except UserError:
        return False


def claim(out: Path, replaced: Collection[str] = ()) -> None:
    """Mark `out` as a site that is incomplete and remove the data of an earlier one; its images are kept. UserError if
    it has files that are not of a site, other than those `replaced`."""
    with storage_errors(out):
        out.mkdir(parents=True, exist_ok=True)
        foreign = not (out / MARK).exists() and any(path.name not in replaced for path in out.iterdir())
    if foreign:
        raise UserError(f"{out} has files that are not of a site: give a new or empty folder with --out")
    write_atomic(out / MARK, _TEXT.encode())
    with storage_errors(out):
        for folder in ("data", "tables", "figures"):
            shutil.rmtree(out / folder, ignore_errors=True)


def complete(out: Path, state: str) -> None:
    """Say in the mark of which state the site is."""
    write_atomic(out / MARK, f"{_TEXT}{state}\n".encode())
