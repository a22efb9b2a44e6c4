"""Why images were rejected: the lowest score of each, by category, and how far apart the accepted lie (ServImage,
appendix I, table 12).

The paper breaks ties between lowest scores by a rule that it does not print; its one example with a tie (table 13,
second row: clarity, realism and aesthetic all 4) goes to the first of them in the table's order. `first` does that;
`share` gives each of the tied its equal part, so that the order of the columns decides nothing.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from local_bench.settle.bootstrap import Floats
from local_bench.settle.predictors.features import Features

Ties = Literal["first", "share"]


@dataclass(frozen=True)
class Failure:
    """One dimension's line."""

    name: str
    share: float | None
    """Of the rejected images whose lowest score is known, the part that this one dominates; None for none."""
    at_least: float
    """Of all rejected images, if no open one is this dimension's."""
    at_most: float
    """Of all rejected images, if every open one that could be is this dimension's."""
    by_category: dict[str, float | None]
    """`share` among each category's rejected images."""
    mean_accepted: float | None
    """Of this score over the accepted images that have it; None for none."""
    mean_rejected: float | None
    cohens_d: float | None
    """Accepted less rejected, in pooled standard deviations; None where there is no spread or too little to see one."""
    n_accepted: int
    n_rejected: int


@dataclass(frozen=True)
class Failures:
    """Table 12, and what it stands on."""

    rows: tuple[Failure, ...]
    ties: Ties
    n_rejected: int
    n_tied: int
    """Rejected images with more than one lowest score."""
    n_unscored: int
    """Rejected images that lack a score, so that their lowest is open."""
    n_unlabelled: int
    """Images, accepted or not, that nobody labelled."""


def failures(cells: Features, labels: ArrayLike, ties: Ties = "first") -> Failures:
    """The table for `cells`' scores in their order; `labels` (images,) are 1 or 0 for paid for or not, NaN for none."""
    given = np.asarray(labels, dtype=np.float64)
    rejected, accepted = given < 0.5, given >= 0.5
    lowest, known = _lowest(cells)
    parts = _parts(lowest & known[:, None], ties)
    # an open image may turn out any dimension's that is missing, or that of its lowest so far
    possible = lowest | (cells.applies & np.isnan(cells.scores))
    settled, open_ = rejected & known, rejected & ~known
    n = int(rejected.sum())
    category = np.asarray(cells.categories, dtype=object)
    rows = []
    for k, name in enumerate(cells.names):
        held = float(parts[settled, k].sum())
        column = cells.scores[:, k]
        good, bad = (column[side & ~np.isnan(column)] for side in (accepted, rejected))
        rows.append(
            Failure(
                name=name,
                share=_ratio(held, int(settled.sum())),
                at_least=_ratio(held, n) or 0.0,
                at_most=_ratio(held + float(possible[open_, k].sum()), n) or 0.0,
                by_category={
                    c: _ratio(
                        float(parts[settled & (category == c), k].sum()), int((settled & (category == c)).sum())
                    )
                    for c in sorted(set(cells.categories))
                },
                mean_accepted=float(good.mean()) if len(good) else None,
                mean_rejected=float(bad.mean()) if len(bad) else None,
                cohens_d=cohens_d(good, bad),
                n_accepted=len(good),
                n_rejected=len(bad),
            )
        )  # fmt: skip
    tied = int((lowest[settled].sum(axis=1) > 1).sum())
    return Failures(tuple(rows), ties, n, tied, int(open_.sum()), int(np.isnan(given).sum()))


def dominant(cells: Features) -> NDArray[np.intp]:
    """(images,): the place in `cells.names` of the lowest score, the first of several (`first`); -1 where a score is
    missing or none applies."""
    lowest, known = _lowest(cells)
    return np.where(known, lowest.argmax(axis=1), -1)


def _lowest(cells: Features) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """(images, dimensions): which scores are an image's lowest of those that there are; (images,): whether all that
    apply are there, and any does."""
    scores = np.where(cells.applies, cells.scores, np.inf)
    least = np.fmin.reduce(scores, axis=1)
    return (scores == least[:, None]) & cells.applies, cells.known & cells.applies.any(axis=1)


def _parts(lowest: np.ndarray[tuple[int, int], np.dtype[np.bool_]], ties: Ties) -> Floats:
    """What each dimension has of each image (images, dimensions)."""
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
