"""Feature table of the predictors, one row per image; and splits of tasks into training, validation and test by a
hash, the same on every machine and for every run."""

from collections.abc import Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from local_bench.core.types import Score, Task, digest
from local_bench.settle.intervals import Floats

Micros = NDArray[np.int64]
CONCEPTS = ("brf", "veq", "cns")
NOT_THERE = "was not scored"


@dataclass(frozen=True)
class Features:
    """Scores and attributes of images."""

    names: tuple[str, ...]
    """The scores' names."""
    scores: Floats
    """(images, names); NaN if missing."""
    applies: NDArray[np.bool_]
    """(images, names); False if the score does not apply."""
    categories: tuple[str, ...]
    """(images,)"""
    price_micro_usd: Micros
    """(images,) revenue of the image if accepted."""
    tasks: NDArray[np.intp]
    """(images,) task numbers."""

    def __post_init__(self) -> None:
        n = len(self.tasks)
        assert self.scores.shape == self.applies.shape == (n, len(self.names))
        assert len(self.categories) == len(self.price_micro_usd) == n
        assert not (~self.applies & ~np.isnan(self.scores)).any(), "a score that does not apply"

    @property
    def known(self) -> NDArray[np.bool_]:
        """(images,) whether every score that applies is present."""
        return np.asarray((~self.applies | ~np.isnan(self.scores)).all(axis=1), dtype=bool)

    def reasons(self) -> dict[int, str]:
        """Index -> missing score, for the images that are not `known`."""
        missing = self.applies & np.isnan(self.scores)
        return {
            int(row): f"{self.names[int(np.argmax(missing[row]))]} {NOT_THERE}" for row in np.flatnonzero(~self.known)
        }

    def rows(self, selected: NDArray[np.bool_] | NDArray[np.intp]) -> "Features":
        """Table of the selected rows (mask or indices)."""
        indices = np.flatnonzero(selected) if selected.dtype == bool else selected
        return Features(
            self.names,
            self.scores[indices],
            self.applies[indices],
            tuple(self.categories[int(i)] for i in indices),
            self.price_micro_usd[indices],
            self.tasks[indices],
        )


def feature_table(
    scores: Sequence[Sequence[Score]],
    categories: Sequence[str],
    price_micro_usd: Sequence[int],
    task_ids: Sequence[str],
    names: Sequence[str] = CONCEPTS,
) -> Features:
    """Build the feature table; a missing score counts as unscored."""
    table = np.full((len(scores), len(names)), np.nan)
    applies = np.ones(table.shape, dtype=bool)
    for row, of_image in enumerate(scores):
        by_name = {score.name: score for score in of_image}
        for column, name in enumerate(names):
            score = by_name.get(name)
            if score is not None and score.value is not None:
                table[row, column] = score.value
            applies[row, column] = score is None or score.applies
    numbers = {task_id: i for i, task_id in enumerate(dict.fromkeys(task_ids))}
    return Features(
        tuple(names),
        table,
        applies,
        tuple(categories),
        np.asarray(price_micro_usd, dtype=np.int64),
        np.asarray([numbers[task_id] for task_id in task_ids], dtype=np.intp),
    )


Split = Literal["train", "validation", "test"]
SPLITS: tuple[Split, ...] = ("train", "validation", "test")
TRAIN, VALIDATION = 0.70, 0.15
"""Expected fractions of the tasks; the rest is for the test."""


def split_of(task: str, seed: int = 0) -> Split:
    """The split of a task, by a digest of its content: all its images, of all models, attempts and runs, share it."""
    fraction = int.from_bytes(sha256(f"{seed}\n{task}".encode()).digest()[:8], "big") / 2**64
    return "train" if fraction < TRAIN else "validation" if fraction < TRAIN + VALIDATION else "test"


def task_digest(task: Task) -> str:
    """Digest of what the client requests; equal requests have equal digests, whatever their task ids and suites."""
    return digest([task.title, task.brief, task.deliverables, task.source_sha256, task.reference_sha256])
