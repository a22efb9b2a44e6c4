"""Association of scores with human acceptance (ServImage, sec. 5.5, figs. 3 and 5), and failure analysis:
dominant (lowest) score of rejected images by category, and effect sizes (appendix I, table 12)."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from local_bench.settle.agreement import Agreement, spearman
from local_bench.settle.discrimination import Bin, Bools, auc, by_bin, pr_auc
from local_bench.settle.features import Features
from local_bench.settle.intervals import RESAMPLES, Floats, by_content, ends, resampled_counts

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
    features: Features, labels: ArrayLike, *, together: bool = True, lower_is_better: Collection[str] = ()
) -> list[Explained]:
    """One row per score, and if `together` one for their composite; `labels` (images,) are 1 for accepted, 0 for
    rejected, NaN for none."""
    decisions = np.asarray(labels, dtype=np.float64)
    columns = [*zip(features.names, features.scores.T, features.applies.T, strict=True)]
    if together:
        columns.append((COMPOSITE, composite(features), features.applies.any(axis=1)))
    rows, labelled = [], ~np.isnan(decisions)
    for name, column, applies in columns:
        scores = -column if name in lower_is_better else column
        here = labelled & applies & ~np.isnan(scores)
        numbers, accepted = np.round(scores[here], 12), decisions[here] >= 0.5  # as in `composite`
        area = auc(numbers, accepted) if here.any() else None
        low, high = (
            (None, None) if area is None else auc_interval(numbers, accepted, features.tasks[here]) or (None, None)
        )
        rows.append(
            Explained(
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
        )
    return rows


def composite(features: Features) -> Floats:
    """Mean of the scores that apply (images,); NaN where one of these is missing or none applies.

    The paper does not define how its figure 3 combines BRF, VEQ and CNS; the mean is our interpretation.
    """
    applies = features.applies.sum(axis=1)
    total = np.where(features.applies, features.scores, 0.0).sum(axis=1)  # NaN if one is missing
    mean = np.full(len(total), np.nan)
    np.divide(total, applies, out=mean, where=applies > 0)
    return np.round(mean, 12)  # 5/3 and 7/3 as floats are more than 2 and 2


def acceptance_by_score(
    features: Features, labels: ArrayLike, name: str = COMPOSITE, bins: int = 10
) -> tuple[Bin, ...]:
    """Acceptance by bin of a score, bins of equal width from 0 to 5 (ServImage, fig. 3). A score of another scale,
    which a ledger from elsewhere may have, is in none of them."""
    decisions = np.asarray(labels, dtype=np.float64)
    scores = composite(features) if name == COMPOSITE else features.scores[:, features.names.index(name)]
    both = ~np.isnan(decisions) & (scores >= 0) & (scores <= 5)
    return by_bin(scores[both], decisions[both] >= 0.5, np.linspace(0, 5, bins + 1))


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


@dataclass(frozen=True)
class Failure:
    """One dimension."""

    name: str
    share: float | None
    """Share of the rejected images with a known lowest score that this dimension dominates; None without any."""
    at_least: float
    """Share of all rejected images if this dimension dominates no open one."""
    at_most: float
    """Share of all rejected images if this dimension dominates every open one that it can."""
    by_category: dict[str, float | None]
    """`share` within each category."""
    mean_accepted: float | None
    """Mean score of the accepted images; None without any."""
    mean_rejected: float | None
    cohens_d: float | None
    """(mean accepted - mean rejected) / pooled standard deviation, as printed in the paper; None without variance or
    with too few images."""
    hedges_g: float | None
    """`cohens_d` without its bias upwards in small samples."""
    n_accepted: int
    n_rejected: int


@dataclass(frozen=True)
class Failures:
    """Table 12 and its sample sizes."""

    rows: tuple[Failure, ...]
    ties: str
    """`first`: an image with several lowest scores counts for the first of them in the order of the rows."""
    n_rejected: int
    n_tied: int
    """Rejected images with more than one lowest score."""
    n_unscored: int
    """Rejected images without a known lowest score, because one is missing."""
    n_unlabelled: int
    """Images without an annotation."""


def failures(features: Features, labels: ArrayLike) -> Failures:
    """Table 12 for the scores of `features`, in order; `labels` (images,) are 1 for accepted, 0 for rejected, NaN for
    none.

    The paper does not print its rule for ties between lowest scores; its one example with a tie (table 13, second row:
    clarity, realism and aesthetic all 4) goes to the first in the table's order, as here.
    """
    decisions = np.asarray(labels, dtype=np.float64)
    rejected, accepted = decisions < 0.5, decisions >= 0.5
    lowest, has_lowest = _lowest(features)
    first = dominant(features)
    # an open image may belong to any missing dimension, or to its lowest known one
    possible = lowest | (features.applies & np.isnan(features.scores))
    settled, open_ = rejected & has_lowest, rejected & ~has_lowest
    category = np.asarray(features.categories, dtype=object)
    rows = []
    for k, name in enumerate(features.names):
        attributed = settled & (first == k)
        column = features.scores[:, k]
        good, bad = (column[side & ~np.isnan(column)] for side in (accepted, rejected))
        rows.append(
            Failure(
                name=name,
                share=_ratio(attributed, settled),
                at_least=_ratio(attributed, rejected) or 0.0,
                at_most=_ratio(attributed | (open_ & possible[:, k]), rejected) or 0.0,
                by_category={
                    c: _ratio(attributed & (category == c), settled & (category == c))
                    for c in sorted(set(features.categories))
                },
                mean_accepted=float(good.mean()) if len(good) else None,
                mean_rejected=float(bad.mean()) if len(bad) else None,
                cohens_d=(d := cohens_d(good, bad)),
                hedges_g=hedges_g(d, len(good) + len(bad) - 2),
                n_accepted=len(good),
                n_rejected=len(bad),
            )
        )  # fmt: skip
    tied = int((lowest[settled].sum(axis=1) > 1).sum())
    return Failures(tuple(rows), "first", int(rejected.sum()), tied, int(open_.sum()), int(np.isnan(decisions).sum()))


def dominant(features: Features) -> NDArray[np.intp]:
    """(images,) index in `features.names` of the lowest score, the first of several (`first`); -1 where one is
    missing or none applies."""
    lowest, has_lowest = _lowest(features)
    return np.where(has_lowest, lowest.argmax(axis=1), -1)


def _lowest(features: Features) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """((images, dimensions) scores equal to the lowest known one; (images,) whether all that apply are known and at
    least one applies)."""
    scores = np.where(features.applies, np.round(features.scores, 12), np.inf)  # as in `composite`
    least = np.fmin.reduce(scores, axis=1)
    return (scores == least[:, None]) & features.applies, features.known & features.applies.any(axis=1)


def _ratio(part: Bools, whole: Bools) -> float | None:
    """Of numbers of images."""
    return int(part.sum()) / int(whole.sum()) if whole.any() else None


def cohens_d(accepted: Floats, rejected: Floats) -> float | None:
    """(mean accepted - mean rejected) / pooled standard deviation, with n1 + n2 - 2 degrees of freedom (Cohen 1988)."""
    n, m = len(accepted), len(rejected)
    if n < 1 or m < 1 or n + m < 3 or not (np.ptp(accepted) or np.ptp(rejected)):
        return None
    squares = float(np.sum((accepted - accepted.mean()) ** 2) + np.sum((rejected - rejected.mean()) ** 2))
    pooled = np.sqrt(squares / (n + m - 2))
    return float((accepted.mean() - rejected.mean()) / pooled)


def hedges_g(d: float | None, df: int) -> float | None:
    """Cohen's d times 1 - 3 / (4 df - 1), approximately unbiased (Hedges 1981)."""
    return None if d is None else d * (1 - 3 / (4 * df - 1))
