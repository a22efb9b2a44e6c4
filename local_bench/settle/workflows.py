"""Workflows with several attempts: single shot, best of N by a judge, retry until pass, and one revision of refused
images by an editing model.

The first three use the same recorded attempts (HYPE-EDIT-1, sec. 7 proposes the second). Every submitted image has one
human review: one for a shot or a pick, one per attempt with retries, one per revision. An image that was not made costs
nothing and has no review. An open outcome counts as not passed, and as passed in `_high` (invariant 5).
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from local_bench.settle.attempts import FAIL, MISSING, PASS, RETRY_CAP, Outcomes
from local_bench.settle.table import Mask


@dataclass(frozen=True)
class WorkflowResult:
    """Result of one workflow over T tasks; its images are those that were made."""

    way: str
    n_tasks: int
    n_passed: int
    n_passed_high: int
    n_images: int
    n_reviews: int
    passed: Mask = field(repr=False, compare=False)
    """(T,)."""

    @property
    def success(self) -> Fraction | None:
        return Fraction(self.n_passed, self.n_tasks) if self.n_tasks else None

    def cost_usd(self, usd_per_image: Fraction, usd_per_review: Fraction) -> Fraction:
        """Cost of images and reviews over all tasks."""
        return self.n_images * usd_per_image + self.n_reviews * usd_per_review

    def usd_per_success(self, usd_per_image: Fraction, usd_per_review: Fraction) -> Fraction | None:
        """None if nothing passes."""
        return self.cost_usd(usd_per_image, usd_per_review) / self.n_passed if self.n_passed else None


def single_shot(outcomes: Outcomes) -> WorkflowResult:
    """First attempt of each task, one review each."""
    first = outcomes[:, 0]
    n = int((first != MISSING).sum())
    return _worked("single shot", first == PASS, first != FAIL, n, n)


def best_of(outcomes: Outcomes, scores: NDArray[np.float64], n: int) -> WorkflowResult:
    """Of the first n attempts the one with the highest judge score, the first of equals, with one review.

    `scores` is (T, K), NaN for unscored. An unscored attempt is not selected; if all are unscored the outcome is open:
    it passes in `_high` unless all n fail.
    """
    first_n, scored = outcomes[:, :n], ~np.isnan(scores[:, :n])
    pick: NDArray[Any] = np.where(scored, scores[:, :n], -np.inf).argmax(axis=1)
    picked = first_n[np.arange(len(first_n)), pick]
    judged = scored.any(axis=1)
    passed = judged & (picked == PASS)
    high = np.where(judged, picked != FAIL, (first_n != FAIL).any(axis=1))
    made = first_n != MISSING
    return _worked(f"best of {first_n.shape[1]}", passed, high, int(made.sum()), int(made.any(axis=1).sum()))


def retry_until_pass(outcomes: Outcomes, cap: int = RETRY_CAP) -> WorkflowResult:
    """Attempts in order until one passes, at most `cap`, one review each."""
    passes = outcomes[:, :cap] == PASS
    ever = passes.any(axis=1)
    tries = np.where(ever, passes.argmax(axis=1) + 1, passes.shape[1])
    high = (outcomes[:, :cap] != FAIL).any(axis=1)
    n = int((outcomes != MISSING)[np.arange(outcomes.shape[1]) < tries[:, None]].sum())
    cap = passes.shape[1]
    return _worked("one try" if cap == 1 else f"up to {cap} tries", ever, high, n, n)


def revised_once(first: NDArray[np.int8], then: NDArray[np.int8], editor: str) -> WorkflowResult:
    """First attempt of each task and, if that fails, one revision, one review each. Both (T,) outcomes; MISSING in
    `then` without a revision."""
    failed = first == FAIL
    done = failed & (then != MISSING)
    passed = (first == PASS) | (done & (then == PASS))
    high = ~failed | (done & (then != FAIL)) | (failed & ~done)
    n = int((first != MISSING).sum() + done.sum())
    return _worked(f"revised once by {editor}", passed, high, n, n)


def _worked(way: str, passed: Mask, high: Mask, n_images: int, n_reviews: int) -> WorkflowResult:
    return WorkflowResult(way, len(passed), int(passed.sum()), int(high.sum()), n_images, n_reviews, passed)
