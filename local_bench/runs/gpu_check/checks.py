"""The checks' types, the loop that runs them independently within a time limit, and the forms of their results; and the
checks of the machine: driver, compiler, disk, memory, MIG."""

import json
import platform
import re
import time
import traceback
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import pynvml
import torch

from local_bench.core.environment import collect, recorded_versions
from local_bench.core.errors import ConfigError
from local_bench.core.files import write_atomic
from local_bench.generators.capacity import device_memory_gb, driver, host_memory_gb, unusable_gpu
from local_bench.runs.meter import nvml_handle

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
    status: Literal["passed", "failed", "skipped"]
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


def aligned(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in (header, *rows))


def report(rows: Sequence[Row], device: str, command: str) -> dict[str, Any]:
    return {
        "command": command,
        "device": device,
        "machine": platform.machine(),
        "packages": recorded_versions(),
        "ok": all(row.status != "failed" for row in rows),
        "complete": all(row.in_time for row in rows),
        "checks": [asdict(row) for row in rows],
    }


def save(result: dict[str, Any], out: Path) -> Path:
    """Write the result to `out`, or if it is a folder, to a file in it named after the device, such as
    nvidia-h200.json. Raises PathError or StorageError."""
    name = re.sub(r"[^a-z0-9]+", "-", result["device"].lower()).strip("-") or "device"
    file = out / f"{name}.json" if out.is_dir() else out
    write_atomic(file, (json.dumps(result, indent=2, ensure_ascii=False) + "\n").encode())
    return file


# ---- checks of the machine

_MEMINFO = Path("/proc/meminfo")
_LEAST_FREE = 0.5
"""Minimum free fraction of device memory; less means that another process uses the GPU."""


def check_driver(session: Session) -> CheckPassed:
    """The NVIDIA driver, and whether torch can use its GPUs."""
    unusable = unusable_gpu()
    if unusable:
        raise CheckFailed(unusable)
    here = driver()
    if here is None:
        if session.on_gpu:
            raise CheckFailed("torch finds a GPU but NVML does not: energy and MIG mode cannot be read")
        raise CheckSkipped("there is no NVIDIA GPU")
    figures = {"driver": here.version, "gpus": list(here.gpus), "cuda": torch.version.cuda}
    return CheckPassed(f"driver {here.version}, {', '.join(here.gpus)}, torch for CUDA {torch.version.cuda}", figures)


def check_found(find: Callable[[], tuple[bool, str]], session: Session) -> CheckPassed:
    """Whether what `find` finds is enough, with its description."""
    enough, text = find()
    if not enough:
        raise CheckFailed(text)
    return CheckPassed(text)


def check_host_memory(session: Session) -> CheckPassed:
    """Host memory: the machine's, or the control group's limit."""
    limit = host_memory_gb()
    figures = {"usable_gb": round(limit, 2)}
    lines = _MEMINFO.read_text("utf-8").splitlines() if _MEMINFO.is_file() else []
    available = next((int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")), None)
    if available is not None:  # in kB, which is 1024 bytes there
        figures["available_gb"] = round(available * 1024 / 1e9, 2)
    device = 0.0 if not session.on_gpu else torch.cuda.mem_get_info(session.device)[1] / 1e9
    text = f"{limit:.0f} GB may be used" + (f", {figures['available_gb']:.0f} GB free" if available else "")
    if session.on_gpu and limit < min(device / 2, 64):
        raise CheckFailed(f"{text}: too little to load large models, whose weights pass through host memory", figures)
    return CheckPassed(text, figures)


def check_device_memory(session: Session) -> CheckPassed:
    """Free and total device memory."""
    if not session.on_gpu:
        raise CheckSkipped("the device is a CPU")
    free, total = (n / 1e9 for n in torch.cuda.mem_get_info(session.device))
    usable = device_memory_gb(session.device)
    assert usable is not None
    figures = {"free_gb": round(free, 2), "total_gb": round(total, 2), "planned_with_gb": round(usable, 2)}
    text = f"{free:.1f} of {total:.1f} GB free, {usable:.1f} GB usable for planning"
    if free < _LEAST_FREE * total:
        raise CheckFailed(f"{text}: another process uses this GPU", figures)
    return CheckPassed(text, figures)


def check_mig(session: Session) -> CheckPassed:
    """Whether the GPU is partitioned (MIG); then its name does not determine its speed and memory."""
    if not session.on_gpu:
        raise CheckSkipped("the device is a CPU")
    handle = nvml_handle(session.device.index)
    if handle is None:
        raise CheckSkipped("NVML does not find this device by its UUID")
    try:
        now, _ = pynvml.nvmlDeviceGetMigMode(handle)
    except pynvml.NVMLError_NotSupported:
        return CheckPassed("this GPU does not support MIG", {"mig": False})
    if now == pynvml.NVML_DEVICE_MIG_ENABLE:
        properties = torch.cuda.get_device_properties(session.device)
        figures = {"mig": True, "sm_count": properties.multi_processor_count}
        return CheckPassed(f"on: an instance with {properties.multi_processor_count} multiprocessors", figures)
    return CheckPassed("off", {"mig": False})
