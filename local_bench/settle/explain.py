"""Association of scores with human acceptance (ServImage, sec. 5.5, figs. 3 and 5)."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from local_bench.settle.agreement import Agreement, spearman
from local_bench.settle.bootstrap import RESAMPLES, by_content, ends, resampled_counts
from local_bench.settle.discrimination import Bin, Bools, auc, by_bin, pr_auc
from local_bench.settle.intervals import Floats
from local_bench.settle.predictors.features import Features

COMPOSITE = "composite"
LEAST_TASKS = 30
"""Fewest tasks for a bootstrap interval of a measure of predictions; with 14 it covers 86 to 91 %."""


@dataclass(frozen=True)
class Explained:
    """Association of one score with acceptance, over the annotated images that have it; a score of which less is better
    counts with its sign changed."""

    name: str
    auc: float | None
    """None if all or none are accepted, like `pr_auc`."""
    auc_low: float | None
    """95 % cluster bootstrap over tasks (`auc_interval`)."""
    auc_high: float | None
    spearman: Agreement
    """Between score and annotation, ties with average ranks."""
    pr_auc: float | None
    """Compare with `base_rate`, the value for random scores."""
    base_rate: float | None
    """Share accepted; None without images."""
    n: int
    n_unscored: int
    """Annotated images that lack this score although it applies."""
    n_not_applicable: int
    n_unlabelled: int


def explained(
    features: Features,
    labels: ArrayLike,
    *,
    together: bool = True,
    lower_is_better: Collection[str] = (),
    seed: int = 0,
) -> list[Explained]:
    """One row per score, and if `together` one for their composite; `labels` (images,) are 1 for accepted, 0 for
    rejected, NaN for none."""
    decisions = np.asarray(labels, dtype=np.float64)
    columns = [*zip(features.names, features.scores.T, features.applies.T, strict=True)]
    if together:
        columns.append((COMPOSITE, composite(features), features.applies.any(axis=1)))
    return [
        _explained(name, -scores if name in lower_is_better else scores, applies, decisions, features.tasks, seed)
        for name, scores, applies in columns
    ]


def composite(features: Features) -> Floats:
    """Mean of the scores that apply (images,); NaN where one of these is missing or none applies.

    The paper does not define how its figure 3 combines BRF, VEQ and CNS; the mean is our interpretation.
    """
    applies = features.applies.sum(axis=1)
    total = np.where(features.applies, features.scores, 0.0).sum(axis=1)  # NaN if one is missing
    mean = np.full(len(total), np.nan)
    np.divide(total, applies, out=mean, where=applies > 0)
    return mean


def acceptance_by_score(
    features: Features, labels: ArrayLike, name: str = COMPOSITE, bins: int = 10
) -> tuple[Bin, ...]:
    """Acceptance by bin of a score, bins of equal width from 0 to 5 (ServImage, fig. 3). A score of another scale,
    which a ledger from elsewhere may have, is in none of them."""
    decisions = np.asarray(labels, dtype=np.float64)
    scores = composite(features) if name == COMPOSITE else features.scores[:, features.names.index(name)]
    both = ~np.isnan(decisions) & (scores >= 0) & (scores <= 5)
    return by_bin(scores[both], decisions[both] >= 0.5, np.linspace(0, 5, bins + 1))


def _explained(
    name: str, scores: Floats, applies: Bools, labels: Floats, tasks: NDArray[np.intp], seed: int
) -> Explained:
    labelled = ~np.isnan(labels)
    here = labelled & applies & ~np.isnan(scores)
    numbers, accepted = scores[here], labels[here] >= 0.5
    area = auc(numbers, accepted) if here.any() else None
    low, high = (None, None) if area is None else auc_interval(numbers, accepted, tasks[here], seed) or (None, None)
    return Explained(
        name=name,
        auc=area,
        auc_low=low,
        auc_high=high,
        spearman=spearman(numbers.tolist(), accepted.astype(float).tolist()),
        pr_auc=pr_auc(numbers, accepted) if here.any() else None,
        base_rate=float(accepted.mean()) if here.any() else None,
        n=int(here.sum()),
        n_unscored=int((labelled & applies & np.isnan(scores)).sum()),
        n_not_applicable=int((labelled & ~applies).sum()),
        n_unlabelled=int((~labelled).sum()),
    )


def auc_interval(
    numbers: Floats, accepted: Bools, tasks: NDArray[np.intp], seed: int = 0, n_resamples: int = RESAMPLES
) -> tuple[float, float] | None:
    """95 % percentile cluster bootstrap interval of the area under the ROC curve over tasks; None for fewer than
    `LEAST_TASKS` tasks or where most resamples have only one class."""
    rows, codes = by_content(tasks, numbers, accepted)
    if codes[-1] + 1 < LEAST_TASKS:
        return None
    areas = [
        float(paid @ (np.cumsum(not_paid) - not_paid / 2) / (paid.sum() * not_paid.sum()))
        for paid, not_paid in resampled_ranking(numbers[rows], accepted[rows], codes, seed, n_resamples)
    ]
    return ends(np.sort(areas), 0.025, 0.975) if 2 * len(areas) >= n_resamples else None


def resampled_ranking(
    numbers: Floats, accepted: Bools, tasks: NDArray[np.intp], seed: int, n_resamples: int
) -> Iterator[tuple[Floats, Floats]]:
    """Yield the counts of accepted and of rejected images at each distinct number, ascending, of the resamples of the
    tasks that have both; `tasks` (images,) are numbers from 0."""
    order = np.argsort(numbers, kind="stable")
    starts = np.flatnonzero(np.diff(numbers[order], prepend=-np.inf) != 0)
    for counts in resampled_counts(int(tasks.max()) + 1, n_resamples, seed):
        for count in counts:
            weights = count[tasks[order]]
            paid = np.add.reduceat(weights * accepted[order], starts)
            not_paid = np.add.reduceat(weights * ~accepted[order], starts)
            if paid.any() and not_paid.any():
                yield paid, not_paid
