"""Files: reading those that others may have written (regular files only, with a size limit), the locations of our own,
the safe joining of untrusted names to a folder, atomic writes (a temporary file in the same folder, synced, then
renamed), transactions of SQLite, and temporary folders that name their process.

A FIFO, a device or a socket can block or never end, and a large file can exhaust the memory; both are refused before
anything is read. Every reader raises the caller's error type with one sentence, for invalid paths (a link loop, a
name that is too long, NUL) too.
"""

import errno
import os
import re
import secrets
import shutil
import socket
import sqlite3
import stat
import tempfile
import unicodedata
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from io import BufferedReader
from pathlib import Path
from typing import BinaryIO

from local_bench.core.errors import ConfigError, LocalBenchError, PathError, StorageError, UserError, count

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
        with os.fdopen(os.dup(handle), "rb") as file:
            data = b"" if status.st_size > max_bytes else file.read(max_bytes + 1)
    except OSError as e:
        raise error(f"{path} cannot be read ({reason(e)}): {advice}") from None
    finally:
        os.close(handle)
    if max(status.st_size, len(data)) > max_bytes:  # it may grow, and its size may not be stated (procfs)
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
    what = count(len(files), "files")
    return f"{what} in {folder} {'is' if len(files) == 1 else 'are'} not used: {names}{' …' if len(files) > 5 else ''}"


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
    snapshot = _SNAPSHOT.match(top.as_posix())
    allowed = [top] if snapshot is None else [top, Path(snapshot[1], "blobs")]
    if not resolved or not any(map(path.is_relative_to, allowed)):
        raise UserError(f"the path {relative!r} leads out of {root}: keep files inside that folder")
    return path


def refuse_links(folder: Path) -> None:
    """UserError if a symbolic link is anywhere below `folder`; `folder` itself may be reached through one.

    A run directory may come from someone else, and a link in it would redirect reads and writes to other folders.
    """
    with suppress(FileNotFoundError), os.scandir(folder) as entries:
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
            elif os.path.lexists(entry.path):  # a run in progress removes files and folders
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
    """The files `name`, *.yaml, of all config folders: a lab's own, then the shipped one."""
    paths = [folder / name for folder in (*user_config_dirs(), configs_dir())]
    misnamed = (path.with_suffix(".yml") for path in paths if not path.is_file())
    if other := next((path for path in misnamed if path.is_file()), None):
        raise ConfigError(f"{other}: the files of a config folder end in .yaml: rename it")
    return [path for path in paths if path.is_file()]


def refuse_own(name: str, what: str) -> None:
    """ConfigError if a lab's config folder has the file `name`, whose stem is that of a built-in `what`: results by it
    would be mistaken for those of the built-in one."""
    path = next((path for folder in user_config_dirs() if (path := folder / name).is_file()), None)
    if path is not None:
        raise ConfigError(f"{path}: {path.stem!r} is the name of a built-in {what}: give yours another name")


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
    """The user's cache (`LOCAL_BENCH_CACHE`, else the platform's): small models built here, weights digests. UserError
    for a user without a home directory."""
    chosen = os.environ.get("LOCAL_BENCH_CACHE")
    if chosen:
        return Path(chosen)
    import platformdirs

    try:
        return Path(platformdirs.user_cache_dir("local-bench"))
    except RuntimeError:
        raise UserError("this user has no home directory for the cache: set HOME or LOCAL_BENCH_CACHE") from None


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
            name = error.filename
            is_other = isinstance(name, str) and name != str(path) and not name.endswith(_SUFFIX)
            where = f"{name}: " if is_other else ""
            raise PathError(f"cannot write {path}: {where}{error.strerror}; {_ANOTHER}") from e
        if error.errno not in _REFUSALS:
            raise
        raise StorageError(f"cannot write {path}: {refused(str(error.strerror))}; committed results are kept") from e


_REMEDIES = {
    "space|full|quota": "free disk space",
    "large": "free disk space or raise `ulimit -f`",
    "I/O|Input": "check the disk",
}


def refused(fault: str) -> str:
    """The sentence about a refused write, from its description by the system or by SQLite: what to do."""
    remedies = (remedy for words, remedy in _REMEDIES.items() if re.search(words, fault))
    return f"{fault}; {next(remedies, 'fix its permissions')} and run the same command again"


def check_output(file: Path) -> None:
    """Make the folder of a file that is written later. Raises as `write_atomic`, also if `file` is a folder."""
    with storage_errors(file):
        file.parent.mkdir(parents=True, exist_ok=True)
        if file.is_dir():
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(file))


def refuse_existing(path: Path, advice: str) -> None:
    """UserError, which ends with `advice`, if anything is at `path`."""
    with storage_errors(path):
        if path.exists() or path.is_symlink():
            raise UserError(f"{path} exists{advice}")


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
        temporary = path.parent / f".{path.name}.{secrets.token_hex(4)}{_SUFFIX}"
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)  # less the umask
        try:
            with os.fdopen(handle, "wb") as file:
                yield file
                file.flush()
                if durable:
                    os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        if durable:
            _sync(path.parent)


def write_new(path: Path, data: bytes, what: str) -> None:
    """As `write_atomic`, but never replace an existing file: raises UserError if its content differs from `data`
    (`what` is its description in the message, such as "labels"). Equal content is no error, so commands are repeatable.
    """
    with storage_errors(path):
        existing = read_bytes(path, PathError, max_bytes=MAX_TEXT_BYTES, missing=_ANOTHER) if path.exists() else None
    if existing is None:
        write_atomic(path, data)
    elif existing != data:
        raise UserError(f"{path} exists and its content differs from these {what}: give a new file, or move it away")


def put_in_place(temporary: Path, path: Path) -> None:
    """Sync a finished file and rename it to `path` in the same folder. Raises StorageError."""
    with storage_errors(path):
        _sync(temporary)
        os.replace(temporary, path)
        _sync(path.parent)


def link(source: Path, target: Path) -> None:
    """Create a hard link, or a copy if the file system does not support links. Raises OSError."""
    try:
        os.link(source.resolve(), target)
    except OSError:
        shutil.copyfile(source, target)


def sweep(folder: Path) -> None:
    """Remove temporary files of killed writers below `folder`. Not safe while another process writes there."""
    for path in folder.rglob(f".*{_SUFFIX}"):
        path.unlink(missing_ok=True)


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def append(path: Path, data: bytes) -> None:
    """Append to a regular file, which is created. Raises OSError; UserError for a device or another kind of file."""
    if path.exists():
        require_regular(path, UserError, _ANOTHER)
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
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
    processes of this machine and this user that have ended are removed first. Raises OSError."""
    folder, pid = parent or Path(tempfile.gettempdir()), os.getpid()
    with suppress(OSError), os.scandir(folder) as scanned:
        for entry in scanned:
            match = _NAME.fullmatch(entry.name)
            if match is None or match[1] != _host() or entry.is_symlink():
                continue
            with suppress(OSError):
                started = _started(int(match[2]))
                is_ours = entry.stat(follow_symlinks=False).st_uid == os.getuid()
                if is_ours and (started is None or (int(match[3]) and started != int(match[3]))):
                    shutil.rmtree(entry.path, ignore_errors=True)
    return Path(tempfile.mkdtemp(dir=folder, prefix=f".local-bench-{_host()}-{pid}-{_started(pid) or 0}-"))


@contextmanager
def scratch(parent: Path | None = None) -> Iterator[Path]:
    """A new folder, removed at the end."""
    path = new_scratch(parent)
    try:
        yield path
    finally:
        shutil.rmtree(path, ignore_errors=True)


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
