"""HYPE-EDIT-1's unbiased figures and their intervals, against enumeration and formulas written out."""

from fractions import Fraction as F
from itertools import permutations, product
from math import comb

import numpy as np
import pytest
from scipy import stats

from local_bench.settle.attempts import (
    FAIL,
    MISSING,
    NOT_REQUESTED,
    PASS,
    UNSCORED,
    Reliability,
    count_attempts,
    expected_attempts_unbiased,
    intervals,
)

USD = F(1, 4)


def drawn(rates, attempts, seed):
    rng = np.random.default_rng(seed)
    return (rng.random((len(rates), attempts)) < np.asarray(rates)[:, None]).astype(np.int8)


def found(outcomes, usd=USD, cap=4):
    return intervals(count_attempts(outcomes).shown, usd, cap)


def by_hand(values, attempts):
    """Clopper-Pearson with the effective sample size of the values' standard error."""
    x = np.asarray(values, dtype=float)
    n, mean = len(x), x.mean()
    variance = x.var(ddof=1) / n + (mean**2 + (1 - mean) ** 2) / attempts / n**2
    size = (n if mean in (0, 1) else mean * (1 - mean) / variance) * (
        stats.norm.ppf(0.975) / stats.t.ppf(0.975, n - 1)
    ) ** 2
    low = stats.beta.ppf(0.025, mean * size, (1 - mean) * size + 1) if mean > 0 else 0
    high = stats.beta.ppf(0.975, mean * size + 1, (1 - mean) * size) if mean < 1 else 1
    return low, high


@pytest.mark.parametrize(("n", "c", "cap"), [(5, 0, 4), (5, 5, 4), (5, 2, 4), (4, 1, 3), (3, 1, 4), (6, 4, 1)])
def test_unbiased_attempts_are_those_of_every_order(n, c, cap):
    orders = list(permutations([True] * c + [False] * (n - c)))
    tries = [min(cap, order.index(True) + 1 if True in order else cap) for order in orders]
    assert expected_attempts_unbiased(n, c, cap) == F(sum(tries), len(tries))


def test_the_unbiased_estimates_have_the_mean_of_the_rate():
    """Over the binomial distribution of the passes among ten attempts."""
    p = F(3, 10)
    weights = [comb(10, c) * p**c * (1 - p) ** (10 - c) for c in range(11)]
    tries = sum(w * expected_attempts_unbiased(10, c) for c, w in enumerate(weights))
    assert tries == (1 - (1 - p) ** 4) / p
    plug_in = sum(w * Reliability({(10, c): 1}, 0).pass_at(4) for c, w in enumerate(weights))
    unbiased = sum(w * Reliability({(10, c): 1}, 0).pass_at_unbiased(4) for c, w in enumerate(weights))
    assert plug_in < unbiased == 1 - (1 - p) ** 4


@pytest.mark.parametrize("attempts", [4, 10, 12])
def test_intervals_are_the_formula_on_the_values_of_the_tasks(attempts):
    outcomes = drawn(np.linspace(0, 1, 23), attempts, attempts)
    passes = outcomes.sum(axis=1)

    def within(k):
        return [1 - comb(attempts - c, k) / comb(attempts, k) for c in passes]

    tries = [sum(comb(attempts - c, j) / comb(attempts, j) for j in range(4)) for c in passes]
    ends = found(outcomes)
    assert ends["pass_rate"] == pytest.approx(by_hand(passes / attempts, attempts))
    assert ends["pass_at_4"] == pytest.approx(by_hand(within(4), attempts))
    assert ends["pass_at_any"] == pytest.approx(by_hand(passes > 0, attempts))
    assert ends["hype_gap"] == pytest.approx(by_hand((passes > 0) & (outcomes[:, 0] == 0), attempts))
    low, high = by_hand((np.array(tries) - 1) / 3, attempts)
    assert ends["expected_attempts"] == pytest.approx((1 + 3 * low, 1 + 3 * high))
    least, most = by_hand(within(4), attempts)
    assert ends["effective_cost_usd"] == pytest.approx(((1 + 3 * low) / most / 4, (1 + 3 * high) / least / 4))
    if attempts < 10:
        assert ends["pass_at_10"] is None
    else:
        assert ends["pass_at_10"] == pytest.approx(by_hand(within(10), attempts))


def test_each_interval_contains_its_unbiased_estimate():
    for seed in range(20):
        rng = np.random.default_rng(seed)
        of = count_attempts(drawn(rng.beta(0.3, 0.5, rng.integers(2, 30)), 10, seed)).shown
        ends = intervals(of, USD)
        estimates = {
            "pass_rate": of.pass_rate,
            "pass_at_4": of.pass_at_unbiased(4),
            "expected_attempts": of.expected_attempts_unbiased(),
            "effective_cost_usd": of.effective_cost_usd_unbiased(USD),
            "hype_gap": of.hype_gap,
        }
        for name, value in estimates.items():
            if value is not None:
                low, high = ends[name]
                assert low - 1e-12 <= value <= (np.inf if high is None else high + 1e-12), name


def test_all_and_nothing_are_not_points():
    size = 50 * (stats.norm.ppf(0.975) / stats.t.ppf(0.975, 49)) ** 2
    least = 0.025 ** (1 / size)
    passed = found(np.full((50, 10), PASS, dtype=np.int8))
    assert passed["pass_rate"] == passed["pass_at_4"] == pytest.approx((least, 1))
    assert passed["expected_attempts"] == pytest.approx((1, 1 + 3 * (1 - least)))
    assert passed["effective_cost_usd"] == pytest.approx((0.25, 0.25 * (4 - 3 * least) / least))
    assert passed["hype_gap"] == pytest.approx((0, 1 - least))
    failed = count_attempts(np.full((50, 10), FAIL, dtype=np.int8)).shown
    ends = intervals(failed, USD)
    assert failed.effective_cost_usd_unbiased(USD) is None
    assert ends["pass_at_4"] == pytest.approx((0, 1 - least))
    assert ends["effective_cost_usd"] == (pytest.approx(0.25 * (1 + 3 * least) / (1 - least)), None)


def test_a_cost_with_too_few_passes_is_open_above():
    one = np.full((50, 10), FAIL, dtype=np.int8)
    one[0, 3] = PASS
    low, high = found(one)["effective_cost_usd"]
    assert (low > 10 * 0.25, high) == (True, None)
    one[:10] = PASS
    assert found(one)["effective_cost_usd"][1] is not None


def test_figures_of_too_few_tasks_attempts_or_without_a_price_have_no_interval():
    row = np.array([[PASS, FAIL, PASS]], dtype=np.int8)
    assert set(found(row).values()) == set(found(row[:0]).values()) == {None}
    ends = found(np.repeat(row, 2, axis=0))
    assert {name for name, of in ends.items() if of is None} == {"pass_at_4", "pass_at_10", "effective_cost_usd"}
    assert found(np.repeat(row, 2, axis=0), cap=5)["expected_attempts"] is None
    assert found(np.repeat(row, 2, axis=0), cap=3)["effective_cost_usd"] is not None
    assert found(np.repeat(row, 2, axis=0), None, cap=3)["effective_cost_usd"] is None
    assert found(np.repeat(row, 2, axis=0), cap=1)["expected_attempts"] == (1, 1)
    three = count_attempts(row).shown
    assert (three.expected_attempts_unbiased(), three.effective_cost_usd_unbiased(USD)) == (F(4, 3), None)


def test_open_attempts_count_as_not_passed():
    failed = drawn(np.linspace(0, 1, 20), 10, 1)
    rng = np.random.default_rng(2)
    for state in (UNSCORED, MISSING):
        some = np.where((failed == FAIL) & (rng.random(failed.shape) < 0.5), state, failed).astype(np.int8)
        assert found(some) == found(failed)


def test_bounds_of_the_gap_are_those_of_all_verdicts_on_the_open_attempts():
    rng = np.random.default_rng(5)
    for _ in range(30):
        outcomes = rng.choice([PASS, FAIL, FAIL, UNSCORED, MISSING], (3, 3)).astype(np.int8)
        outcomes[2, 2] = NOT_REQUESTED
        is_open, gaps = (outcomes == UNSCORED) | (outcomes == MISSING), set()
        for verdicts in product((PASS, FAIL), repeat=is_open.sum()):
            decided = outcomes.copy()
            decided[is_open] = verdicts
            gaps.add(count_attempts(decided).shown.hype_gap)
        assert count_attempts(outcomes).hype_gap_ends == (min(gaps), max(gaps))


def test_the_order_of_tasks_does_not_matter():
    outcomes = drawn(np.random.default_rng(3).beta(0.3, 0.5, 60), 10, 3)
    first = found(outcomes)
    for seed in range(5):
        assert found(np.random.default_rng(seed).permutation(outcomes)) == first
    assert found(outcomes[:, ::-1])["hype_gap"] != first["hype_gap"], "the gap depends on which attempt is the first"


def test_pass_at_4_of_an_easy_model_is_covered():
    """Where few tasks determine the mean: 50 tasks with rates of Beta(5, 2). The control is mean +- t SE."""
    rng = np.random.default_rng(4)
    truth = 1 - 2 * 3 * 4 * 5 / (7 * 8 * 9 * 10)  # E (1 - p)^4
    covered, control = 0, 0
    for _ in range(300):
        outcomes = (rng.random((50, 10)) < rng.beta(5, 2, 50)[:, None]).astype(np.int8)
        low, high = found(outcomes)["pass_at_4"]
        covered += low <= truth <= high
        x = np.array([1 - comb(10 - c, 4) / comb(10, 4) for c in outcomes.sum(axis=1)])
        control += abs(x.mean() - truth) <= stats.t.ppf(0.975, 49) * x.std(ddof=1) / 50**0.5
    assert covered >= 0.95 * 300
    assert control < 0.93 * 300
