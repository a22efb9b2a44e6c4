"""ServImage_Dataset: statistics, filtering of label noise, and predictors trained on it (ServImage, app. F)."""

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np

from local_bench.analysis.predictors.card import Inputs
from local_bench.analysis.predictors.images import LabelledImage, LabelledImages, table_of
from local_bench.core.identity import digest
from local_bench.settle.explain import Explained, explained
from local_bench.settle.intervals import Floats
from local_bench.settle.predictors.fitting import out_of_fold
from local_bench.settle.predictors.splits import SPLITS
from local_bench.suites.servimage.results import CONCEPTS, Dataset

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
    return table_of(
        [
            LabelledImage(
                sample.key,
                None,
                digest(["ServImage_Dataset", sample.task]),
                sample.category,
                0,
                sample.scores,
                sample.accepted,
            )
            for sample in dataset.samples
        ],
        NAMES,
        seed,
    )


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
