"""Runs a command in its own process group and ends the group when the parent process ends, even by SIGKILL.

`python -m local_bench.judges.vlm.guard COMMAND…`. Standard input is a pipe that the parent keeps open: end of file
means that the parent has ended. Imports only the standard library.
"""

import os
import signal
import subprocess
import sys
import threading
import time

GRACE_S = 4.0


def main(command: list[str]) -> None:
    """Run the command. The process must be the leader of its session; it ends with SIGKILL after the command ends."""
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, close_fds=False
    )  # the command inherits the parent's pipe
    signal.signal(signal.SIGTERM, lambda *_: child.terminate())
    threading.Thread(target=_watch, args=(child,), daemon=True).start()
    child.wait()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # end the remaining processes of the group, including this one
    os.killpg(0, signal.SIGTERM)
    time.sleep(0.5)
    os.killpg(0, signal.SIGKILL)


def _watch(child: "subprocess.Popen[bytes]") -> None:
    while os.read(0, 1):
        pass
    child.terminate()
    time.sleep(GRACE_S)
    os.killpg(0, signal.SIGKILL)


if __name__ == "__main__":
    main(sys.argv[1:])
