"""Unexpected errors: one sentence for the user, and a log with the traceback."""

import errno
import os
import signal
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import TextIO

from local_bench.core.errors import UserError, without_secrets
from local_bench.core.files import reason

DEBUG = "--debug"
_OF_A_PATH = {*(errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.ENAMETOOLONG, errno.EINVAL, errno.ENXIO)}
_KEPT = 20
"""Number of crash logs that are kept."""


def system_error(error: OSError) -> tuple[str, int] | None:
    """(message, exit code) of an error of the file system or the machine that no reader or writer has converted; None
    for a fault of local-bench."""
    if error.errno is None:
        return None
    status = 2 if error.errno in _OF_A_PATH else 1
    where = f"{error.filename}: " if isinstance(error.filename, str | os.PathLike) else ""
    return f"{where}{reason(error)}: check the path, its permissions, free space and limits (`ulimit -a`)", status


def crash_log(error: BaseException) -> Path | None:
    """Write the traceback to a new file in the cache, else in the temporary folder; None if neither is writable."""
    from local_bench.core.files import cache_dir

    text = without_secrets("".join(traceback.format_exception(error)))
    name = f"{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.txt"
    for parent in (cache_dir, lambda: Path(tempfile.gettempdir())):
        try:
            folder = parent() / "crashes"
            folder.mkdir(parents=True, exist_ok=True)
            for old in sorted(folder.glob("*.txt"))[: -_KEPT + 1]:
                old.unlink(missing_ok=True)
            (folder / name).write_text(text, "utf-8", "backslashreplace")
        except (OSError, RuntimeError):
            continue
        return folder / name
    return None


def unexpected(error: BaseException) -> str:
    """The sentence about an unexpected error; its traceback is in a file."""
    text = str(error)
    if isinstance(error, MemoryError) or (isinstance(error, ImportError) and "failed to map" in text):
        return "there is not enough memory: close other programs, raise `ulimit -v`, or use a smaller batch size"
    if isinstance(error, RuntimeError) and "start new thread" in text:
        return "this user cannot start another thread: close other programs, or raise `ulimit -u`"
    log = crash_log(error)
    where = f"its traceback is in {log}" if log else "its traceback could not be written: use --debug"
    return (
        f"unexpected error in local-bench; {where}; nothing that was committed is lost; please report it with this file"
    )


def without_nul(arguments: Sequence[str]) -> list[str]:
    """The arguments as a list. UserError for one with NUL, which no path or name can have."""
    argument_with_nul = next((argument for argument in arguments if "\0" in argument), None)
    if argument_with_nul is not None:
        raise UserError(f"the argument {argument_with_nul!r} contains NUL, which no path or name has: remove it")
    return list(arguments)


def printable_streams() -> None:
    """Let stdout and stderr escape what their encoding lacks, and replace closed ones, so that printing cannot fail."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None or getattr(stream, "closed", False):
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif getattr(stream, "errors", None) in ("strict", "surrogateescape") and hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")


def abandon(stream: TextIO) -> None:
    """Redirect a stream that cannot be written to /dev/null, so that the interpreter's flush at exit does not fail."""
    with suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


@contextmanager
def interruptible(restore: bool) -> Iterator[None]:
    """Raise KeyboardInterrupt at the first of SIGNALS, and ignore the following ones, so that nothing interrupts the
    end of child processes and the closing of the ledger. A signal that is ignored already (nohup) stays ignored. With
    `restore`, the handlers before are set again at the end."""

    def first(number: int, frame: FrameType | None) -> None:
        for interrupting in SIGNALS:
            signal.signal(interrupting, signal.SIG_IGN)
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in SIGNALS}
    for number, handler in before.items():
        if handler is not signal.SIG_IGN:
            signal.signal(number, first)
    try:
        yield
    finally:
        for number, handler in before.items() if restore else ():
            signal.signal(number, handler)
