"""Runs command lines in this process and reports everything that a hostile input must not cause."""

import io
import json
import os
import random
import re
import signal
import traceback
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, field
from pathlib import Path
from unittest.mock import patch

from local_bench.cli.main import main

LIMIT_S = 60.0
"""Generous: the first case of a process imports libraries, and the machine is shared."""
CASES = int(os.environ.get("HOSTILE_CASES", "8"))
"""Cases of each table that are run; a large number runs all."""
MAX_SENTENCE = 1200
"""Messages are at most 600 characters and a path that was given, which the tests' temporary folders make long."""
STATUSES = (0, 1, 2, 130)
_CLASSES = re.compile(
    r"NoneType|Traceback \(most recent|\[Errno|\b(?:Attribute|Type|Value|Key|Index|Overflow|Recursion|OS|Unicode\w*|"
    r"Operational|Database|Integrity|Zero\w+|Assertion|Memory|Runtime|NotADirectory|IsADirectory|Permission)Error\b|"
    r"\b(?:InvalidOperation|DecimalException|ValidationError|object at 0x|errors\.pydantic|type=\w+_type)\b|"
    r"decimal\.|unexpected error|instance of|valid dictionary|Decimal\(|\.(?:str|int|float|bool|decimal|list|dict)\b: "
)


class Hang(BaseException):
    """The command took longer than LIMIT_S."""


@dataclass(frozen=True)
class Case:
    """One command line; `prepare` writes its inputs into the working folder."""

    name: str
    argv: Sequence[object]
    prepare: Callable[[], None] = lambda: None
    statuses: tuple[int, ...] = STATUSES
    """The exit codes that are right for it."""


@dataclass
class Outcome:
    status: int | None
    out: str
    err: str
    raised: str = ""
    faults: list[str] = field(default_factory=list)


@contextmanager
def time_limit() -> Iterator[None]:
    def stop(*_: object) -> None:
        raise Hang

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


class Unexpected(BaseException):
    """The command's last edge got an exception: a traceback without it. `test_edge` checks what is printed."""


def _unexpected(error: BaseException) -> None:
    raise Unexpected from error


def run(argv: Sequence[object], statuses: tuple[int, ...] = STATUSES) -> Outcome:
    """Run `local-bench argv` in this process; the outcome has every fault found."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8", errors="strict", write_through=True) for _ in range(2))
    status, raised = None, ""
    with redirect_stdout(out), redirect_stderr(err), patch("local_bench.cli.main.crash_log", _unexpected):
        try:
            with time_limit():
                status = main([str(a) for a in argv])
        except Hang:
            raised = "hang: " + "".join(traceback.format_exc().splitlines(keepends=True)[-8:])
        except BaseException as e:  # noqa: BLE001 - everything that leaves `main` is a fault
            raised = "".join(traceback.format_exception(e.__cause__ or e)[-4:])
    texts = [stream.buffer.getvalue().decode("utf-8", "backslashreplace") for stream in (out, err)]
    outcome = Outcome(status, *texts, raised)
    outcome.faults = list(_faults(outcome, statuses, "--json" in argv))
    return outcome


def _faults(outcome: Outcome, statuses: tuple[int, ...], as_json: bool) -> Iterator[str]:
    if outcome.raised:
        yield outcome.raised
        return
    if outcome.status not in statuses:
        yield f"exit {outcome.status}, expected {statuses}"
    found = _CLASSES.search(outcome.err)
    if found:
        yield f"{found[0]!r} in the message"
    if outcome.status == 2 and not outcome.err.strip():
        yield "exit 2 without a message"
    for line in outcome.err.splitlines():
        if len(line) > MAX_SENTENCE:
            yield f"a line of {len(line)} characters"
            break
    bad = {c for c in outcome.err + outcome.out if unicodedata.category(c) in ("Cc", "Cf", "Cs") and c not in "\n\t"}
    if bad:
        yield f"control characters {sorted(bad)!r}"
    if as_json and outcome.status == 0:
        try:
            json.loads(outcome.out, parse_constant=lambda name: 1 / 0)
        except (ValueError, ZeroDivisionError):
            yield "stdout is not strict JSON"


def tree(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Every path below `folder` with its kind, size and modification time."""
    state = {}
    for root, folders, files in os.walk(folder):
        for name in (*folders, *files):
            stat = os.lstat(os.path.join(root, name))
            size, time = (0, 0) if name in folders else (stat.st_size, stat.st_mtime_ns)
            state[os.path.relpath(os.path.join(root, name), folder)] = (stat.st_mode, size, time)
    return state


def sampled(cases: Iterable[Case], n: int = CASES) -> list[Case]:
    """`n` of the cases, or all if there are fewer: the same in every session."""
    table = list(cases)
    return random.Random(table[0].name).sample(table, min(n, len(table)))


def faults_of(cases: Iterable[Case], unchanged: Sequence[Path] = ()) -> list[str]:
    """Run the cases; `unchanged` folders must not change in any of them."""
    faults = []
    before = [tree(folder) for folder in unchanged]
    for case in cases:
        case.prepare()
        outcome = run(case.argv, case.statuses)
        for fault in outcome.faults:
            faults.append(f"{case.name}: {fault}  [exit {outcome.status}] {outcome.err.strip()[:300]}")
    for folder, state in zip(unchanged, before, strict=True):
        changed = sorted({path for path, _ in state.items() ^ tree(folder).items()})
        if changed:
            faults.append(f"changed in {folder}: {changed[:5]}")
    return faults
