"""What a run produced, one row an image, and the files that benchmarks' own layouts are made of."""

import io
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from pathlib import Path
from typing import Any

from PIL import Image

from local_bench.core.errors import RunImageError
from local_bench.core.paths import safe_join
from local_bench.core.storage import write_atomic
from local_bench.core.types import UNSUPPORTED, Score, Task, Verdict

FORMATS: dict[str, dict[str, Any]] = {
    "png": {"format": "PNG", "compress_level": 1},
    "jpg": {"format": "JPEG", "quality": 100, "subsampling": 0},
    "webp": {"format": "WEBP", "lossless": True, "quality": 0, "method": 0},
}
"""By the file's suffix. JPEG alone is lossy; only IDEA-Bench asks for it."""


@dataclass(frozen=True)
class ImageResult:
    """One image that the run asked for, with its scores and the decision about it."""

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


@dataclass(frozen=True)
class RunResults:
    """A run's results as a suite reads them: plain rows, and ways to the images."""

    images: list[ImageResult]
    """In the plan's order."""
    usd_per_image: Mapping[str, Decimal]
    """By model; no entry where the cost is not known."""
    verdicts: Mapping[str, Mapping[tuple[str, int, int], Verdict]]
    """Work id -> (rubric, point, repeat) -> the judge's answer; of several judges, that of the majority."""
    load: Callable[[str], Image.Image]
    """A generated image by its pixel digest. RunImageError where the file is missing, damaged or altered."""
    load_input: Callable[[str], Image.Image]
    """An input image of a task; raises as `load`."""

    @property
    def models(self) -> list[str]:
        """In the plan's order."""
        return list(dict.fromkeys(image.model for image in self.images))

    def write_costs(self, out: Path) -> None:
        """Writes costs.json for `score --costs`, where a cost is known; else removes that of an earlier export."""
        lines = [f"  {json.dumps(model, ensure_ascii=False)}: {usd:f}" for model, usd in self.usd_per_image.items()]
        if lines:
            write_text(out, "costs.json", "{\n" + ",\n".join(lines) + "\n}\n")
        else:
            safe_join(out, "costs.json").unlink(missing_ok=True)

    def write_image(self, pixels_sha256: str, out: Path, relative: str) -> Path | None:
        """Writes a generated image in the format of the suffix of `relative`, as `write_bytes`; None where the run's
        own file cannot be read."""
        try:
            image = self.load(pixels_sha256)
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
