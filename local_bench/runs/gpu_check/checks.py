"""What a check is, and the loop that runs them: each on its own, within a time limit."""

import gc
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch

from local_bench.core.errors import ConfigError

Status = Literal["passed", "failed", "skipped"]
MEMORY_GB = 40.0
"""Of the device's memory, decimal: no check takes more."""


class CheckFailed(Exception):
    """A check did not hold; the message says what was found."""

    def __init__(self, message: str, figures: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.figures = figures or {}


class CheckSkipped(Exception):
    """A check cannot be made here; the message says why."""


@dataclass(frozen=True)
class Found:
    """What a check that holds has found."""

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


@dataclass
class Session:
    """What the checks share."""

    device: torch.device
    scratch: Path
    """A folder of this session, empty at first and removed at its end."""
    minutes: float
    started: float = field(default_factory=time.monotonic)
    peaks: dict[str, tuple[float | None, float]] = field(default_factory=dict)
    """By family: memory that was allocated at most (None on a CPU), and what was planned; decimal GB."""

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def left_s(self) -> float:
        """Seconds until the time limit."""
        return self.started + 60 * self.minutes - time.monotonic()

    def synchronize(self) -> float:
        """Waits for the device; seconds of a monotonic clock."""
        if self.on_gpu:
            torch.cuda.synchronize(self.device)
        return time.perf_counter()

    def release(self) -> None:
        """Gives memory that nothing refers to back to the device."""
        gc.collect()
        if self.on_gpu:
            with suppress(RuntimeError):  # after an illegal memory access every call fails; the next check says so
                torch.cuda.empty_cache()


@dataclass(frozen=True)
class Check:
    name: str
    about: str
    """What it does, a clause."""
    run: Callable[[Session], Found]


def chosen(checks: Sequence[Check], only: str | None) -> list[Check]:
    """The checks whose names, or the part before the colon, are in the comma-separated `only`; all for None.

    ConfigError for a name that no check has.
    """
    if only is None:
        return list(checks)
    wanted = [name.strip() for name in only.split(",")]
    for name in wanted:
        if not any(name in (check.name, check.name.partition(":")[0]) for check in checks):
            kinds = dict.fromkeys(check.name.partition(":")[0] for check in checks)
            raise ConfigError(f"--only: there is no check {name!r}: use {', '.join(kinds)}")
    return [check for check in checks if {check.name, check.name.partition(":")[0]} & set(wanted)]


def run_checks(checks: Iterable[Check], session: Session, note: Callable[[str], None]) -> list[Row]:
    """One row a check. What fails, for whatever reason, does not keep the others from running; `note` is told of
    progress."""
    rows = []
    for check in checks:
        if session.left_s <= 0:
            rows.append(Row(check.name, "skipped", f"no time left: {session.minutes:g} minutes are over", 0.0, {}))
            continue
        note(f"{check.name}: {check.about}")
        begun = time.monotonic()
        status, detail, figures = _outcome(check, session)
        seconds = time.monotonic() - begun
        session.release()
        rows.append(Row(check.name, status, detail, round(seconds, 2), figures))
        note(f"{check.name}: {status} in {seconds:.1f} s")
    return rows


def _outcome(check: Check, session: Session) -> tuple[Status, str, dict[str, Any]]:
    try:
        found = check.run(session)
        session.synchronize()  # an asynchronous error is this check's and not the next one's
    except CheckSkipped as e:
        return "skipped", str(e), {}
    except CheckFailed as e:
        return "failed", str(e), e.figures
    except Exception as e:  # noqa: BLE001  # any fault of a library is a result here
        at = traceback.extract_tb(e.__traceback__)[-1]
        said = " ".join(traceback.format_exception_only(e)[-1].split())[:500]
        return "failed", f"{said} ({Path(at.filename).name}:{at.lineno})", {}
    return "passed", found.detail, found.figures
