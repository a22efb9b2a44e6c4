"""Confidence interval of a score over fixed tasks, such as IDEA-Bench's and ICE-Bench's: only the cases are a sample.

Tasks are the strata of score = sum(w_t mean_t): SE^2 = sum(w_t^2 s_t^2 / n_t) over tasks of n_t cases with variance
s_t^2 (Cochran 1977, eq. 5.7), with Student's t of Satterthwaite's degrees of freedom (1946).
"""

from collections.abc import Sequence
from math import fsum, sqrt
from statistics import fmean, variance

from local_bench.settle.intervals import LEVEL, kish, student, wilson


def stratified_interval(
    tasks: Sequence[tuple[float, Sequence[float]]], most: float | None = None, level: float = LEVEL
) -> tuple[float, float] | None:
    """Interval of sum(w_t mean_t) of tasks (w_t, values of the cases): for values from 0 to `most` Wilson's with the
    effective sample size p (1 - p) / SE^2, else +- t SE. None without tasks, with a task of one case, which has no
    variance, and without a scale if no task's cases differ."""
    if not tasks or any(len(values) < 2 for _, values in tasks):
        return None
    score = fsum(w * fmean(values) for w, values in tasks)
    parts = [(w * w * variance(values) / len(values), len(values) - 1) for w, values in tasks]
    square = fsum(v for v, _ in parts)
    df = square**2 / fsum(v * v / n for v, n in parts) if square else sum(n for _, n in parts)
    t = student(df, level)
    if most is None:
        half = t * sqrt(square)
        return (score - half, score + half) if half else None
    top = most * fsum(w for w, _ in tasks)
    p = min(1.0, max(0.0, score / top))
    cases = kish([w / len(values) for w, values in tasks for _ in values])
    n = p * (1 - p) * top**2 / square if square and 0 < p < 1 else cases
    low, high = wilson(p * n, n, level, t)
    return low * top, high * top
