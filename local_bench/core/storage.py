"""Atomic writes (a temporary file in the same folder, synced, then renamed), transactions of SQLite, and temporary
folders that name their process: those of a killed process are removed when the next one is made."""

import errno
import os
import re
import shutil
import socket
import sqlite3
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO

from local_bench.core.errors import LocalBenchError, PathError, StorageError, UserError
from local_bench.core.files import MAX_TEXT_BYTES, read_bytes, require_regular

_OF_RUST = re.compile(r"\(os error (\d{1,4})\)")
_SUFFIX = ".writing"
_ANOTHER = "give another path, or move the existing file away"
_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM}
_UNUSABLE = {errno.ENOTDIR, errno.EISDIR, errno.EEXIST, errno.ENAMETOOLONG, errno.ENOENT, errno.ELOOP, errno.ENOTEMPTY}
_UNUSABLE |= {errno.ENXIO, errno.EINVAL}  # a FIFO without a reader, a socket
"""Errors of the path itself, which neither permissions nor free space would fix."""


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Convert OSErrors of writes in this block, and those of libraries in Rust (safetensors), to a StorageError about
    `path`, or a PathError if the path itself is invalid."""
    try:
        yield
    except Exception as e:
        of_rust = _OF_RUST.search(str(e)) if not isinstance(e, OSError | LocalBenchError) else None
        error = OSError(int(of_rust[1]), os.strerror(int(of_rust[1]))) if of_rust else e
        if not isinstance(error, OSError):
            raise
        if error.errno in _UNUSABLE:
            raise PathError(f"cannot write {path}: {_where(error, path)}{error.strerror}; {_ANOTHER}") from e
        if error.errno not in _REFUSALS:
            raise
        raise StorageError(
            f"cannot write {path}: {error.strerror}; free disk space or fix its permissions and run the same command "
            "again; committed results are kept"
        ) from e


def _where(error: OSError, path: Path) -> str:
    """The file in the error if it differs from `path` and is not a temporary file."""
    name = error.filename
    if not isinstance(name, str) or name == str(path) or name.endswith(_SUFFIX):
        return ""
    return f"{name}: "


def check_output(file: Path) -> None:
    """Make the folder of a file that is written later. Raises as `write_atomic`, also if `file` is a folder."""
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))


def write_atomic(path: Path, data: bytes, durable: bool = True) -> None:
    """Write `data` to `path`; a crash at any point leaves either the old or the new file. Without `durable` the file
    is not synced, and may be empty after a power failure. Raises StorageError."""
    with atomic_file(path, durable) as file:
        file.write(data)


@contextmanager
def atomic_file(path: Path, durable: bool = True) -> Iterator[BinaryIO]:
    """As `write_atomic`, for a file that is written in parts: `path` has it when the block ends, and stays as it was if
    the block raises an error."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_SUFFIX)
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        if durable:
            _sync_folder(path.parent)


def write_new(path: Path, data: bytes, what: str) -> None:
    """As `write_atomic`, but never replace an existing file: raises UserError if its content differs from `data`
    (`what` is its description in the message, such as "labels"). Equal content is no error, so commands are repeatable.
    """
    existing = None
    with storage_errors(path):
        if path.exists():
            existing = read_bytes(path, PathError, max_bytes=MAX_TEXT_BYTES, missing=_ANOTHER)
    if existing is None:
        write_atomic(path, data)
    elif existing != data:
        raise UserError(f"{path} exists and its content differs from these {what}: give a new file, or move it away")


def put_in_place(temporary: Path, path: Path) -> None:
    """Sync a finished file and rename it to `path` in the same folder. Raises StorageError."""
    with storage_errors(path):
        handle = os.open(temporary, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)
        os.replace(temporary, path)
        _sync_folder(path.parent)


def sweep(folder: Path) -> None:
    """Remove temporary files of killed writers below `folder`. Not safe while another process writes there."""
    for path in folder.rglob(f".*{_SUFFIX}"):
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def append(path: Path, data: bytes) -> None:
    """Append to a regular file, which is created. Raises OSError; UserError for a device or another kind of file."""
    if path.exists():
        require_regular(path, UserError, _ANOTHER)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o644)
    with os.fdopen(handle, "ab") as file:
        file.write(data)


@contextmanager
def transaction(db: sqlite3.Connection, begin: str = "BEGIN IMMEDIATE") -> Iterator[None]:
    """Commit all writes of the block, or none; no transaction is open afterwards, whatever was raised: by the block, by
    an interrupt just after BEGIN, or by a COMMIT that found the file locked."""
    try:
        db.execute(begin)
        yield
        db.execute("COMMIT")
    except BaseException:
        if db.in_transaction:
            db.execute("ROLLBACK")
        raise


_NAME = re.compile(r"\.local-bench-([A-Za-z0-9_.-]*)-(\d+)-(\d+)-[a-z0-9_]+")
_STARTED_AT = 19
"""The field `starttime` of /proc/PID/stat, counted from the one after the command's name."""


def new_scratch(parent: Path | None = None) -> Path:
    """A new folder in `parent` (the system's folder for temporary files), which the caller removes. Folders of
    processes of this machine that have ended are removed first. Raises OSError."""
    folder = parent or Path(tempfile.gettempdir())
    sweep_scratch(folder)
    pid = os.getpid()
    return Path(tempfile.mkdtemp(dir=folder, prefix=f".local-bench-{_host()}-{pid}-{_started(pid) or 0}-"))


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
        with os.scandir(folder) as scanned:
            entries = [entry for entry in scanned if _NAME.fullmatch(entry.name)]
    except OSError:
        return
    for entry in entries:
        match = _NAME.fullmatch(entry.name)
        if match is None or match[1] != _host() or entry.is_symlink():
            continue
        try:
            is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
        except OSError:
            continue
        started = _started(int(match[2]))
        if is_ours and (started is None or (int(match[3]) and started != int(match[3]))):
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
