"""Ways of working with a model that can be asked again: one shot, the best of N by a judge, again until it passes, or
one revision of what is refused by an editing model.

The first three are settled on the same attempts as they came (HYPE-EDIT-1, sec. 7 asks for the second). A person looks
at what is handed in: once for a shot or a pick, at every try where one tries until it passes, at a revision too. An
outcome that is open counts as not passed; `_high` as passed (law 5).
"""

from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from local_bench.settle.hype import FAIL, MISSING, PASS, RETRY_CAP, Outcomes


@dataclass(frozen=True)
class Worked:
    """One way of working over T tasks."""

    way: str
    n_tasks: int
    n_passed: int
    n_passed_high: int
    n_images: int
    n_reviews: int
    passed: NDArray[np.bool_] = field(repr=False, compare=False)
    """(T,)."""

    @property
    def success(self) -> Fraction | None:
        return Fraction(self.n_passed, self.n_tasks) if self.n_tasks else None

    def cost_usd(self, usd_per_image: Fraction, usd_per_review: Fraction) -> Fraction:
        """Images and looks at them, over all tasks."""
        return self.n_images * usd_per_image + self.n_reviews * usd_per_review

    def usd_per_success(self, usd_per_image: Fraction, usd_per_review: Fraction) -> Fraction | None:
        """None where nothing passes."""
        return self.cost_usd(usd_per_image, usd_per_review) / self.n_passed if self.n_passed else None


def single_shot(outcomes: Outcomes) -> Worked:
    """The first attempt of each task, looked at once."""
    first = outcomes[:, 0]
    return _worked("single shot", first == PASS, first != FAIL, len(first), len(first))


def best_of(outcomes: Outcomes, scores: NDArray[np.float64], n: int) -> Worked:
    """Of the first n attempts the one that the judge scores highest, the earlier of equals, looked at once.

    `scores` is (T, K), NaN where the judge gave none. Such an attempt is not picked; where none has a score the pick is
    open: it passes in `_high` unless all n fail.
    """
    shown, said = outcomes[:, :n], scores[:, :n]
    known = ~np.isnan(said)
    pick: NDArray[Any] = np.where(known, said, -np.inf).argmax(axis=1)
    picked = shown[np.arange(len(shown)), pick]
    judged = known.any(axis=1)
    passed = judged & (picked == PASS)
    high = np.where(judged, picked != FAIL, (shown != FAIL).any(axis=1))
    return _worked(f"best of {shown.shape[1]}", passed, high, shown.size, len(shown))


def retry_until_pass(outcomes: Outcomes, cap: int = RETRY_CAP) -> Worked:
    """Attempts in their order until one passes, `cap` at the most, each looked at."""
    passes = outcomes[:, :cap] == PASS
    ever = passes.any(axis=1)
    tries = np.where(ever, passes.argmax(axis=1) + 1, passes.shape[1])
    high = (outcomes[:, :cap] != FAIL).any(axis=1)
    n = int(tries.sum())
    return _worked(f"up to {passes.shape[1]} tries", ever, high, n, n)


def revised_once(first: NDArray[np.int8], then: NDArray[np.int8], editor: str) -> Worked:
    """The first attempt of each task, and where that fails one revision of it, each looked at. Both (T,) outcomes;
    MISSING in `then` where nothing was revised."""
    failed = first == FAIL
    done = failed & (then != MISSING)
    passed = (first == PASS) | (done & (then == PASS))
    high = ~failed | (done & (then != FAIL)) | (failed & ~done)
    n = len(first) + int(done.sum())
    return _worked(f"revised once by {editor}", passed, high, n, n)


def _worked(way: str, passed: NDArray[np.bool_], high: NDArray[np.bool_], n_images: int, n_reviews: int) -> Worked:
    return Worked(way, len(passed), int(passed.sum()), int(high.sum()), n_images, n_reviews, passed)
