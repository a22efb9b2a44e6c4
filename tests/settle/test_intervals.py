import numpy as np
import pytest

from local_bench.settle.intervals import bootstrap_mean, bootstrap_revenue, wilson


def test_wilson_against_published_values():
    """Newcombe 1998, table I: 81/263 and 15/148 and 0/20."""
    assert wilson(81, 263) == pytest.approx((0.2553, 0.3662), abs=5e-5)
    assert wilson(15, 148) == pytest.approx((0.0624, 0.1605), abs=5e-5)
    assert wilson(0, 20) == pytest.approx((0.0, 0.1611), abs=5e-5)
    assert wilson(0, 0) == (0, 1)


def test_a_revenue_interval_is_seeded_and_within_the_orders_value():
    earned, values = [0, 100, 100, 0, 700], [50, 100, 100, 50, 700]
    low, high = bootstrap_revenue(earned, values)
    assert (low, high) == bootstrap_revenue(earned, values)
    assert 0 <= low <= sum(earned) <= high <= sum(values)
    assert bootstrap_revenue([5], [10]) is None
    assert bootstrap_revenue(values, values) is None
    assert bootstrap_revenue([0] * 5, values) is None


def test_the_interval_of_a_mean_has_its_nominal_coverage():
    rng = np.random.default_rng(1)
    covered = 0
    for _ in range(60):
        groups = [list(rng.normal(3, 1) + rng.normal(0, 0.1, 3)) for _ in range(30)]
        low, high = bootstrap_mean(groups)
        covered += low <= 3 <= high
    assert covered >= 50
