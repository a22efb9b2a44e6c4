"""Temporary folders that name their process: those of a killed process are removed when the next one is made."""

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_NAME = re.compile(r"\.local-bench-([A-Za-z0-9_.-]*)-(\d+)-(\d+)-[a-z0-9_]+")
_STARTED_AT = 19
"""The field `starttime` of /proc/PID/stat, counted from the one after the command's name."""


def new_scratch(parent: Path | None = None) -> Path:
    """A new folder in `parent` (the system's folder for temporary files), which the caller removes. Folders of
    processes of this machine that have ended are removed first. Raises OSError."""
    folder = parent or Path(tempfile.gettempdir())
    sweep_scratch(folder)
    own = os.getpid()
    return Path(tempfile.mkdtemp(dir=folder, prefix=f".local-bench-{_host()}-{own}-{_started(own) or 0}-"))


@contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """A new folder, removed at the end."""
    path = new_scratch(parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


def sweep_scratch(folder: Path) -> None:
    """Remove the scratch folders in `folder` whose process, of this machine and this user, has ended."""
    try:
        with os.scandir(folder) as found:
            entries = [entry for entry in found if _NAME.fullmatch(entry.name)]
    except OSError:
        return
    for entry in entries:
        match = _NAME.fullmatch(entry.name)
        if match is None or match[1] != _host() or entry.is_symlink():
            continue
        try:
            own = entry.stat(follow_symlinks=False).st_uid == os.getuid()
        except OSError:
            continue
        started = _started(int(match[2]))
        if own and (started is None or (int(match[3]) and started != int(match[3]))):
            shutil.rmtree(entry.path, ignore_errors=True)


def _host() -> str:
    return re.sub(r"[^A-Za-z0-9_.]", "_", socket.gethostname())[:40]


def _started(pid: int) -> int | None:
    """When a process started, in clock ticks since boot (0 if unknown); None if no such process exists."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text("utf-8", "replace")
    except OSError:
        if Path("/proc/self/stat").exists():
            return None
    else:
        return int(text.rpartition(")")[2].split()[_STARTED_AT])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        pass
    return 0
