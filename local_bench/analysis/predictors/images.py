"""The images of annotated runs as features, decisions and splits."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from local_bench.analysis.payment import annotated_by_people
from local_bench.annotation.database import FILE
from local_bench.annotation.ratings import Annotations
from local_bench.core.errors import UserError
from local_bench.core.identity import digest
from local_bench.core.types import Score
from local_bench.runs.rundir import RunDir
from local_bench.settle.intervals import Floats
from local_bench.settle.predictors.features import Features, Split, feature_table, split_of, task_digest


@dataclass(frozen=True)
class LabelledImages:
    """Images with their scores and decisions."""

    features: Features
    accepted: Floats
    """(images,) 1, 0, or NaN without a decision."""
    splits: tuple[Split, ...]
    tasks: tuple[str, ...]
    """Digests of the images' tasks."""
    keys: tuple[str, ...]
    """Work ids of the images of runs; other unique names for others."""
    manifest_sha256: str
    """Digest of all annotated images: key, pixels and decision."""
    notes: tuple[str, ...] = ()
    """On the annotations."""

    def of(self, split: Split) -> tuple[Features, Floats]:
        mask = self.mask(split)
        return self.features.rows(mask), self.accepted[mask]

    def mask(self, split: Split) -> "np.ndarray[tuple[int], np.dtype[np.bool_]]":
        return np.array([assigned == split for assigned in self.splits], dtype=bool)


@dataclass(frozen=True)
class LabelledImage:
    """One image before it enters the table."""

    key: str
    pixels: str | None
    task: str
    """Digest of the task."""
    category: str
    pays_micro_usd: int
    scores: Sequence[Score]
    accepted: bool | None


def table_of(images: Sequence[LabelledImage], names: Sequence[str], seed: int) -> LabelledImages:
    """`names` are the scores of the features; `seed` selects the splits."""
    features = feature_table(
        [image.scores for image in images],
        [image.category for image in images],
        [image.pays_micro_usd for image in images],
        [image.task for image in images],
        names,
    )
    return LabelledImages(
        features,
        np.array([np.nan if image.accepted is None else float(image.accepted) for image in images]),
        tuple(split_of(image.task, seed) for image in images),
        tuple(image.task for image in images),
        tuple(image.key for image in images),
        digest(
            sorted([image.key, image.pixels or "", image.accepted] for image in images if image.accepted is not None)
        ),
    )


def labelled_images(
    runs: Sequence[RunDir], annotations: Sequence[Path], names: Sequence[str], seed: int
) -> LabelledImages:
    """The images of `runs` with the annotators' consensus decisions; `annotations` as for `decisions_of`. UserError if
    annotations cannot be read, and if an image is annotated in two of the runs."""
    images: list[LabelledImage] = []
    annotated: dict[str, Path] = {}
    by_run = _annotations_of(runs, annotations)
    for run, decided in zip(runs, [of_run.decisions() for of_run in by_run], strict=True):
        scores = run.store.scores_by_candidate()
        tasks = {task.task_id: task_digest(task) for task in run.store.tasks()}
        for row in run.store.outcomes():
            candidate = row.candidate
            if candidate.image is None:
                continue
            accepted = decided.get(candidate.work_id)
            if accepted is not None and candidate.work_id in annotated:
                raise UserError(
                    f"an image of {candidate.model} for {candidate.task_id!r} is annotated in both "
                    f"{annotated[candidate.work_id]} and {run.path}: give one of the runs"
                )
            if accepted is not None:
                annotated[candidate.work_id] = run.path
            of_image = list(scores.get(candidate.work_id, {}).values())
            images.append(
                LabelledImage(
                    candidate.work_id,
                    candidate.image,
                    tasks[candidate.task_id],
                    row.category,
                    row.part_micro_usd,
                    of_image,
                    accepted,
                )
            )
    notes = dict.fromkeys(note for of_run in by_run for note in of_run.sampling_notes)
    return replace(table_of(images, names, seed), notes=tuple(notes))


def decisions_of(runs: Sequence[RunDir], annotations: Sequence[Path]) -> list[dict[str, bool]]:
    """The annotators' consensus decisions of each run, by work id; `annotations`: a file or an annotated run for each
    run, or none at all if the runs themselves are annotated. UserError if annotations cannot be read."""
    return [of_run.decisions() for of_run in _annotations_of(runs, annotations)]


def _annotations_of(runs: Sequence[RunDir], annotations: Sequence[Path]) -> list[Annotations]:
    files = list(annotations) or [run.path for run in runs]
    if len(files) != len(runs):
        raise UserError(
            f"{len(runs)} runs and {len(files)} files of annotations are given: give --annotations once for each run, "
            "in the order of the runs"
        )
    for run in [] if annotations else runs:
        if not (run.path / FILE).is_file():
            raise UserError(
                f"{run.path} has no annotations of its own: annotate it with `local-bench annotate {run.path}`, or "
                "give a file for each run with --annotations"
            )
    return [annotated_by_people(run, people) for run, people in zip(runs, files, strict=True)]
