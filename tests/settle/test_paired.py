from itertools import product

import numpy as np
import pytest
from scipy import stats

from local_bench.settle import paired
from local_bench.settle.intervals import share_interval
from local_bench.settle.paired import EXACT_UP_TO, Statistics, adjusted_bh, adjusted_holm, differences


def compared(models, above, below=None, **how):
    above = np.asarray(above, float)
    below = np.ones_like(above) if below is None else np.asarray(below, float)
    (found,) = differences([Statistics(models, above, below, **how)])
    return found


def priced(a, b, price):
    """The difference of two models' shares of the value of the same orders."""
    (found,) = compared(["a", "b"], np.stack([a, b], axis=1), np.stack([price, price], axis=1))
    return found


def p_of(difference, price):
    """A function of theta: the larger p-value of a share difference of theta, by all sign patterns and by the
    jackknife's t with Kish's n - 1 degrees of freedom."""
    signs = np.array(list(product((1, -1), repeat=len(price))))
    n, own = len(price), difference.sum() / price.sum()
    without = [np.delete(difference, i).sum() / np.delete(price, i).sum() for i in range(n)]
    error = np.sqrt((n - 1) / n * np.sum((without - np.mean(without)) ** 2))

    def p(theta):
        shifted = difference - theta * price
        by_flips = np.mean(np.abs(signs @ shifted) >= abs(shifted.sum()) - 1e-9)
        return max(by_flips, 2 * stats.t.sf(abs(own - theta) / error, price.sum() ** 2 / (price**2).sum() - 1))

    return p


def test_corrections_are_those_of_r_and_scipy():
    """p.adjust(c(0.01, 0.04, 0.03, 0.005), "holm") and "BH" in R: by hand, 4 x 0.005, 3 x 0.01, 2 x 0.03, and so on."""
    p = [0.01, 0.04, 0.03, 0.005]
    assert adjusted_holm(p) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert adjusted_bh(p) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert adjusted_bh([0.01, None, 0.04, 0.03, 0.005])[1] is None
    assert adjusted_holm([0.01, None, 0.04, 0.03, 0.005])[4] == pytest.approx(0.02)
    assert adjusted_holm([0.9, 0.8]) == [1, 1]
    p = np.random.default_rng(0).random(30) ** 3
    assert adjusted_bh(list(p)) == pytest.approx(stats.false_discovery_control(p))


def test_few_tasks_have_an_exact_test():
    """Three tasks that all differ by 1: two of the eight sign patterns are as large."""
    (found,) = compared(["a", "b"], [[1, 0], [1, 0], [1, 0], [0, 0]])
    assert (found.p, found.n_differ, found.too_few_differ) == (0.25, 3, True)
    (none,) = compared(["a", "b"], np.zeros((4, 2)))
    assert (none.p, none.low, none.high) == (1, None, None)
    assert (found.low, found.high) == (-1, 1), "four tasks reject nothing"
    sums = np.array([[7 / 6 + 7 / 6, 1 + 4 / 3]] * 4)
    assert (sums[:, 0] != sums[:, 1]).all()
    (same,) = compared(["a", "b"], sums)
    assert (same.n_differ, same.too_few_differ, same.low, same.high) == (0, True, None, None)


def newcombe(a, b, price):
    """Method 10 of Newcombe (1998), with the correlation of the models' residuals and their closed intervals."""
    p, q = a.sum() / price.sum(), b.sum() / price.sum()
    (low_a, high_a), (low_b, high_b) = share_interval(a, price), share_interval(b, price)
    r = np.corrcoef(a - p * price, b - q * price)[0, 1]

    def reach(x, y):
        return np.sqrt(x**2 - 2 * r * x * y + y**2)

    return p - q - reach(p - low_a, high_b - q), p - q + reach(high_a - p, q - low_b)


@pytest.mark.parametrize("seed", range(4))
def test_the_interval_has_the_differences_that_neither_test_rejects(seed):
    rng = np.random.default_rng(seed)
    price = rng.integers(1, 60, 10).astype(float)
    a, b = (price * rng.integers(0, 3, 10) / 2 for _ in range(2))
    found, p = priced(a, b, price), p_of(a - b, price)
    assert found.estimate == pytest.approx((a - b).sum() / price.sum())
    assert found.p == pytest.approx(p(0))
    for end, by_own, outwards in zip((found.low, found.high), newcombe(a, b, price), (-1, 1), strict=True):
        if abs(end) < 1:
            assert p(end + outwards * 1e-7) < 0.05
            assert end == pytest.approx(by_own) or p(end - outwards * 1e-7) >= 0.05
            assert (by_own - end) * outwards <= 1e-12 or (end > 0) != (by_own > 0)
    assert (found.low > 0 or found.high < 0) == (found.p < 0.05)


def test_models_that_are_accepted_always_and_never_have_an_interval():
    """No task's difference varies, and a point would be the interval: 12 tasks leave (0.78, 1) and (0, 0.22) open."""
    price = np.arange(1.0, 13)
    found = priced(price, 0 * price, price)
    low, _ = share_interval(price, price)
    assert (found.low, found.high) == (pytest.approx(1 - np.hypot(1 - low, 1 - low)), 1)
    assert found.low < 0.75
    assert found.p < 0.001


def test_a_constant_model_has_no_correlation_with_another():
    """0.7 of every price is 0.7 of all prices but for rounding, which has no correlation with the other's residuals."""
    price = np.array([1.0, 2, 3, 1, 2, 3, 3])
    a, b = 0.7 * price, price * [0.5, 1, 1, 1, 1, 1, 1]
    found, q = priced(a, b, price), b.sum() / price.sum()
    low_a, high_b = share_interval(a, price)[0], share_interval(b, price)[1]
    assert found.low == pytest.approx(0.7 - q - np.hypot(0.7 - low_a, high_b - q))


@pytest.mark.parametrize("rates", [(0.98, 0.95), (0.95, 0.05)])
def test_the_interval_covers_differences_of_models_near_the_ends_of_the_scale(rates, monkeypatch):
    monkeypatch.setattr(paired, "FLIPS", 999)
    rng, covered = np.random.default_rng(3), []
    for _ in range(150):
        price = np.exp(rng.normal(0, 1, 30))
        a, b = (price * (rng.random(30) < rate) for rate in rates)
        found = priced(a, b, price)
        if found.low is not None:
            covered.append(found.low - 1e-9 <= rates[0] - rates[1] <= found.high + 1e-9)
    assert np.mean(covered) >= 0.95


@pytest.mark.parametrize("rates", [((9, 1), (9, 1.5)), ((3, 3), (3, 4)), ((0.7, 0.7), (0.7, 1))])
def test_a_mean_on_a_scale_has_the_interval_of_resampled_tasks_wherever_the_scale_begins(rates):
    """Expected attempts of HYPE-EDIT-1 (1 to 4), against the percentile bootstrap: equal within a third."""
    rng = np.random.default_rng(5)
    p = np.stack([rng.beta(*of, 50) for of in rates], axis=1)
    attempts = sum((1 - rng.binomial(10, p) / 10) ** j for j in range(4))
    (found,) = compared("ab", attempts, widest=3.0, least=1.0)
    drawn = attempts[rng.integers(0, 50, (20_000, 50))].mean(axis=1)
    low, high = np.percentile(drawn[:, 0] - drawn[:, 1], [2.5, 97.5])
    assert 1 <= (found.high - found.low) / (high - low) < 4 / 3
    (shifted,) = compared("ab", attempts - 1, widest=3.0, least=0.0)
    assert (found.low, found.high, found.p) == pytest.approx((shifted.low, shifted.high, shifted.p))


def test_undecided_images_are_neither_rejected_nor_accepted():
    """b earns as much as a if what is undecided of it is accepted; c earns less even then."""
    sure = np.array([[1, 0, 0]] * 9 + [[1, 1, 0]] * 9, float)
    best = np.array([[1, 1, 0]] * 9 + [[1, 1, 0]] * 8 + [[1, 1, 1]], float)
    as_rejected, undecided = compared("abc", sure), compared("abc", sure, best=best)
    assert [pair.estimate for pair in undecided] == [pair.estimate for pair in as_rejected]
    assert as_rejected[0].p < 0.01
    assert undecided[0].p == 1, "0 without undecided images, and with all of them accepted"
    assert undecided[0].low <= 0 < as_rejected[0].low
    (extreme,) = compared("ac", np.stack([sure[:, 0], best[:, 2]], axis=1))
    assert undecided[1].p == max(as_rejected[1].p, extreme.p) < 0.001
    assert (undecided[1].low, undecided[1].high) == (extreme.low, as_rejected[1].high)
    assert undecided[1].p_holm < 0.01


def test_many_tasks_are_sampled_and_agree_with_the_exact_test():
    n = EXACT_UP_TO + 1
    values = np.random.default_rng(1).normal(0.4, 1, n)
    flips = 1 - 2 * (np.arange(2**n)[:, None] >> np.arange(n) & 1)
    exact = np.mean(np.abs(flips @ values) >= abs(values.sum()) - 1e-12)
    (drawn,) = compared(["a", "b"], np.stack([values, np.zeros(n)], axis=1), widest=None)
    assert drawn.p == pytest.approx(exact, abs=4 * np.sqrt(exact * (1 - exact) / 99_999))


def test_interval_and_p_agree_and_the_other_way_round_is_the_mirror():
    rng = np.random.default_rng(4)
    price = rng.lognormal(5, 1.2, 40)
    won = 0
    for _ in range(60):
        a, b = (price * (rng.random(40) < rate) for rate in (0.75, 0.45))
        found, mirror = priced(a, b, price), priced(b, a, price)
        assert (found.low > 0 or found.high < 0) == (found.p < 0.05)
        assert (mirror.p, mirror.low, mirror.high) == (found.p, -found.high, -found.low)
        assert mirror.estimate == -found.estimate
        won += found.p < 0.05
    assert 15 < won < 59


def test_the_false_positive_rate_is_nominal_and_the_interval_covers():
    """400 pairs of models that are alike, on orders of very different prices; three standard errors."""
    rng = np.random.default_rng(4)
    found = []
    for _ in range(400):
        price = rng.lognormal(5, 1.2, 14)
        found.append(priced(*(price * (rng.random(14) < 0.4) for _ in range(2)), price))
    assert np.mean([one.p < 0.05 for one in found]) <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 400)
    assert np.mean([one.low <= 0 <= one.high for one in found]) >= 0.95 - 3 * np.sqrt(0.05 * 0.95 / 400)


def test_pairing_detects_differences_hidden_by_separate_intervals():
    """Hard and easy orders differ much; one model is slightly better on each."""
    rng = np.random.default_rng(2)
    hard = rng.uniform(0, 4, 60)
    scores = np.column_stack([hard + rng.normal(0.2, 0.2, 60), hard + rng.normal(0, 0.2, 60)])
    (found,) = compared(["b", "a"], scores, widest=None)
    assert found.estimate == pytest.approx((scores[:, 0] - scores[:, 1]).mean())
    assert 0 < found.low < found.high < 0.4
    assert found.p < 0.001
    (shuffled,) = compared(["b", "a"], np.column_stack([scores[:, 0], rng.permutation(scores[:, 1])]), widest=None)
    assert shuffled.low < 0 < shuffled.high
    assert shuffled.detectable == pytest.approx((shuffled.high - shuffled.low) / 2 * (1 + 0.8416 / 1.96), rel=1e-3)


def test_all_pairs_in_order_with_sums_of_money():
    revenue = np.array([[10.0, 10, 0], [20, 0, 0], [5, 5, 5], [40, 0, 0]]) * 1_000_000
    price = np.repeat([[10e6], [20e6], [5e6], [40e6]], 3, axis=1)
    best = revenue.copy()
    best[1, 1] = 20e6  # undecided: y earns 15 to 35
    found = compared(["x", "y", "z"], revenue, price, best=best, unit=75e6)
    assert [(d.a, d.b) for d in found] == [("x", "y"), ("x", "z"), ("y", "z")]
    assert [d.estimate for d in found] == pytest.approx([60e6, 70e6, 10e6])
    assert [d.n_differ for d in found] == [2, 3, 1]
    assert [d.p for d in found] == [1, 0.25, 1], "x and y would differ on one task, z on two"
    assert [d.p for d in compared(["x", "y", "z"], revenue, price, unit=75e6)] == [0.5, 0.25, 1]
    assert [d.p_holm for d in found] == [1, 0.75, 1]
    assert all(-75e6 <= d.low <= d.high <= 75e6 for d in found)
    assert (found[0].at_least, found[0].at_most) == (40e6, 60e6)
    assert (found[2].at_least, found[2].at_most) == (10e6, 30e6)


def test_rates_are_over_requested_images_and_without_any_there_is_no_test():
    """Models with different numbers of requested images: the difference is that of their rates, and pairs that are
    equal on every task have p = 1."""
    accepted = np.array([[1.0, 2, 1], [0, 0, 0], [2, 3, 2], [1, 1, 1]])
    requested = np.array([[1.0, 2, 1], [1, 2, 1], [2, 4, 2], [1, 1, 1]])
    found = {(d.a, d.b): d for d in compared(["p", "q", "r"], accepted, requested)}
    assert found["p", "q"].estimate == pytest.approx(4 / 5 - 6 / 9)
    assert found["p", "q"].n_differ == 3
    assert (found["p", "r"].estimate, found["p", "r"].p, found["p", "r"].n_differ) == (0, 1, 0)
    assert (found["p", "r"].low, found["p", "r"].high) == (None, None)
    found = compared(["p", "q", "r"], np.ones((5, 3)), np.array([[1.0, 0, 2]] * 5))
    assert [d.estimate for d in found] == [None, 0.5, None]
    assert [d.p for d in found] == [None, 2 / 2**5, None]
    assert [d.p_holm for d in found] == [None, 2 / 2**5, None]
    assert compared(["p"], np.ones((5, 1))) == []


def test_models_with_the_same_images_are_one_hypothesis():
    rng = np.random.default_rng(3)
    above = (rng.random((40, 4)) < [0.2, 0.45, 0.5, 0.9]).astype(float)
    plain = {(d.a, d.b): (d.p, d.p_holm) for d in compared(list("abcd"), above, alike=list("abcd"))}
    names = [f"{name}{i}" for i in range(3) for name in "abcd"]
    for one in compared(names, np.tile(above, 3), alike=[name[0] for name in names]):
        first, second = sorted((one.a[0], one.b[0]))
        assert (one.p, one.p_holm) == ((1, 1) if first == second else plain[first, second])


def test_one_of_forty_models_that_is_far_ahead_is_significant():
    rng = np.random.default_rng(6)
    above = (rng.random((200, 40)) < np.where(np.arange(40) == 7, 0.8, 0.3)).astype(float)
    found = compared([str(i) for i in range(40)], above)
    assert all(one.p_holm < 0.05 for one in found if "7" in (one.a, one.b))
    assert np.mean([one.p_holm < 0.05 for one in found if "7" not in (one.a, one.b)]) < 0.01
