"""Runs `local-bench` in this process and ends itself, or the judge's server, at a scripted moment.

    python child.py MOMENT ARGUMENTS…

Nothing in the product knows of this: the moments are wrapped around its functions from outside.
"""

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from typing import Any


def at_call(owner: Any, name: str, number: int, act: Callable[[], None], *, after: bool = False) -> None:
    """Lets `owner.name` do `act` at its call of that number, before or after its work."""
    real, calls = getattr(owner, name), 0

    def wrapped(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        mine = calls
        if mine == number and not after:
            act()
        result = real(*arguments, **named)
        if mine == number and after:
            act()
        return result

    setattr(owner, name, wrapped)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def kill_server() -> None:
    """SIGKILL for every process of the vLLM server that we started, as a person with a grudge would."""
    found = subprocess.run(
        ["pgrep", "-f", "vllm.entrypoints.openai.api_server"], capture_output=True, text=True, check=False
    )
    for pid in map(int, found.stdout.split()):
        if _is_ours(pid):
            os.kill(pid, signal.SIGKILL)


def _is_ours(pid: int) -> bool:
    while pid > 1:
        if pid == os.getpid():
            return True
        with open(f"/proc/{pid}/stat") as file:
            pid = int(file.read().rpartition(")")[2].split()[1])
    return False


def script(moment: str) -> None:
    from local_bench.generators.flux import Flux
    from local_bench.runs import decide, generate, judge
    from local_bench.runs.ledger import Ledger

    judge.COMMIT_EVERY = 8
    match moment:
        case "encode":
            at_call(Flux, "encode", 3, die)
        case "denoise":
            at_call(Flux, "denoise", 4 + 2, die, after=True)  # the probe makes four calls
        case "between images":
            at_call(generate, "store_image", 6, die)
        case "judge":
            at_call(judge._Sitting, "_commit", 3, die)
        case "server":
            at_call(judge._Sitting, "_commit", 2, kill_server)
        case "settle":
            at_call(decide, "by_threshold", 4, die)
        case "interrupt":
            at_call(Flux, "denoise", 4 + 2, lambda: os.kill(os.getpid(), signal.SIGINT))
        case "full disk":
            resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, 200_000))
        case "ledger write":
            at_call(Ledger, "write_many", 4, die)


if __name__ == "__main__":
    from local_bench.cli.main import main

    script(sys.argv[1])
    sys.exit(main(sys.argv[2:]))
