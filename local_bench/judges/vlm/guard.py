"""Runs a command in its own process group and takes the whole group down when the parent goes away, however it goes.

`python -m local_bench.judges.vlm.guard COMMAND…` with a pipe as standard input that the parent holds open: end of file
there means that the parent has ended, even by SIGKILL. Imports nothing but the standard library.
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 10.0


def main(command: list[str]) -> None:
    """Expects to be the leader of its own session; ends, by SIGKILL, when the command has ended."""
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, close_fds=False)  # a pipe to our parent goes on to it
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=_watch, args=(child,), daemon=True).start()
    child.wait()
    _end_group()


def _watch(child: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 1):
        pass
    child.terminate()
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


def _end_group() -> None:
    """Ends what the command left behind in our group, and us with it."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    os.killpg(0, signal.SIGTERM)
    time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
