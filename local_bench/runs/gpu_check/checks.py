"""The checks' types, and the loop that runs them independently within a time limit."""

import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch

from local_bench.core.collector import collect
from local_bench.core.errors import ConfigError

Status = Literal["passed", "failed", "skipped"]
MEMORY_GB = 40.0
"""Maximum device memory of a check, in decimal GB."""


class CheckFailed(Exception):
    """A check failed; the message describes the fault."""

    def __init__(self, message: str, figures: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.figures = figures or {}


class CheckSkipped(Exception):
    """A check cannot run on this machine; the message gives the reason."""


@dataclass(frozen=True)
class CheckPassed:
    """The result of a check that passed."""

    detail: str
    figures: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Row:
    """The result of one check."""

    check: str
    status: Status
    detail: str
    seconds: float
    figures: dict[str, Any]
    in_time: bool = True
    """False if the check was not begun, or ended by the time limit."""


@dataclass
class Session:
    """State shared by the checks."""

    device: torch.device
    scratch: Path
    """A temporary folder, removed at the end of the session."""
    minutes: float
    started: float = field(default_factory=time.monotonic)
    peaks: dict[str, tuple[float | None, float]] = field(default_factory=dict)
    """Family -> (peak allocated memory, None on a CPU; planned memory), in decimal GB."""

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def left_s(self) -> float:
        """Seconds until the time limit."""
        return self.started + 60 * self.minutes - time.monotonic()

    def synchronize(self) -> float:
        """Wait for the device; return the monotonic time in seconds."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def release(self) -> None:
        """Release unreferenced device memory."""
        collect()
        if self.on_gpu:
            with suppress(RuntimeError):  # after an illegal memory access every call fails; the next check reports it
                torch.cuda.empty_cache()


@dataclass(frozen=True)
class Check:
    name: str
    about: str
    """A short description."""
    run: Callable[[Session], CheckPassed]
    needs_s: float = 5.0
    """About how long it takes; it is not begun if less time is left."""


def chosen(checks: Sequence[Check], only: str | None) -> list[Check]:
    """The checks whose names, or the part before the colon, are in the comma-separated `only`; all for None.

    ConfigError for a name that no check has.
    """
    if only is None:
        return list(checks)
    names = [name.strip() for name in only.split(",")]
    for name in names:
        if not any(name in (check.name, check.name.partition(":")[0]) for check in checks):
            kinds = dict.fromkeys(check.name.partition(":")[0] for check in checks)
            raise ConfigError(f"--only: there is no check {name!r}: use {', '.join(kinds)}")
    return [check for check in checks if {check.name, check.name.partition(":")[0]} & set(names)]


def run_checks(checks: Iterable[Check], session: Session, note: Callable[[str], None]) -> list[Row]:
    """Run all checks and return one row per check. An error in a check does not stop the others; `note` receives
    progress messages. A check for which too little time is left is not begun."""
    rows = []
    for check in checks:
        if session.left_s < check.needs_s:
            late = f"not begun: it takes about {check.needs_s:.0f} s, and the limit is {session.minutes:g} minutes"
            rows.append(Row(check.name, "skipped", late, 0.0, {}, in_time=False))
            continue
        note(f"{check.name}: {check.about}")
        begun = time.monotonic()
        row = _outcome(check, session)
        session.release()
        rows.append(replace(row, seconds=round(time.monotonic() - begun, 2)))
        note(f"{check.name}: {row.status} in {rows[-1].seconds:.1f} s")
    return rows


def _outcome(check: Check, session: Session) -> Row:
    try:
        passed = check.run(session)
        session.synchronize()  # attribute asynchronous errors to this check
    except CheckSkipped as e:
        return Row(check.name, "skipped", str(e), 0.0, {})
    except CheckFailed as e:
        return Row(check.name, "failed", str(e), 0.0, e.figures)
    except Exception as e:  # noqa: BLE001  # any error is a check result
        at = traceback.extract_tb(e.__traceback__)[-1]
        message = " ".join(traceback.format_exception_only(e)[-1].split())[:500]
        if session.left_s <= 0:  # what it waited for may have been ended by the limit
            return Row(check.name, "skipped", f"the time limit was reached: {message}", 0.0, {}, in_time=False)
        return Row(check.name, "failed", f"{message} ({Path(at.filename).name}:{at.lineno})", 0.0, {})
    return Row(check.name, "passed", passed.detail, 0.0, passed.figures)
