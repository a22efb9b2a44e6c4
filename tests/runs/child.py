"""Runs `local-bench` in processes that kill themselves, or the judge's server, at a given moment.

Reads one JSON object a line, {"moment", "arguments", "cwd", "env"}, and forks a process for each that runs the
command line; writes {"returncode", "stdout", "stderr"}. Torch and the rest are imported once, before the forks: that is
all that the children share. The package has no hooks for this: its functions are wrapped here.
"""

import gc
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any


def at_call(owner: Any, name: str, number: int, action: Callable[[], None], *, after: bool = False) -> None:
    """Makes the call of `owner.name` with that number run `action` first, or last with `after`."""
    real, calls = getattr(owner, name), 0

    def wrapped(*arguments: Any, **keywords: Any) -> Any:
        nonlocal calls
        calls += 1
        this_call = calls
        if this_call == number and not after:
            action()
        result = real(*arguments, **keywords)
        if this_call == number and after:
            action()
        return result

    setattr(owner, name, wrapped)


def kill_self() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_server() -> None:
    """Sends SIGKILL to every process of the judge that this process started."""
    names = "local_bench.judges.vlm.(api_server|engine)"
    listed = subprocess.run(["pgrep", "-f", names], capture_output=True, text=True, check=False).stdout
    started = [pid for pid in map(int, listed.split()) if _is_descendant(pid)]  # before a kill reparents children
    assert len(started) == 2, started  # the supervising process and the server
    for pid in started:
        os.kill(pid, signal.SIGKILL)


def _is_descendant(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return False


def script(moment: str) -> None:
    from local_bench.generators.flux import Flux
    from local_bench.judges.vlm import embedded
    from local_bench.runs import judge, worker
    from local_bench.runs.store.database import Database

    judge.COMMIT_EVERY = 8
    match moment:
        case "encode":
            at_call(Flux, "encode_text", 3, kill_self)
        case "denoise":
            at_call(Flux, "denoise", 3 + 2, kill_self, after=True)  # the probe makes three calls
        case "between images":
            at_call(worker, "store_image", 6, kill_self)
        case "judge":
            at_call(judge.JudgeSession, "_commit", 3, kill_self)
        case "server":
            embedded.AHEAD = 16  # otherwise a fast judge may have answered all requests by then
            at_call(judge.JudgeSession, "_commit", 2, kill_server)
        case "settle":
            at_insertion("decisions", kill_self)
        case "interrupt":
            signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs of a shell ignore SIGINT
            at_call(Flux, "denoise", 3 + 2, lambda: os.kill(os.getpid(), signal.SIGINT))
        case "full disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (150_000, 150_000))
        case "ledger write":
            at_call(Database, "write_many", 4, kill_self)


def at_insertion(table: str, act: Callable[[], None]) -> None:
    """Act in the transaction, after rows of `table` have been inserted."""
    from local_bench.runs.store.database import Database

    real = Database.write_many

    def written(self: Database, statement: str, rows: Any) -> None:
        real(self, statement, rows)
        if f"INTO {table} " in statement:
            act()

    Database.write_many = written  # type: ignore[method-assign]


def run_request(request: dict[str, Any], folder: str) -> None:
    """In the forked process: runs the command line and ends with its exit status."""
    os.chdir(request["cwd"])
    os.environ.update(request["env"])
    for fd, name in ((1, "stdout"), (2, "stderr")):
        os.dup2(os.open(f"{folder}/{name}", os.O_WRONLY | os.O_CREAT | os.O_TRUNC), fd)
    status = 1
    try:
        script(request["moment"])
        status = main(request["arguments"])
    finally:
        traceback.print_exc() if sys.exc_info()[0] else None
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def serve() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            pid = os.fork()
            if pid == 0:
                run_request(json.loads(line), folder)
            _, status = os.waitpid(pid, 0)
            ended = {name: Path(folder, name).read_text() for name in ("stdout", "stderr")}
            print(json.dumps(ended | {"returncode": os.waitstatus_to_exitcode(status)}), flush=True)


if __name__ == "__main__":
    import cv2  # noqa: F401
    import networkx  # noqa: F401
    from PIL import Image

    import local_bench.cli.tables
    import local_bench.generators.flux
    import local_bench.judges.metrics.pixels
    import local_bench.report.exports
    import local_bench.report.site.build
    import local_bench.report.site.paper
    import local_bench.runs.generate
    import local_bench.runs.judge
    import local_bench.runs.measure
    import local_bench.runs.stages
    import local_bench.runs.worker
    import local_bench.suites.servimage.suite  # noqa: F401
    from local_bench.cli.main import main

    Image.init()
    gc.collect()
    gc.freeze()  # no collection in a fork goes through what was imported
    serve()
