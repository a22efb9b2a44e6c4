"""A child process for a judge: it ends with its parent, is stopped on every exit path and restarted a few times."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from local_bench.core.errors import ServerError

STOP_S = 4.0
"""A server that has not ended after this time is killed; it has no state to save."""
TAIL_LINES = 15


@dataclass
class Child:
    """One process at a time, with all its descendants."""

    log: Path
    max_restarts: int = 3
    _process: "subprocess.Popen[bytes] | None" = field(default=None, init=False)
    _restarts: int = field(default=0, init=False)

    def start(self, command: Sequence[str], environment: Mapping[str, str], pass_fds: Sequence[int] = ()) -> None:
        """Start `command` in its own session; its output is appended to the log."""
        self.log.parent.mkdir(parents=True, exist_ok=True)
        with self.log.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "local_bench.judges.vlm.guard", *command],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env={**environment},
                start_new_session=True,
                pass_fds=pass_fds,
            )

    def alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def stop(self) -> None:
        """Terminate the process and its descendants, and wait for them to end."""
        process, self._process = self._process, None
        if process is None:
            return
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
