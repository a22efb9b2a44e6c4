"""The images of annotated runs as features, decisions and splits; and those of ServImage_Dataset (app. F): its
statistics and the filtering of label noise."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from local_bench.analysis.predictors.card import Inputs
from local_bench.annotation.database import FILE
from local_bench.annotation.ratings import Annotations, load_annotations
from local_bench.core.errors import UserError, count
from local_bench.core.types import Score, digest
from local_bench.runs.rundir import RunDir
from local_bench.settle.explain import Explained, explained
from local_bench.settle.features import SPLITS, Features, Split, feature_table, split_of, task_digest
from local_bench.settle.intervals import Floats
from local_bench.settle.predictors.fitting import out_of_fold
from local_bench.suites.servimage.results import CONCEPTS, Dataset


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


Image = tuple[str, str | None, str, bool | None, str, int, Sequence[Score]]
"""(key, digest of its pixels, digest of its task, decision, category, revenue if accepted in micro-USD, scores)"""


def table_of(images: Sequence[Image], names: Sequence[str], seed: int) -> LabelledImages:
    """`names` are the scores of the features; `seed` selects the splits."""
    keys, pixels, tasks, accepted, categories, pays, scores = zip(*images, strict=True) if images else ((),) * 7
    annotated = [image for image in zip(keys, pixels, accepted, strict=True) if image[2] is not None]
    return LabelledImages(
        feature_table(scores, categories, pays, tasks, names),
        np.array([np.nan if decision is None else float(decision) for decision in accepted]),
        tuple(split_of(task, seed) for task in tasks),
        tasks,
        keys,
        digest(sorted([key, sha or "", decision] for key, sha, decision in annotated)),
    )


def labelled_images(
    runs: Sequence[RunDir], annotations: Sequence[Path], names: Sequence[str], seed: int
) -> LabelledImages:
    """The images of `runs` with the annotators' consensus decisions; `annotations` as for `annotations_of`. UserError
    if annotations cannot be read, and if an image is annotated in two of the runs."""
    images: list[Image] = []
    annotated: dict[str, Path] = {}
    by_run = annotations_of(runs, annotations)
    for run, of_run in zip(runs, by_run, strict=True):
        decided = of_run.decisions()
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
            identity = candidate.work_id, candidate.image, tasks[candidate.task_id]
            images.append((*identity, accepted, row.category, row.part_micro_usd, of_image))
    notes = dict.fromkeys(note for of_run in by_run for note in of_run.sampling_notes)
    return replace(table_of(images, names, seed), notes=tuple(notes))


def annotations_of(runs: Sequence[RunDir], annotations: Sequence[Path]) -> list[Annotations]:
    """The annotations of each run; `annotations`: a file or an annotated run for each run, or none at all if the runs
    themselves are annotated. UserError if annotations cannot be read."""
    files = list(annotations) or [run.path for run in runs]
    if len(files) != len(runs):
        raise UserError(
            f"{count(len(runs), 'runs')} and {count(len(files), 'files')} of annotations are given: give --annotations "
            "once for each run, in the order of the runs"
        )
    for run in [] if annotations else runs:
        if not (run.path / FILE).is_file():
            raise UserError(
                f"{run.path} has no annotations of its own: annotate it with `local-bench annotate {run.path}`, or "
                "give a file for each run with --annotations"
            )
    return [load_annotations(people, run) for run, people in zip(runs, files, strict=True)]


NAMES = tuple(CONCEPTS.values())
INPUTS = Inputs(scores=list(NAMES), judges=[], rubrics=[])
"""Of a predictor that is trained on the dataset: its judge is unknown, so that it is used on runs with `--other-judge`.
"""


@dataclass(frozen=True)
class Statistics:
    """Counts and rates of a dataset."""

    n_lines: int
    n_unlabelled: int
    n_duplicates: int
    n_contradictory: int
    n_samples: int
    """Samples that are left."""
    n_tasks: int
    n_models: int
    accepted: float
    accepted_by_category: dict[str, float]
    samples_by_category: dict[str, int]
    samples_by_split: dict[str, int]
    explained: list[Explained]
    """By concept: association with the decision, missing and not applicable values."""
    n_doubtful: int | None
    """Training samples that the noise filter leaves out; None without a filter."""


def labelled_dataset(dataset: Dataset, seed: int = 0) -> LabelledImages:
    """The samples as features, decisions and splits; they have no prices."""
    images: list[Image] = [
        (s.key, None, digest(["ServImage_Dataset", s.task]), s.accepted, s.category, 0, s.scores)
        for s in dataset.samples
    ]
    return table_of(images, NAMES, seed)


def doubtful(images: LabelledImages, least_confidence: float, seed: int = 0) -> Floats:
    """(images,) True for training samples whose decision has less than this probability by a logistic model fitted to
    other training tasks (confident learning, Northcutt et al. 2021). Samples without a score are never doubtful;
    validation and test samples are never touched."""
    train = np.flatnonzero(images.mask("train"))
    features, labels = images.of("train")
    p = out_of_fold(features, labels, seed=seed)
    confidence = np.where(labels == 1, p, 1 - p)
    is_doubtful = np.zeros(len(images.tasks), dtype=bool)
    is_doubtful[train[confidence < least_confidence]] = True  # False for NaN
    return is_doubtful


def without(images: LabelledImages, left_out: Floats) -> LabelledImages:
    """The images without these (mask)."""
    kept = np.flatnonzero(~left_out.astype(bool)).tolist()
    keys = [images.keys[i] for i in kept]
    return replace(
        images,
        features=images.features.rows(np.array(kept, dtype=np.intp)),
        accepted=images.accepted[kept],
        splits=tuple(images.splits[i] for i in kept),
        tasks=tuple(images.tasks[i] for i in kept),
        keys=tuple(keys),
        manifest_sha256=digest([images.manifest_sha256, keys]),
    )


def statistics(dataset: Dataset, images: LabelledImages, n_doubtful: int | None = None) -> Statistics:
    """Counts and rates of `images`, which are from `dataset`."""
    categories = Counter(images.features.categories)
    accepted = Counter(c for c, yes in zip(images.features.categories, images.accepted, strict=True) if yes == 1)
    by_split = Counter(images.splits)
    return Statistics(
        n_lines=dataset.n_lines,
        n_unlabelled=dataset.n_unlabelled,
        n_duplicates=dataset.n_duplicates,
        n_contradictory=len(dataset.contradictory),
        n_samples=len(images.tasks),
        n_tasks=len(set(images.tasks)),
        n_models=len({sample.model for sample in dataset.samples}),
        accepted=float(images.accepted.mean()),
        accepted_by_category={c: accepted[c] / n for c, n in sorted(categories.items())},
        samples_by_category=dict(sorted(categories.items())),
        samples_by_split={split: by_split[split] for split in SPLITS},
        explained=explained(images.features, images.accepted),
        n_doubtful=n_doubtful,
    )
