"""Reading files that others may have written: regular files only, with a size limit.

A FIFO, a device or a socket can block or never end, and a large file can exhaust the memory; both are refused before
anything is read. Every function raises the caller's error type with one sentence, for invalid paths (a link loop, a
name that is too long, NUL) too.
"""

import errno
import os
import stat
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from io import BufferedReader
from pathlib import Path

from local_bench.core.errors import LocalBenchError

_MAX_PATH_BYTES, _MAX_NAME_BYTES = 4096, 255
IMAGE_SUFFIXES = (".png", ".jpg", ".jpeg", ".webp")
MAX_TEXT_BYTES = 64_000_000
"""For text that is parsed whole, unless the reader states its own limit."""


def read_bytes(
    path: Path, error: type[LocalBenchError], *, max_bytes: int, missing: str, unreadable: str = "", folder: str = ""
) -> bytes:
    """The content of a regular file of at most `max_bytes`. Raises `error` with one sentence for every other case;
    `missing`, `unreadable` and `folder` are the advice for a missing file, a file that cannot be read and a folder."""
    advice = unreadable or missing
    try:
        handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise error(f"{path} does not exist: {missing}") from None
    except OSError as e:
        raise error(f"{path} cannot be read ({reason(e)}): {advice}") from None
    except ValueError:  # NUL, or an unpaired surrogate
        raise error(f"{str(path)!r} cannot be the path of a file: {advice}") from None
    try:
        status = os.fstat(handle)
        if stat.S_ISDIR(status.st_mode):
            raise error(f"{path} is a folder: {folder or advice}")
        if not stat.S_ISREG(status.st_mode):
            raise error(f"{path} is not a regular file: {advice}")
        if status.st_size > max_bytes:
            raise error(f"{path} is larger than {max_bytes:,} bytes: {advice}")
        with os.fdopen(os.dup(handle), "rb") as file:
            data = file.read(max_bytes + 1)
    except OSError as e:
        raise error(f"{path} cannot be read ({reason(e)}): {advice}") from None
    finally:
        os.close(handle)
    if len(data) > max_bytes:  # it grew, or its size is not stated (procfs)
        raise error(f"{path} is larger than {max_bytes:,} bytes: {advice}")
    return data


def read_text(
    path: Path,
    error: type[LocalBenchError],
    *,
    missing: str,
    unreadable: str = "",
    folder: str = "",
    max_bytes: int = MAX_TEXT_BYTES,
) -> str:
    """As `read_bytes`, decoded as UTF-8 (a byte order mark is removed); `error` also for other encodings."""
    data = read_bytes(path, error, max_bytes=max_bytes, missing=missing, unreadable=unreadable, folder=folder)
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as e:
        line = data.count(b"\n", 0, e.start) + 1
        raise error(f"{path}, line {line}: this is not UTF-8 text: save the file as UTF-8") from None


def require_regular(path: Path, error: type[LocalBenchError], advice: str, *, max_bytes: int | None = None) -> None:
    """Raise `error` unless `path` is a regular file (of at most `max_bytes`) or a link to one; for libraries that open
    the file themselves."""
    try:
        status = os.stat(path)
    except FileNotFoundError:
        raise error(f"{path} does not exist: {advice}") from None
    except OSError as e:
        raise error(f"{path} cannot be read ({reason(e)}): {advice}") from None
    except ValueError:
        raise error(f"{str(path)!r} cannot be the path of a file: {advice}") from None
    if not stat.S_ISREG(status.st_mode):
        kind = "a folder" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise error(f"{path} is {kind}: {advice}")
    if max_bytes is not None and status.st_size > max_bytes:
        raise error(f"{path} is larger than {max_bytes:,} bytes: {advice}")


def path_fault(text: str) -> str | None:
    """Why no file can have this path: NUL, characters without an encoding, too long a name, a loop of links. None if
    one can (whether or not it exists)."""
    if "\0" in text:
        return "it contains NUL"
    try:
        encoded = os.fsencode(text)
    except UnicodeEncodeError:
        return "it contains an unpaired surrogate"
    if len(encoded) > _MAX_PATH_BYTES or any(len(part) > _MAX_NAME_BYTES for part in encoded.split(b"/")):
        return "it is longer than file systems allow"
    try:
        os.stat(encoded)
    except OSError as e:
        return "its links form a loop" if e.errno == errno.ELOOP else None
    return None


def is_file(path: Path) -> bool:
    """`path.is_file()`, also False for a path that no file can have."""
    try:
        return path.is_file()
    except (OSError, ValueError):
        return False


def is_dir(path: Path) -> bool:
    """`path.is_dir()`, also False for a path that no folder can have."""
    try:
        return path.is_dir()
    except (OSError, ValueError):
        return False


def reason(error: OSError) -> str:
    """The system's description of an error, starting in lower case and without its number."""
    text = error.strerror or type(error).__name__
    return text[:1].lower() + text[1:]


@contextmanager
def open_regular(
    path: Path, error: type[LocalBenchError], *, missing: str, unreadable: str = ""
) -> Iterator[BufferedReader]:
    """A regular file opened for reading in pieces, for files without a limit of their own. Raises as `read_bytes`, for
    errors while it is read too."""
    require_regular(path, error, missing)
    try:
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            yield file
    except FileNotFoundError:
        raise error(f"{path} does not exist: {missing}") from None
    except OSError as e:
        raise error(f"{path} cannot be read ({reason(e)}): {unreadable or missing}") from None


def visible_files(folder: Path) -> list[Path]:
    """The files below `folder`, sorted, without hidden ones and those in hidden folders (`.ipynb_checkpoints`)."""
    files = (path for path in folder.rglob("*") if path.is_file())
    return sorted(path for path in files if not any(part.startswith(".") for part in path.relative_to(folder).parts))


def plain_name(name: str) -> str:
    """A file's name in Unicode's composed form: systems store `é` as one character or as two."""
    return unicodedata.normalize("NFC", name)


def text_name(name: str) -> str:
    """A file's name as text that can be encoded: bytes that are not UTF-8 as `\\xe9`."""
    return os.fsencode(name).decode("utf-8", "backslashreplace")


def unused(folder: Path, files: Sequence[Path]) -> str:
    """The sentence about files of a folder that are not used."""
    names = ", ".join(path.relative_to(folder).as_posix() for path in files[:5])
    what = "1 file" if len(files) == 1 else f"{len(files):,} files"
    return f"{what} in {folder} {'is' if len(files) == 1 else 'are'} not used: {names}{' …' if len(files) > 5 else ''}"
