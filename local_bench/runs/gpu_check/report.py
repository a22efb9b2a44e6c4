"""The checks' results as a table, as JSON, and as a file named after the device."""

import json
import platform
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from local_bench.core.packages import recorded_versions
from local_bench.core.storage import write_atomic
from local_bench.runs.gpu_check.checks import Check, Row


def _aligned(header: list[str], rows: list[list[str]]) -> str:
    widths = [max(map(len, column)) for column in zip(header, *rows, strict=True)]
    return "\n".join("  ".join(map(str.ljust, row, widths)).rstrip() for row in (header, *rows))


def as_table(rows: Sequence[Row]) -> str:
    return _aligned(
        ["check", "status", "seconds", "detail"], [[r.check, r.status, f"{r.seconds:.1f}", r.detail] for r in rows]
    )


def planned_table(checks: Sequence[Check]) -> str:
    """A table of the checks that would run."""
    return _aligned(["check", "what it does"], [[check.name, check.about] for check in checks])


def as_json(rows: Sequence[Row], device: str, command: str) -> dict[str, Any]:
    return {
        "command": command,
        "device": device,
        "machine": platform.machine(),
        "packages": recorded_versions(),
        "ok": all(row.status != "failed" for row in rows),
        "complete": all(row.in_time for row in rows),
        "checks": [asdict(row) for row in rows],
    }


def file_of(out: Path, device: str) -> Path:
    """`out`, or if it is a folder, a file in it named after the device, such as nvidia-h200.json."""
    name = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-") or "device"
    return out / f"{name}.json" if out.is_dir() else out


def save(result: dict[str, Any], out: Path) -> Path:
    """Write the result. Raises PathError or StorageError."""
    file = file_of(out, result["device"])
    write_atomic(file, (json.dumps(result, indent=2, ensure_ascii=False) + "\n").encode())
    return file
