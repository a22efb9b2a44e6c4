"""Writes that are whole or absent: a temporary name in the same folder, synced, renamed."""

import errno
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from local_bench.core.errors import StorageError

_SUFFIX = ".writing"
_REFUSALS = {errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO, errno.EACCES, errno.EPERM}


@contextmanager
def storage_errors(path: Path) -> Iterator[None]:
    """Turns the file system's refusals under this block into one StorageError about `path`."""
    try:
        yield
    except OSError as e:
        if e.errno not in _REFUSALS:
            raise
        raise StorageError(
            f"cannot write {path}: {e.strerror}; make room or rights there and run the same command again, "
            "what was committed is kept"
        ) from e


def write_atomic(path: Path, data: bytes) -> None:
    """Writes `data` to `path`; a crash at any point leaves the old file or the new one. StorageError if refused."""
    with storage_errors(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=_SUFFIX)
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            with suppress(FileNotFoundError):
                os.unlink(temporary)
            raise
        _sync_folder(path.parent)


def sweep(folder: Path) -> None:
    """Removes what writers that were killed in the middle left below `folder`. Only while nobody writes there."""
    for path in folder.rglob(f".*{_SUFFIX}"):
        path.unlink(missing_ok=True)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
