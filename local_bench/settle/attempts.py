"""Reliability and effective cost with retries (HYPE-EDIT-1, sec. 4.3 to 4.6).

Every statistic is a sum over tasks of a function of c, the task's passes among its K attempts; a model is therefore
K + 1 counts and the number of first-attempt passes, and every statistic is exact. An attempt without a verdict counts
as not passed, because the benchmark divides by the requested images; `at_best` counts them as passes.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import comb
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaincinv

from local_bench.settle.intervals import LEVEL, student

RETRY_CAP = 4
REVIEW_USD_PER_HOUR = 50
REVIEW_SECONDS = 20
_OPEN = 0.01
"""Lower end of pass@4 up to which a cost has no upper end."""
_TAILS = ((1 - LEVEL) / 2, (1 + LEVEL) / 2)

PASS, FAIL, UNSCORED, MISSING = 1, 0, -1, -2
Outcomes = NDArray[np.int8]
"""(T, K) PASS, FAIL, UNSCORED (image without verdict) or MISSING (no image)."""


def expected_attempts(p: Fraction, cap: int = RETRY_CAP) -> Fraction:
    """Expected attempts until the first pass, at most A = `cap` (eq. 4): (1 - (1 - p)^A) / p, A at p = 0."""
    return success_within(p, cap) / p if p else Fraction(cap)


def success_within(p: Fraction, k: int = RETRY_CAP) -> Fraction:
    """Probability of a pass within k attempts at pass rate p (eq. 4): 1 - (1 - p)^k. With p estimated from the attempts
    this is the plug-in estimate of pass@k, which is biased low."""
    return 1 - (1 - p) ** k


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


def effective_cost(attempts: Fraction, usd_per_attempt: Fraction, success: Fraction) -> Fraction | None:
    """US dollars per success (eq. 6): E x C_attempt / p@4; None if nothing passes."""
    return attempts * usd_per_attempt / success if success else None


@dataclass(frozen=True)
class Reliability:
    """One model on T tasks with K attempts each."""

    attempts: int
    """K"""
    tasks_by_passes: tuple[int, ...]
    """Number of tasks with c passes, for c from 0 to K."""
    first_passes: int
    """Tasks whose first attempt passes."""

    @property
    def n_tasks(self) -> int:
        return sum(self.tasks_by_passes)

    def mean(self, value_of: Callable[[int], Fraction]) -> Fraction | None:
        """Mean over tasks of a function of c; None without tasks."""
        total = sum((n * value_of(c) for c, n in enumerate(self.tasks_by_passes) if n), Fraction(0))
        return total / self.n_tasks if self.n_tasks else None

    @property
    def pass_rate(self) -> Fraction | None:
        """R of eq. 1: passes among all requested images."""
        return self.mean(lambda c: Fraction(c, self.attempts))

    @property
    def pass_at_any(self) -> Fraction | None:
        """Share of tasks with a pass among all K attempts."""
        return self.mean(lambda c: Fraction(int(c > 0)))

    @property
    def pass_at_first(self) -> Fraction | None:
        """Share of tasks whose first attempt passes."""
        return Fraction(self.first_passes, self.n_tasks) if self.n_tasks else None

    def pass_at(self, k: int) -> Fraction | None:
        """pass@k by the paper's plug-in estimate (eq. 5)."""
        return self.mean(lambda c: success_within(Fraction(c, self.attempts), k))

    def pass_at_unbiased(self, k: int) -> Fraction | None:
        """Unbiased pass@k; None for fewer than k attempts."""
        return self._unbiased(lambda n, c: pass_at_k_unbiased(n, c, k))

    def _unbiased(self, estimator: Callable[[int, int], Fraction | None]) -> Fraction | None:
        is_defined = estimator(self.attempts, 0) is not None
        return self.mean(lambda c: estimator(self.attempts, c) or Fraction(0)) if is_defined else None

    def expected_attempts(self, cap: int = RETRY_CAP) -> Fraction | None:
        """E of eq. 5."""
        return self.mean(lambda c: expected_attempts(Fraction(c, self.attempts), cap))

    def expected_attempts_unbiased(self, cap: int = RETRY_CAP) -> Fraction | None:
        """Unbiased E; None for fewer than cap - 1 attempts."""
        return self._unbiased(lambda n, c: expected_attempts_unbiased(n, c, cap))

    def effective_cost_usd(self, usd_per_attempt: Fraction, cap: int = RETRY_CAP) -> Fraction | None:
        """Eq. 6; None if nothing passes."""
        tries, success = self.expected_attempts(cap), self.pass_at(cap)
        return None if tries is None or success is None else effective_cost(tries, usd_per_attempt, success)

    def effective_cost_usd_unbiased(self, usd_per_attempt: Fraction, cap: int = RETRY_CAP) -> Fraction | None:
        """Eq. 6 from the unbiased E and pass@cap; None if nothing passes, or for fewer than `cap` attempts."""
        tries, success = self.expected_attempts_unbiased(cap), self.pass_at_unbiased(cap)
        return None if tries is None or success is None else effective_cost(tries, usd_per_attempt, success)

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
    n_unscored: int
    n_missing: int

    @property
    def hype_gap_ends(self) -> tuple[Fraction, Fraction] | None:
        """Bounds of the gap: an open attempt can raise either term of the difference."""
        ends = (self.shown.pass_at_any, self.at_best.pass_at_first, self.at_best.pass_at_any, self.shown.pass_at_first)
        low, first_high, high, first_low = ends
        if low is None or high is None or first_low is None or first_high is None:
            return None
        return max(Fraction(0), low - first_high), high - first_low


def count_attempts(outcomes: Outcomes) -> AttemptCounts:
    """Count the attempts of one model."""
    return AttemptCounts(
        _counted(outcomes == PASS),
        _counted(outcomes != FAIL),
        int((outcomes == UNSCORED).sum()),
        int((outcomes == MISSING).sum()),
    )


def _counted(passes: NDArray[np.bool_]) -> Reliability:
    k = passes.shape[1]
    by_passes = np.bincount(passes.sum(axis=1), minlength=k + 1)
    return Reliability(k, tuple(map(int, by_passes)), int(passes[:, 0].sum()) if k else 0)


Ends = tuple[float, float | None]
"""Of an interval; None for one that is open above."""


def intervals(
    reliability: Reliability, usd_per_attempt: Fraction | None, cap: int = RETRY_CAP
) -> Mapping[str, Ends | None]:
    """95 % interval of each figure over tasks like these, from the unbiased estimates; open attempts count as not
    passed. None for fewer than two tasks, too few attempts (pass@10 of nine), and a cost without a price.

    The ends of a cost are those of E and pass@`cap` divided: each pass of a task lowers the one and raises the other.
    """
    k = reliability.attempts

    def ends(score: Callable[[int], Fraction | None]) -> tuple[float, float] | None:
        return _ends([(score(c), n) for c, n in enumerate(reliability.tasks_by_passes) if n], k)

    def retries(c: int) -> Fraction | None:
        tries = expected_attempts_unbiased(k, c, cap)
        return None if tries is None else (tries - 1) / max(1, cap - 1)

    more, within = ends(retries), ends(lambda c: pass_at_k_unbiased(k, c, cap))
    tries = None if more is None else (1 + more[0] * (cap - 1), 1 + more[1] * (cap - 1))
    cost: Ends | None = None
    if tries and within and usd_per_attempt is not None:
        usd = float(usd_per_attempt)
        cost = usd * tries[0] / within[1], usd * tries[1] / within[0] if within[0] > _OPEN else None
    gap = sum(reliability.tasks_by_passes[1:]) - reliability.first_passes
    return {
        "pass_rate": ends(lambda c: Fraction(c, k)),
        "pass_at_4": ends(lambda c: pass_at_k_unbiased(k, c, 4)),
        "pass_at_10": ends(lambda c: pass_at_k_unbiased(k, c, 10)),
        "pass_at_any": ends(lambda c: Fraction(c > 0)),
        "expected_attempts": tries,
        "effective_cost_usd": cost,
        "hype_gap": _ends([(Fraction(1), gap), (Fraction(0), reliability.n_tasks - gap)], k),
    }


def _ends(tasks: Sequence[tuple[Fraction | None, int]], attempts: int) -> tuple[float, float] | None:
    """Interval of the mean of values in [0, 1], given as (value, number of tasks): Clopper and Pearson's with the
    effective sample size of the standard error and of Student's t (Korn and Graubard 1998). One passed and one failed
    attempt are added to the squares, because few tasks need not contain the rare ones that determine a mean near 1."""
    n = sum(count for _, count in tasks)
    values = [(value, count) for value, count in tasks if value is not None]
    if n < 2 or len(values) < len(tasks):
        return None
    mean = sum((value * count for value, count in values), Fraction(0)) / n
    squares = sum(((value - mean) ** 2 * count for value, count in values), Fraction(0)) / (n - 1)
    added = (mean**2 + (1 - mean) ** 2) / (attempts * n)
    spread = mean * (1 - mean)
    size = (
        float(n * spread / (squares + added) if spread else n) * (NormalDist().inv_cdf(_TAILS[1]) / student(n - 1)) ** 2
    )
    passed, failed = float(mean) * size, float(1 - mean) * size
    low = betaincinv(passed, failed + 1, _TAILS[0]) if passed else 0
    high = betaincinv(passed + 1, failed, _TAILS[1]) if failed else 1
    return float(low), float(high)
