"""A child process for a judge: it ends with its parent, is stopped on every exit path and restarted a few times."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from local_bench.core.errors import ServerError
from local_bench.core.files import cache_dir, new_scratch, storage_errors

STOP_S = 4.0
"""A server that has not ended after this time is killed; it has no state to save."""
TAIL_LINES = 15
_MAX_SOCKET_FOLDER = 107 - 37
"""Longest folder of a socket: its path has at most 107 bytes, of which vLLM's name and the slash take 37."""
_SHORT = ("/tmp", "/var/tmp", "/dev/shm")  # noqa: S108 - the parents of a folder that no other user may read


@dataclass
class Child:
    """One process at a time, with all its descendants."""

    log: Path
    max_restarts: int = 3
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    _restarts: int = field(default=0, init=False)
    _temporary: Path | None = field(default=None, init=False)

    def start(self, command: Sequence[str], environment: Mapping[str, str], pass_fds: Sequence[int] = ()) -> None:
        """Start `command` in its own session; its output is appended to the log, its temporary files are in a folder of
        its own."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with storage_errors(Path(tempfile.gettempdir())):
            self._temporary = _short_scratch()
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "local_bench.judges.vlm.guard", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**environment, **_temporary_files(self._temporary, environment)},
                start_new_session=True,
                pass_fds=pass_fds,
            )

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Terminate the process and its descendants, and wait for them to end."""
        process, self._process = self._process, None
        temporary, self._temporary = self._temporary, None
        if process is not None:
            self._end(process)
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)

    def _end(self, process: "subprocess.Popen[bytes]") -> None:
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if process.stdin:
            process.stdin.close()

    def restart(self, start: Callable[[], None]) -> None:
        """Stop remaining processes and call `start`. Raises ServerError after `max_restarts` restarts."""
        if self._restarts >= self.max_restarts:
            raise ServerError(
                f"the judge ended unexpectedly {self._restarts + 1} times; the last lines of {self.log}:\n{self.tail()}"
            )
        self._restarts += 1
        self.stop()
        start()

    def tail(self) -> str:
        lines = self.log.read_text("utf-8", "replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:])

    def not_started(self) -> ServerError:
        return ServerError(f"the judge ended while starting; the last lines of {self.log}:\n{self.tail()}")

    def not_ready(self, after_s: float) -> ServerError:
        return ServerError(
            f"the judge was not ready after {after_s:.0f} s (judge.start_timeout_s); the last lines of {self.log}:\n"
            f"{self.tail()}"
        )


def _short_scratch() -> Path:
    """A new folder for temporary files and sockets. The system's folder for them may have too long a path for sockets
    (TMPDIR on clusters): it is then in another one that can be written."""
    folder = new_scratch()
    for parent in _SHORT:
        if len(os.fsencode(folder)) > _MAX_SOCKET_FOLDER and os.access(parent, os.W_OK | os.X_OK):
            folder.rmdir()
            folder = new_scratch(Path(parent))
    return folder


def _temporary_files(folder: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """Variables for a process with this folder for its temporary files. Compiled kernels are kept in our cache instead;
    sockets are elsewhere if their paths would be too long."""
    short = len(os.fsencode(folder)) <= _MAX_SOCKET_FOLDER
    return {
        "TMPDIR": str(folder),
        "VLLM_RPC_BASE_PATH": str(folder) if short else _SHORT[0],
        "TORCHINDUCTOR_CACHE_DIR": environment.get("TORCHINDUCTOR_CACHE_DIR") or str(cache_dir() / "inductor" / "vllm"),
    }
