"""Locations of files and folders, and the safe joining of untrusted names to a folder."""

import os
import re
from pathlib import Path

from local_bench.core.errors import UserError

_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
_SNAPSHOT = re.compile(r"(.*/(?:models|datasets)--[^/]+)/snapshots/[0-9a-f]{40}(?:/|$)")
CONFIG_DIRS = "LOCAL_BENCH_CONFIG_DIRS"
"""The environment variable that `--config-dir` sets."""
_PACKAGE = Path(__file__).resolve().parent.parent


def is_safe_id(name: str) -> bool:
    """Whether `name` can be a task, model or run id: it starts with a letter or digit and has no separators."""
    return _ID.fullmatch(name) is not None and ".." not in name


def safe_join(root: Path, relative: str) -> Path:
    """`root / relative`, refusing (UserError) anything outside `root`: absolute paths, `..`, links, NUL.

    A snapshot in the Hub's cache is a folder of links into the `blobs` of the same repository: these are followed.
    """
    if not relative or "\0" in relative or Path(relative).is_absolute():
        raise UserError(f"the path {relative!r} is not a relative path inside {root}: give one that is")
    path, top = (Path(os.path.realpath(joined)) for joined in (root / relative, root))
    # After a loop of links, realpath leaves the rest of a path as it is, which could be a link out of the folder.
    resolved = os.path.realpath(path) == str(path)
    if not resolved or not any(path.is_relative_to(folder) for folder in (top, *_blobs(top))):
        raise UserError(f"the path {relative!r} leads out of {root}: keep files inside that folder")
    return path


def _blobs(root: Path) -> list[Path]:
    """Where the files of `REPOSITORY/snapshots/COMMIT[/…]` are; empty if `root` is not in such a folder."""
    match = _SNAPSHOT.match(root.as_posix())
    return [Path(match.group(1), "blobs")] if match else []


def refuse_links(folder: Path) -> None:
    """UserError if a symbolic link is anywhere below `folder`; `folder` itself may be reached through one.

    A run directory may come from someone else, and a link in it would redirect reads and writes to other folders.
    """
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.is_file(follow_symlinks=False):
                continue
            if entry.is_symlink():
                raise UserError(
                    f"{entry.path} is a symbolic link, and a run directory must not contain any: replace it with what "
                    "it points to, or remove it"
                )
            if entry.is_dir(follow_symlinks=False):
                refuse_links(Path(entry.path))
            else:
                raise UserError(f"{entry.path} is not a regular file, and a run directory has no others: remove it")


def configs_dir() -> Path:
    """`LOCAL_BENCH_CONFIGS`, else the shipped configs: inside the installed package, or next to it in a checkout."""
    chosen = os.environ.get("LOCAL_BENCH_CONFIGS")
    if chosen:
        return Path(chosen)
    inside = _PACKAGE / "configs"
    return inside if inside.is_dir() else _PACKAGE.parent / "configs"


def user_config_dirs() -> list[Path]:
    """Folders with a lab's own model cards and prices, in order of precedence: those of `--config-dir`
    (`LOCAL_BENCH_CONFIG_DIRS`, separated as PATH is), then `local-bench/` in the working folder, if it exists."""
    named = [Path(entry) for entry in os.environ.get(CONFIG_DIRS, "").split(os.pathsep) if entry]
    folder = Path("local-bench")
    return [*named, *([folder] if folder.is_dir() else [])]


def config_files(name: str) -> list[Path]:
    """The files `name` of all config folders: a lab's own, then the shipped one."""
    return [path for folder in (*user_config_dirs(), configs_dir()) if (path := folder / name).is_file()]


def find_config(path: Path) -> Path:
    """The run config that `path` names: a file, or a bare name such as `studio`, which is `runs/studio.yaml` in a lab's
    own config folder or among the shipped configs, unless a run directory has that name. Else `path` itself."""
    if path.name != str(path) or path.suffix or path.is_file() or (path / "run.yaml").is_file():
        return path
    return next(iter(config_files(f"runs/{path}.yaml")), path)


def weights_dir() -> Path:
    """The small trained models shipped with local-bench: inside the installed package, or next to it in a checkout."""
    inside = _PACKAGE / "weights"
    return inside if inside.is_dir() else _PACKAGE.parent / "weights"


def runs_dir() -> Path:
    """The default parent of run directories: `LOCAL_BENCH_RUNS`, else `runs` in the working folder."""
    return Path(os.environ.get("LOCAL_BENCH_RUNS") or "runs")


def cache_dir() -> Path:
    """The user's cache (`LOCAL_BENCH_CACHE`, else the platform's): small models built here, weights digests."""
    chosen = os.environ.get("LOCAL_BENCH_CACHE")
    if chosen:
        return Path(chosen)
    import platformdirs

    return Path(platformdirs.user_cache_dir("local-bench"))
