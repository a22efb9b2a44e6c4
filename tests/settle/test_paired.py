import itertools

import numpy as np
import pytest
from scipy import stats

from local_bench.settle.paired import (
    Statistics,
    adjusted_bh,
    adjusted_holm,
    differences,
    paired_differences,
    sign_flip,
)


def test_corrections_are_those_of_r():
    """p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") and "BH" in R: by hand, 4 x 0.005, 3 x 0.01, 2 x 0.03, and so on."""
    p = [0.01, 0.04, 0.03, 0.005]
    assert adjusted_holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjusted_bh(p) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert adjusted_bh([0.01, None, 0.04, 0.03, 0.005])[1] is None
    assert adjusted_holm([0.01, None, 0.04, 0.03, 0.005])[4] == pytest.approx(0.02)
    assert adjusted_holm([0.9, 0.8]) == [1, 1]


def test_bh_is_that_of_scipy():
    p = np.random.default_rng(0).random(30) ** 3
    assert adjusted_bh(list(p)) == pytest.approx(stats.false_discovery_control(p))


def test_few_tasks_have_an_exact_test():
    """Three tasks that all differ by 1: two of the eight sign patterns are as large."""
    assert sign_flip(np.array([[1.0], [1.0], [1.0], [0.0]])) == [0.25]
    assert sign_flip(np.zeros((4, 1))) == [1]
    values = np.array([3.0, -1.0, 2.0, 5.0, 0.5])
    counted = np.mean([abs(np.dot(signs, values)) >= 9.5 for signs in itertools.product((1, -1), repeat=5)])
    assert sign_flip(values[:, None]) == [counted]


def test_many_tasks_are_sampled_and_agree_with_the_exact_test():
    values = np.random.default_rng(1).normal(0.4, 1, 16)
    flips = 1 - 2 * (np.arange(2**16)[:, None] >> np.arange(16) & 1)
    exact = np.mean(np.abs(flips @ values) >= abs(values.sum()) - 1e-12)
    (drawn,) = sign_flip(values[:, None])
    assert drawn == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 9999))


def test_the_false_positive_rate_is_nominal():
    """1,000 pairs of models that are alike, on orders of very different prices: 5 % give or take 2.9 x 0.7 points."""
    rng = np.random.default_rng(4)
    price = rng.lognormal(5, 1, (40, 1))
    differences = price * (rng.binomial(1, 0.4, (40, 1000)) - rng.binomial(1, 0.4, (40, 1000)))
    assert 0.03 <= np.mean(np.array(sign_flip(differences)) <= 0.05) <= 0.07


def test_pairing_detects_differences_hidden_by_separate_intervals():
    """Hard and easy orders differ much; one model is slightly better on each."""
    rng = np.random.default_rng(2)
    hard = rng.uniform(0, 4, 60)
    scores = np.column_stack([hard + rng.normal(0.2, 0.2, 60), hard + rng.normal(0, 0.2, 60)])
    (found,) = paired_differences(["b", "a"], scores, np.ones((60, 2)))
    assert found.estimate == pytest.approx((scores[:, 0] - scores[:, 1]).mean())
    assert 0 < found.low < found.high < 0.4
    assert found.p < 0.001
    (shuffled,) = paired_differences(["b", "a"], np.column_stack([scores[:, 0], rng.permutation(scores[:, 1])]))
    assert shuffled.low < 0 < shuffled.high


def test_all_pairs_in_order_with_sums_of_money():
    revenue = np.array([[10.0, 10, 0], [20, 0, 0], [5, 5, 5], [40, 0, 0]]) * 1_000_000
    bounds = [(75e6, 75e6), (15e6, 35e6), (5e6, 5e6)]
    found = paired_differences(["x", "y", "z"], revenue, bounds=bounds)
    assert [(d.a, d.b) for d in found] == [("x", "y"), ("x", "z"), ("y", "z")]
    assert [d.estimate for d in found] == [60e6, 70e6, 10e6]
    assert [d.n_differ for d in found] == [2, 3, 1]
    assert [d.p for d in found] == [0.5, 0.25, 1]
    assert [d.p_holm for d in found] == [1, 0.75, 1]
    assert (found[0].at_least, found[0].at_most) == (40e6, 60e6)
    assert (found[2].at_least, found[2].at_most) == (10e6, 30e6)


def test_rates_over_requested_images():
    """Models with different numbers of requested images: the difference is that of their rates, and pairs that are
    equal on every task have p = 1."""
    accepted = np.array([[1.0, 2, 1], [0, 0, 0], [2, 3, 2], [1, 1, 1]])
    requested = np.array([[1.0, 2, 1], [1, 2, 1], [2, 4, 2], [1, 1, 1]])
    found = {(d.a, d.b): d for d in paired_differences(["p", "q", "r"], accepted, requested)}
    assert found["p", "q"].estimate == pytest.approx(4 / 5 - 6 / 9)
    assert found["p", "q"].n_differ == 3
    assert (found["p", "r"].estimate, found["p", "r"].p, found["p", "r"].n_differ) == (0, 1, 0)
    assert (found["p", "r"].low, found["p", "r"].high) == (0, 0)


def test_a_model_without_requested_images_has_no_difference_and_no_test():
    found = paired_differences(["p", "q", "r"], np.ones((5, 3)), np.array([[1.0, 0, 2]] * 5))
    assert [d.estimate for d in found] == [None, 0.5, None]
    assert [d.p for d in found] == [None, 2 / 2**5, None]
    assert [d.p_holm for d in found] == [None, 2 / 2**5, None]
    assert paired_differences(["p"], np.ones((5, 1))) == []


def test_statistics_that_share_their_draws_get_the_same_differences():
    rng = np.random.default_rng(4)
    of = [
        Statistics(["a", "b"], rng.normal(size=(n, 2)), below, [(0.0, 1.0)] * 2)
        for n in (60, 40)
        for below in (None, np.ones((n, 2)), rng.integers(1, 4, (n, 2)).astype(float))
    ]
    alone = [paired_differences(one.models, one.above, one.below, bounds=one.bounds, seed=2) for one in of]
    assert repr(differences([*of, Statistics(["a"], np.ones((5, 1)))], seed=2)) == repr([*alone, []])
    assert repr(differences(of, seed=3)) != repr(alone)
