"""The state of runs that are in progress: phases, time left, recent images, and the GPUs of this machine."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pynvml

from local_bench.core import strictjson
from local_bench.core.errors import LocalBenchError, UserError
from local_bench.core.files import text_name
from local_bench.report.site.mark import files
from local_bench.runs.progress import FILE
from local_bench.runs.rundir import LOGS, RunDir, in_progress

RECENT = 12
MAX_PHASES = 50


@dataclass
class LiveRun:
    """One run that is watched. It is opened for each poll, so any thread may read it."""

    path: Path
    shown: list[Any] | None = None
    """The run's files (`files`) of which the current site is."""
    _n_done: int = 0
    _files: dict[str, Path] = field(default_factory=dict)
    """Pixel digest -> file of the images that are known."""
    _recent: list[dict[str, Any]] = field(default_factory=list)

    def state(self) -> dict[str, Any]:
        """Progress as JSON: `phases` as `runs.progress.Recorded` writes them with `seconds_left` of the last one,
        `counts`, the `recent` images, and `changed`: whether the site shows an older state."""
        progress: dict[str, Any] = {"name": text_name(self.path.resolve().name), "running": in_progress(self.path)}
        progress["phases"], progress["updated_utc"] = _phases(self.path)
        now = [*files(self.path)]
        self.shown = self.shown or now
        try:
            with RunDir.open(self.path) as run:
                counts = run.store.counts()
                if counts.done != self._n_done:
                    new = {
                        row.image: {"id": row.work_id, "model": row.model, "task": row.task_id, "image": row.image}
                        for row in run.store.candidates()
                        if row.image is not None and row.image not in self._files
                    }
                    images = {sha: run.image(sha) for sha in new}
                    # in the first call, those with the latest files
                    order = list(new) if self._files else sorted(new, key=lambda sha: _modified(images[sha]))
                    self._files |= images
                    self._recent = [*self._recent, *(new[sha] for sha in order[-RECENT:])][-RECENT:]
                    self._n_done = counts.done
        except LocalBenchError as e:  # the other process is writing
            return progress | {"busy": str(e), "recent": self._recent}
        return progress | {"counts": counts._asdict(), "recent": self._recent, "changed": now != self.shown}

    def image(self, pixels_sha256: str) -> Path | None:
        """The file of a known image."""
        return self._files.get(pixels_sha256)


def _phases(path: Path) -> tuple[list[dict[str, Any]], str | None]:
    try:
        data = strictjson.read(path / LOGS / FILE, UserError, missing="run again")
        phases = [
            {name: phase[name] for name in ("phase", "n", "total", "seconds")} for phase in data["phases"][-MAX_PHASES:]
        ]
        updated = str(data["updated_utc"])
    except (UserError, KeyError, TypeError):
        return [], None
    for phase in phases:
        left = phase["total"] - phase["n"] if phase is phases[-1] else 0  # an earlier one has ended, even with fewer
        phase["seconds_left"] = round(left * phase["seconds"] / phase["n"]) if phase["n"] and left > 0 else None
    return phases, updated


def _modified(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def devices() -> list[dict[str, Any]]:
    """Utilisation (fraction), power (W) and memory (bytes) of this machine's GPUs; empty without NVML."""
    try:
        pynvml.nvmlInit()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
    except pynvml.NVMLError:
        return []
    return [dict(_figures(handle)) for handle in handles]


def _figures(handle: Any) -> Iterator[tuple[str, Any]]:
    """The values that this GPU reports; older GPUs do not report all."""
    with suppress(pynvml.NVMLError):
        yield "name", str(pynvml.nvmlDeviceGetName(handle))
    with suppress(pynvml.NVMLError):
        yield "utilisation", pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100
    with suppress(pynvml.NVMLError):
        yield "power_w", pynvml.nvmlDeviceGetPowerUsage(handle) / 1000
    with suppress(pynvml.NVMLError):
        memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
        yield "memory_used_bytes", int(memory.used)
        yield "memory_total_bytes", int(memory.total)


def states(runs: Sequence[LiveRun]) -> dict[str, Any]:
    """Everything that the live page shows, as JSON."""
    return {"runs": [run.state() for run in runs], "devices": devices()}
