"""Closed intervals: values, edges, order, and coverage on small worlds; `scripts/bench_coverage` has more."""

from fractions import Fraction
from math import sqrt

import numpy as np
import pytest
from scipy import stats

from local_bench.settle.intervals import kish, mean_interval, rate_interval, ratio_and_error, share_interval, wilson


def test_wilson_against_published_values():
    """Newcombe 1998, table I: 81/263 and 15/148 and 0/20."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(0, 0) == (0, 1)


def test_the_jackknife_of_one_unit_a_task_is_the_standard_error():
    values = np.random.default_rng(2).normal(3, 2, 50)
    mean, error = ratio_and_error(values, np.ones(50))
    assert (mean, error) == (pytest.approx(values.mean()), pytest.approx(stats.sem(values)))


def by_hand(earned, values, most, df=None):
    """The interval in exact fractions up to the last step."""
    earned, values = [Fraction(x) for x in earned], [Fraction(x) for x in values]
    n, total = len(values), sum(values)
    rate = sum(earned) / total
    without = [(sum(earned) - a) / (total - b) for a, b in zip(earned, values, strict=True)]
    middle = sum(without) / n
    variance = Fraction(n - 1, n) * sum((x - middle) ** 2 for x in without)
    size = min(float(rate * (1 - rate) / variance), most)
    t, p = stats.t.ppf(0.975, df or n - 1), float(rate)
    half = t * sqrt(p * (1 - p) / size + t**2 / 4 / size**2)
    return (p + t**2 / 2 / size - half) / (1 + t**2 / size), (p + t**2 / 2 / size + half) / (1 + t**2 / size)


def test_shares_and_rates_by_hand():
    earned, values = [50, 0, 100, 25], [100, 100, 100, 50]
    assert kish(values) == pytest.approx(350**2 / (3 * 100**2 + 50**2))
    assert share_interval(earned, values) == pytest.approx(by_hand(earned, values, kish(values)))
    most = sqrt(4 * 81 / 25)
    assert rate_interval([1, 0, 2, 3], [2, 1, 2, 4]) == pytest.approx(by_hand([1, 0, 2, 3], [2, 1, 2, 4], most))
    low, high = mean_interval([4.0, 7.0, 3.0, 10.0], [1, 2, 1, 2], (0, 5))
    shares = by_hand([Fraction(4, 5), Fraction(7, 5), Fraction(3, 5), 2], [1, 2, 1, 2], np.inf, 36 / 10 - 1)
    assert (low / 5, high / 5) == pytest.approx(shares)


def test_nothing_and_all_are_no_points_and_fewer_than_two_tasks_have_none():
    low, high = share_interval([0] * 12, [5] * 12)
    assert low == 0
    assert high == pytest.approx(stats.t.ppf(0.975, 11) ** 2 / (12 + stats.t.ppf(0.975, 11) ** 2))
    assert share_interval([5] * 12, [5] * 12) == pytest.approx((1 - high, 1))
    assert rate_interval([3, 3], [3, 3])[1] == 1
    assert share_interval([5], [10]) is rate_interval([], []) is mean_interval([1.0], [1]) is None
    assert share_interval([5, 0], [10, 0]) is None, "an order without a price says nothing about a share"
    assert mean_interval([2.0, 2.0], [1, 1]) is None, "on an unbounded scale equal values have no interval"
    assert mean_interval([3.1, 2 * 3.1, 3 * 3.1], [1, 2, 3]) is None, "nor have values that differ by rounding"
    assert mean_interval([5.0, 5.0], [1, 1], (0, 5))[1] == 5


def test_the_order_of_tasks_changes_no_bit():
    rng = np.random.default_rng(0)
    values = rng.lognormal(5, 1.2, 300)
    earned = values * rng.random(300)
    for _ in range(20):
        order = rng.permutation(300)
        assert share_interval(earned[order], values[order]) == share_interval(earned, values)
        assert mean_interval(earned[order], np.ones(300)) == mean_interval(earned, np.ones(300))
