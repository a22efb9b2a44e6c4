"""Results of a run, one row per image, and the files of which the benchmarks' own layouts consist."""

import io
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import prod
from pathlib import Path
from typing import Any

from PIL import Image

from local_bench.core.errors import RunImageError
from local_bench.core.files import safe_join, write_atomic
from local_bench.core.types import UNSUPPORTED, Score, Task, Verdict

FORMATS: dict[str, dict[str, Any]] = {
    "png": {"format": "PNG", "compress_level": 1},
    "jpg": {"format": "JPEG", "quality": 100, "subsampling": 0},
    "webp": {"format": "WEBP", "lossless": True, "quality": 0, "method": 0},
}
"""By file suffix. Only JPEG is lossy; only IDEA-Bench requires it."""


@dataclass(frozen=True)
class ImageResult:
    """One requested image with its scores and its decision."""

    work_id: str
    model: str
    task: Task
    deliverable: int
    attempt: int
    pixels_sha256: str | None
    """None if there is no image; `unscored` has the reason."""
    unscored: str | None
    accepted: bool | None
    """None if undecided."""
    scores: dict[str, Score] = field(default_factory=dict)
    shown: bool = True
    """False if these are the results of an annotator who was not shown the image."""

    @property
    def supported(self) -> bool:
        """Whether the model supports the task; unsupported tasks are missing from its results."""
        return self.unscored is None or not self.unscored.startswith(UNSUPPORTED)


@dataclass(frozen=True)
class TaskFigure:
    """One model's value of a task, of a figure of the benchmark that is a mean of tasks; None if unscored."""

    figure: str
    model: str
    task_id: str
    value: float | None
    groups: tuple[str, ...] = ()  # nested, the largest first: the figure is the mean of the groups' means
    widest: float = 1.0
    least: float = 0.0
    """The largest possible difference of two values, and the smallest possible value."""
    at_best: float | None = None
    """The value with all undecided images accepted, which `value` counts as refused; None: not bounded."""


def weights_of(tasks: Sequence[TaskFigure]) -> list[float]:
    """The weights of these tasks in the mean of the means of the groups that have one of them."""
    places = [(*task.groups, task.task_id) for task in tasks]
    members = Counter(node[:-1] for node in {place[:n] for place in places for n in range(2, len(place) + 1)})
    return [1 / prod(members[place[:n]] for n in range(1, len(place))) for place in places]


@dataclass(frozen=True)
class RunResults:
    """The results of a run as a suite receives them: plain rows, and functions that load the images."""

    images: list[ImageResult]
    """In the plan's order."""
    usd_per_image: Mapping[str, Decimal]
    """By model; no entry if the cost is not known."""
    verdicts: Mapping[str, Mapping[tuple[str, int, int], Verdict]]
    """Work id -> (rubric, point, repeat) -> the judge's answer; with several judges, the majority's."""
    load: Callable[[str], Image.Image]
    """Load a generated image by its pixel digest. RunImageError if the file is missing, damaged or altered."""
    load_input: Callable[[str], Image.Image]
    """Load an input image of a task; raises as `load`."""

    @property
    def models(self) -> list[str]:
        """In the plan's order."""
        return list(dict.fromkeys(image.model for image in self.images))

    def write_costs(self, out: Path) -> None:
        """Write costs.json for `score --costs` if a cost is known."""
        lines = [f"  {json.dumps(model, ensure_ascii=False)}: {usd:f}" for model, usd in self.usd_per_image.items()]
        if lines:
            write_file(out, "costs.json", "{\n" + ",\n".join(lines) + "\n}\n")

    def write_image(self, pixels_sha256: str, out: Path, relative: str) -> Path | None:
        """Write a generated image in the format of the suffix of `relative`, as `write_file`; None if the run's own
        file cannot be read."""
        try:
            image = self.load(pixels_sha256)
        except RunImageError:
            return None
        buffer = io.BytesIO()
        image.save(buffer, **FORMATS[relative.rpartition(".")[2]])
        return write_file(out, relative, buffer.getvalue())


def write_file(out: Path, relative: str, data: str | bytes) -> Path:
    """Write `out / relative`, texts in UTF-8, and return it. StorageError if writing fails; UserError if the path is
    outside `out`: names of models and tasks come from the ledger, which is untrusted."""
    safe_join(out, relative)
    write_atomic(out / relative, data.encode() if isinstance(data, str) else data)
    return out / relative
