"""Reliability and effective cost with retries (HYPE-EDIT-1, sec. 4.3 to 4.6).

Every statistic is a mean over tasks of a function of c, the task's passes among its K attempts; a model is therefore
the numbers of tasks by K and c and that of first-attempt passes, and every statistic is exact. An attempt without a
verdict counts as not passed, because the benchmark divides by the requested images; `at_best` counts them as passes.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fractions import Fraction
from math import comb
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from local_bench.settle.intervals import LEVEL, student
from local_bench.settle.table import Mask

RETRY_CAP = 4
REVIEW_USD_PER_HOUR = 50
REVIEW_SECONDS = 20
_OPEN = 0.01
"""Lower end of pass@4 up to which a cost has no upper end."""
_TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)

PASS, FAIL, UNSCORED, MISSING, NOT_REQUESTED = 1, 0, -1, -2, -3
Outcomes = NDArray[np.int8]
"""(T, K) PASS, FAIL, UNSCORED (image without verdict), MISSING (no image) or NOT_REQUESTED (of a task with fewer)."""


def pass_at_k_unbiased(n: int, c: int, k: int) -> Fraction | None:
    """1 - C(n - c, k) / C(n, k) for c passes among n attempts (Chen et al. 2021, eq. 1); None for fewer than k."""
    return 1 - Fraction(comb(n - c, k), comb(n, k)) if k <= n else None


def expected_attempts_unbiased(n: int, c: int, cap: int = RETRY_CAP) -> Fraction | None:
    """Unbiased E: eq. 4 is the sum over j < A = `cap` of (1 - p)^j, of which C(n - c, j) / C(n, j) is unbiased (Chen et
    al. 2021); None for fewer than A - 1 attempts."""
    return sum((Fraction(comb(n - c, j), comb(n, j)) for j in range(cap)), Fraction(0)) if cap <= n + 1 else None


def review_usd(usd_per_hour: Fraction, seconds: Fraction) -> Fraction:
    """Cost of one human review (eq. 3)."""
    return usd_per_hour * seconds / 3600


def effective_cost(
    attempts: Fraction | None, usd_per_attempt: Fraction | None, success: Fraction | None
) -> Fraction | None:
    """US dollars per success (eq. 6): E x C_attempt / p@4; None if nothing passes, or one of them is unknown."""
    return None if attempts is None or usd_per_attempt is None or not success else attempts * usd_per_attempt / success


@dataclass(frozen=True)
class Reliability:
    """One model on T tasks."""

    tasks: Mapping[tuple[int, int], int]
    """(K, c) -> number of tasks with c passes among K attempts."""
    first_passes: int
    """Tasks whose first attempt passes."""

    @property
    def n_tasks(self) -> int:
        return sum(self.tasks.values())

    @property
    def attempts(self) -> int:
        """The most attempts at a task."""
        return max((k for k, _ in self.tasks), default=0)

    def mean(self, value_of: Callable[[int, int], Fraction | None]) -> Fraction | None:
        """Mean over tasks of a function of K and c; None without tasks, and if it is undefined for one of them."""
        known = [value * n for of, n in self.tasks.items() if (value := value_of(*of)) is not None]
        return sum(known, Fraction(0)) / self.n_tasks if known and len(known) == len(self.tasks) else None

    @property
    def pass_rate(self) -> Fraction | None:
        """R of eq. 1, with each task's passes among its own requested images."""
        return self.mean(lambda k, c: Fraction(c, k))

    @property
    def pass_at_any(self) -> Fraction | None:
        """Share of tasks with a pass among all K attempts."""
        return self.mean(lambda _, c: Fraction(int(c > 0)))

    @property
    def pass_at_first(self) -> Fraction | None:
        """Share of tasks whose first attempt passes."""
        return Fraction(self.first_passes, self.n_tasks) if self.n_tasks else None

    def pass_at(self, k: int) -> Fraction | None:
        """pass@k by the paper's plug-in estimate (eqs. 4 and 5), 1 - (1 - p)^k, which is biased low."""
        return self.mean(lambda n, c: 1 - Fraction(n - c, n) ** k)

    def pass_at_unbiased(self, k: int) -> Fraction | None:
        """Unbiased pass@k; None for fewer than k attempts."""
        return self.mean(lambda n, c: pass_at_k_unbiased(n, c, k))

    def expected_attempts(self, cap: int = RETRY_CAP) -> Fraction | None:
        """E of eq. 5: expected attempts until the first pass, at most A = `cap`, (1 - (1 - p)^A) / p, A at p = 0."""
        return self.mean(lambda n, c: (1 - Fraction(n - c, n) ** cap) * n / c if c else Fraction(cap))

    def expected_attempts_unbiased(self, cap: int = RETRY_CAP) -> Fraction | None:
        """Unbiased E; None for fewer than cap - 1 attempts."""
        return self.mean(lambda n, c: expected_attempts_unbiased(n, c, cap))

    def effective_cost_usd(self, usd_per_attempt: Fraction | None, cap: int = RETRY_CAP) -> Fraction | None:
        """Eq. 6; None if nothing passes, and without a price."""
        return effective_cost(self.expected_attempts(cap), usd_per_attempt, self.pass_at(cap))

    def effective_cost_usd_unbiased(self, usd_per_attempt: Fraction | None, cap: int = RETRY_CAP) -> Fraction | None:
        """As `effective_cost_usd`, from the unbiased E and pass@cap; None for fewer than `cap` attempts."""
        return effective_cost(self.expected_attempts_unbiased(cap), usd_per_attempt, self.pass_at_unbiased(cap))

    @property
    def hype_gap(self) -> Fraction | None:
        """pass@10 - pass@1 (eq. 7), with pass@1 from first attempts, which reproduces the printed gaps."""
        best, first = self.pass_at_any, self.pass_at_first
        return None if best is None or first is None else best - first


@dataclass(frozen=True)
class AttemptCounts:
    """Counted attempts of one model: open ones as not passed, and (`at_best`) as passed."""

    shown: Reliability
    at_best: Reliability
    n: int
    """Attempts with a verdict."""
    n_unscored: int
    n_missing: int
    hype_gap_ends: tuple[Fraction, Fraction] | None
    """Bounds of the gap over all verdicts of the open attempts; None without tasks."""


def count_attempts(outcomes: Outcomes) -> AttemptCounts:
    """Count the attempts of one model."""
    passed, requested = outcomes == PASS, outcomes != NOT_REQUESTED
    possible, attempts = requested & (outcomes != FAIL), requested.sum(axis=1).tolist()
    sure = (outcomes[:, :1] == FAIL).any(axis=1) & passed[:, 1:].any(axis=1)
    maybe = ~passed[:, :1].any(axis=1) & possible[:, 1:].any(axis=1)
    shown, at_best = (
        Reliability(Counter(zip(attempts, of.sum(axis=1).tolist(), strict=True)), int(of[:, :1].sum()))
        for of in (passed, possible)
    )
    n_unscored, n_missing = int((outcomes == UNSCORED).sum()), int((outcomes == MISSING).sum())
    ends = (Fraction(int(sure.sum()), len(sure)), Fraction(int(maybe.sum()), len(sure))) if len(sure) else None
    return AttemptCounts(shown, at_best, sum(attempts) - n_unscored - n_missing, n_unscored, n_missing, ends)


Ends = tuple[float, float | None]
"""Of an interval; None for one that is open above."""


def intervals(
    reliability: Reliability, usd_per_attempt: Fraction | None, cap: int = RETRY_CAP
) -> Mapping[str, Ends | None]:
    """95 % interval of each figure over tasks like these, from the unbiased estimates; open attempts count as not
    passed. None for fewer than two tasks, too few attempts (pass@10 of nine), and a cost without a price.

    The ends of a cost are those of E and pass@`cap` divided: each pass of a task lowers the one and raises the other.
    """
    tasks = reliability.tasks
    requested = sum(k * n for (k, _), n in tasks.items())

    def ends(score: Callable[[int, int], Fraction | None]) -> tuple[float, float] | None:
        return _ends([(score(*of), n) for of, n in tasks.items()], requested)

    def retries(k: int, c: int) -> Fraction | None:
        tries = expected_attempts_unbiased(k, c, cap)
        return None if tries is None else (tries - 1) / max(1, cap - 1)

    more, within = ends(retries), ends(lambda k, c: pass_at_k_unbiased(k, c, cap))
    tries = None if more is None else (1 + more[0] * (cap - 1), 1 + more[1] * (cap - 1))
    cost: Ends | None = None
    if tries and within and usd_per_attempt is not None:
        usd = float(usd_per_attempt)
        cost = usd * tries[0] / within[1], usd * tries[1] / within[0] if within[0] > _OPEN else None
    gap = sum(n for (_, c), n in tasks.items() if c) - reliability.first_passes
    return {
        "pass_rate": ends(lambda k, c: Fraction(c, k)),
        "pass_at_4": ends(lambda k, c: pass_at_k_unbiased(k, c, 4)),
        "pass_at_10": ends(lambda k, c: pass_at_k_unbiased(k, c, 10)),
        "pass_at_any": ends(lambda _, c: Fraction(c > 0)),
        "expected_attempts": tries,
        "effective_cost_usd": cost,
        "hype_gap": _ends([(Fraction(1), gap), (Fraction(0), reliability.n_tasks - gap)], requested),
    }


def _ends(tasks: Sequence[tuple[Fraction | None, int]], requested: int) -> tuple[float, float] | None:
    """Interval of the mean of values in [0, 1], given as (value, number of tasks): Clopper and Pearson's with the
    effective sample size of the standard error and of Student's t (Korn and Graubard 1998). One passed and one failed
    attempt are added to the squares, because few tasks need not contain the rare ones that determine a mean near 1."""
    n = sum(count for _, count in tasks)
    values = [(value, count) for value, count in tasks if value is not None]
    if n < 2 or len(values) < len(tasks):
        return None
    mean = sum((value * count for value, count in values), Fraction(0)) / n
    squares = sum(((value - mean) ** 2 * count for value, count in values), Fraction(0)) / (n - 1)
    added = (mean**2 + (1 - mean) ** 2) / requested
    spread = mean * (1 - mean)
    size = (
        float(n * spread / (squares + added) if spread else n) * (NormalDist().inv_cdf(_TAILS[1]) / student(n - 1)) ** 2
    )
    passed, failed = float(mean) * size, float(1 - mean) * size
    low = betaincinv(passed, failed + 1, _TAILS[0]) if passed else 0
    high = betaincinv(passed + 1, failed, _TAILS[1]) if failed else 1
    return float(low), float(high)


@dataclass(frozen=True)
class WorkflowResult:
    """Result of one workflow over T tasks; its images are those that were made.

    Every submitted image has one human review: one a shot or a pick, one an attempt with retries, one a revision.
    An image that was not made costs nothing and has no review. An open outcome counts as not passed, and as passed in
    `_high` (invariant 5). Single shot, best of N by a judge and retry until pass use the same recorded attempts
    (HYPE-EDIT-1, sec. 7 proposes the second); `revised_once` is one revision of refused images by an editing model.
    """

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
    return replace(retry_until_pass(outcomes, 1), way="single shot")


def best_of(outcomes: Outcomes, scores: NDArray[np.float64], n: int) -> WorkflowResult:
    """Of the first n attempts the one with the highest judge score, the first of equals, with one review.

    `scores` is (T, K), NaN for unscored. An unscored attempt is not selected; if all are unscored the outcome is open:
    it passes in `_high` unless all n fail.
    """
    first_n, scored = outcomes[:, :n], ~np.isnan(scores[:, :n])
    pick: NDArray[Any] = np.where(scored, np.round(scores[:, :n], 12), -np.inf).argmax(axis=1)  # sums of sixths
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
