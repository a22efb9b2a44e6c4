"""Commands in a process that fails, or is killed, at its N-th storage operation."""

import errno
import os
import signal
import sqlite3
from typing import Any


class Faults:
    """Counts the storage operations of this process, and fails at one of them."""

    def __init__(self, how: str, at: int) -> None:
        self.how, self.at, self.n = how, at, 0

    def step(self) -> None:
        self.n += 1
        if self.n != self.at:
            return
        match self.how:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "full":
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            case "io":
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            case "interrupt":
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
                    os.kill(os.getpid(), number)

    def wrap(self, module: Any, name: str) -> None:
        original = getattr(module, name)

        def wrapped(*arguments: Any, **more: Any) -> Any:
            self.step()
            return original(*arguments, **more)

        setattr(module, name, wrapped)


class Connection(sqlite3.Connection):
    """Statements of the ledger are storage operations; a fault is SQLite's own."""

    faults: Faults

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        try:
            self.faults.step()
        except OSError as e:
            full = e.errno == errno.ENOSPC
            raise sqlite3.OperationalError("database or disk is full" if full else "disk I/O error") from e
        return super().execute(*arguments)


def install(faults: Faults) -> None:
    for name in ("replace", "rename", "fsync", "mkdir", "unlink", "open", "write", "truncate", "rmdir"):
        faults.wrap(os, name)
    original = sqlite3.connect
    Connection.faults = faults

    def connect(*arguments: Any, **more: Any) -> sqlite3.Connection:
        return original(*arguments, **{"factory": Connection, **more})

    sqlite3.connect = connect  # type: ignore[assignment]


def run(how: str, at: int, commands: list[list[str]]) -> tuple[int, int]:
    """(exit status, number of storage operations) of commands in this process, up to the first that fails."""
    from local_bench.cli.main import main

    faults = Faults(how, at)
    install(faults)
    for command in commands:
        status = main(command)
        if status:
            break
    return status, faults.n
