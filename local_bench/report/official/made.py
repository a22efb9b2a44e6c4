"""What a run made and what was said of it, one row an image, as the writers of official files need it."""

import io
import json
from collections.abc import Iterable
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from local_bench.analysis import economics
from local_bench.analysis.settlement import accounting
from local_bench.core.errors import RunImageError
from local_bench.core.paths import safe_join
from local_bench.core.storage import write_atomic
from local_bench.core.types import UNSUPPORTED, Score, Task
from local_bench.runs.rundir import RunDir

FORMATS: dict[str, dict[str, Any]] = {
    "png": {"format": "PNG", "compress_level": 1},
    "jpg": {"format": "JPEG", "quality": 100, "subsampling": 0},
    "webp": {"format": "WEBP", "lossless": True, "quality": 0, "method": 0},
}
"""By the file's ending. JPEG alone loses anything, and IDEA-Bench alone asks for it."""


@dataclass(frozen=True)
class Made:
    """One image that was asked for."""

    work_id: str
    model: str
    task: Task
    deliverable: int
    attempt: int
    pixels_sha256: str | None
    """None where there is no image; `unscored` says why."""
    unscored: str | None
    accepted: bool | None
    """None where it is not decided."""
    scores: dict[str, Score] = field(default_factory=dict)

    @property
    def supported(self) -> bool:
        """Whether the model was asked at all: what is not its kind of work is missing from its results."""
        return self.unscored is None or not self.unscored.startswith(UNSUPPORTED)


def made(run: RunDir) -> list[Made]:
    """All that the run asked for, in the plan's order."""
    tasks = {task.task_id: task for task in run.store.tasks()}
    scores = run.store.scores_by_candidate()
    return [
        Made(
            work_id=row.candidate.work_id,
            model=row.candidate.model,
            task=tasks[row.candidate.task_id],
            deliverable=row.candidate.deliverable,
            attempt=row.candidate.attempt,
            pixels_sha256=row.candidate.image,
            unscored=row.candidate.unscored,
            accepted=row.accepted,
            scores=scores.get(row.candidate.work_id, {}),
        )
        for row in run.store.outcomes()
    ]


def models(rows: Iterable[Made]) -> list[str]:
    """The run's models, in the plan's order."""
    return list(dict.fromkeys(row.model for row in rows))


def usd_per_image(run: RunDir) -> dict[str, Decimal]:
    """As `runs.economics.usd_per_image`, as decimals that a file can hold."""
    found = economics.usd_per_image(run.store, accounting(run.store, run.config.settlement))
    return {model: Decimal(usd.numerator) / Decimal(usd.denominator) for model, usd in found.items()}


def write_costs(run: RunDir, out: Path) -> None:
    """Writes costs.json for `score --costs`, where a cost is known; else removes that of an earlier export."""
    lines = [f"  {json.dumps(model, ensure_ascii=False)}: {usd:f}" for model, usd in usd_per_image(run).items()]
    if lines:
        write_text(out, "costs.json", "{\n" + ",\n".join(lines) + "\n}\n")
    else:
        safe_join(out, "costs.json").unlink(missing_ok=True)


def write_picture(run: RunDir, pixels_sha256: str, out: Path, relative: str) -> Path | None:
    """Writes the image in the format of the ending of `relative`, as `write_bytes`; None, noted in `run.pictures`, if
    the run's own file is missing, damaged or altered."""
    try:
        image = run.pictures.load(pixels_sha256)
    except RunImageError:
        return None
    buffer = io.BytesIO()
    image.save(buffer, **FORMATS[relative.rpartition(".")[2]])
    return write_bytes(out, relative, buffer.getvalue())


def write_text(out: Path, relative: str, text: str) -> Path:
    """As `write_bytes`, in UTF-8."""
    return write_bytes(out, relative, text.encode())


def write_bytes(out: Path, relative: str, data: bytes) -> Path:
    """Writes `out / relative` and returns it. StorageError if the disk refuses; UserError where that is outside `out`:
    names of models and tasks come from the ledger, which may be someone else's."""
    safe_join(out, relative)
    write_atomic(out / relative, data)
    return out / relative
