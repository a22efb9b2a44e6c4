"""Splits of tasks into training, validation and test by a hash, the same on every machine and for every run."""

from hashlib import sha256
from typing import Literal

from local_bench.core.identity import digest
from local_bench.core.types import Task

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
