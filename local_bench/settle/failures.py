"""Failure analysis: dominant (lowest) score of rejected images by category, and effect sizes (ServImage, appendix I,
table 12).

The paper does not print its rule for ties between lowest scores; its one example with a tie (table 13, second row:
clarity, realism and aesthetic all 4) goes to the first in the table's order. `first` does the same; `share` splits the
image equally over the tied dimensions, independent of the order of the columns.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from local_bench.settle.intervals import Floats
from local_bench.settle.predictors.features import Features

Ties = Literal["first", "share"]


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
    ties: Ties
    n_rejected: int
    n_tied: int
    """Rejected images with more than one lowest score."""
    n_unscored: int
    """Rejected images without a known lowest score, because one is missing."""
    n_unlabelled: int
    """Images without an annotation."""


def failures(features: Features, labels: ArrayLike, ties: Ties = "first") -> Failures:
    """Table 12 for the scores of `features`, in order; `labels` (images,) are 1 for accepted, 0 for rejected, NaN for
    none."""
    decisions = np.asarray(labels, dtype=np.float64)
    rejected, accepted = decisions < 0.5, decisions >= 0.5
    lowest, has_lowest = _lowest(features)
    parts = _parts(lowest & has_lowest[:, None], ties)
    # an open image may belong to any missing dimension, or to its lowest known one
    possible = lowest | (features.applies & np.isnan(features.scores))
    settled, open_ = rejected & has_lowest, rejected & ~has_lowest
    n = int(rejected.sum())
    category = np.asarray(features.categories, dtype=object)
    rows = []
    for k, name in enumerate(features.names):
        attributed = float(parts[settled, k].sum())
        column = features.scores[:, k]
        good, bad = (column[side & ~np.isnan(column)] for side in (accepted, rejected))
        rows.append(
            Failure(
                name=name,
                share=_ratio(attributed, int(settled.sum())),
                at_least=_ratio(attributed, n) or 0.0,
                at_most=_ratio(attributed + float(possible[open_, k].sum()), n) or 0.0,
                by_category={
                    c: _ratio(
                        float(parts[settled & (category == c), k].sum()), int((settled & (category == c)).sum())
                    )
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
    return Failures(tuple(rows), ties, n, tied, int(open_.sum()), int(np.isnan(decisions).sum()))


def dominant(features: Features) -> NDArray[np.intp]:
    """(images,) index in `features.names` of the lowest score, the first of several (`first`); -1 where one is
    missing or none applies."""
    lowest, has_lowest = _lowest(features)
    return np.where(has_lowest, lowest.argmax(axis=1), -1)


def _lowest(features: Features) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """((images, dimensions) scores equal to the lowest known one; (images,) whether all that apply are known and at
    least one applies)."""
    scores = np.where(features.applies, features.scores, np.inf)
    least = np.fmin.reduce(scores, axis=1)
    return (scores == least[:, None]) & features.applies, features.known & features.applies.any(axis=1)


def _parts(lowest: np.ndarray[tuple[int, int], np.dtype[np.bool_]], ties: Ties) -> Floats:
    """Share of each dimension in each image (images, dimensions)."""
    if ties == "first":
        return np.asarray(lowest & (np.cumsum(lowest, axis=1) == 1), dtype=np.float64)
    return np.asarray(lowest / np.maximum(1, lowest.sum(axis=1, keepdims=True)), dtype=np.float64)


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def cohens_d(accepted: Floats, rejected: Floats) -> float | None:
    """(mean accepted - mean rejected) / pooled standard deviation, with n1 + n2 - 2 degrees of freedom (Cohen 1988)."""
    n, m = len(accepted), len(rejected)
    if n < 1 or m < 1 or n + m < 3:
        return None
    squares = float(np.sum((accepted - accepted.mean()) ** 2) + np.sum((rejected - rejected.mean()) ** 2))
    pooled = np.sqrt(squares / (n + m - 2))
    return float((accepted.mean() - rejected.mean()) / pooled) if pooled > 0 else None


def hedges_g(d: float | None, df: int) -> float | None:
    """Cohen's d times 1 - 3 / (4 df - 1), approximately unbiased (Hedges 1981)."""
    return None if d is None else d * (1 - 3 / (4 * df - 1))
