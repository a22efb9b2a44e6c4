"""Reliability and effective cost with retries (HYPE-EDIT-1, sec. 4.3 to 4.6).

Every statistic is a sum over tasks of a function of c, the task's passes among its K attempts; a model is therefore
K + 1 counts and the number of first-attempt passes, and every statistic is exact. An attempt without a verdict counts
as not passed, because the benchmark divides by the requested images; `at_best` counts them as passes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from math import comb

import numpy as np
from numpy.typing import NDArray

from local_bench.settle.bootstrap import Floats, Interval, bootstrap

RETRY_CAP = 4
REVIEW_USD_PER_HOUR = 50
REVIEW_SECONDS = 20
_TEN = 10
"""Of pass@10."""

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

    def mean(self, of: Callable[[int], Fraction]) -> Fraction | None:
        """Mean over tasks of a function of c; None without tasks."""
        total = sum((n * of(c) for c, n in enumerate(self.tasks_by_passes) if n), Fraction(0))
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
        return (
            None if k > self.attempts else self.mean(lambda c: pass_at_k_unbiased(self.attempts, c, k) or Fraction(0))
        )

    def expected_attempts(self, cap: int = RETRY_CAP) -> Fraction | None:
        """E of eq. 5."""
        return self.mean(lambda c: expected_attempts(Fraction(c, self.attempts), cap))

    def effective_cost_usd(self, usd_per_attempt: Fraction, cap: int = RETRY_CAP) -> Fraction | None:
        """Eq. 6; None if nothing passes."""
        tries, success = self.expected_attempts(cap), self.pass_at(cap)
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


FIGURES = ("pass_rate", "pass_at_4", "pass_at_10", "pass_at_any", "expected_attempts", "effective_cost_usd", "hype_gap")
"""Keys of `intervals`, in the order of the statistic."""


def intervals(
    outcomes: Outcomes, usd_per_attempt: Fraction | None, cap: int = RETRY_CAP, seed: int = 0
) -> dict[str, Interval | None]:
    """95 % percentile bootstrap intervals over tasks of the statistics of `Reliability`; open attempts count as not
    passed. None for pass@10 of fewer than ten attempts, and for a cost without a price."""
    passes = outcomes == PASS
    k, counts = passes.shape[1], passes.sum(axis=1).tolist()
    by_count = {
        c: (
            c / k,
            float(success_within(Fraction(c, k))),
            float(pass_at_k_unbiased(k, c, _TEN) or 0),
            float(c > 0),
            float(expected_attempts(Fraction(c, k), cap)),
            float(success_within(Fraction(c, k), cap)),
        )
        for c in set(counts)
    }
    columns = [(*by_count[c], float(first), 1.0) for c, first in zip(counts, passes[:, 0], strict=True)]
    attempt = float("nan") if usd_per_attempt is None else float(usd_per_attempt)

    def figures(sums: Floats) -> Floats:
        rate, four, ten, any_, tries, within, first, n = np.moveaxis(sums, -1, 0)
        cost = np.where(within > 0, tries * attempt / np.where(within > 0, within, 1), np.nan)
        return np.stack([rate / n, four / n, ten / n, any_ / n, tries / n, cost, (any_ - first) / n], axis=-1)

    found: dict[str, Interval | None] = dict(
        zip(FIGURES, bootstrap(np.array(columns), figures, seed=seed), strict=True)
    )
    if k < _TEN:
        found["pass_at_10"] = None
    if usd_per_attempt is None:
        found["effective_cost_usd"] = None
    return found
