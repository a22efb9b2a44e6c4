import itertools
import random

import numpy as np
import pytest
from sklearn.metrics import cohen_kappa_score

from local_bench.settle import agreement
from local_bench.settle.agreement import (
    agreement_rate,
    cohen_kappa,
    krippendorff_alpha,
    majority,
    mean_difference,
    panel_mean,
    rank_correlation,
    spearman,
    top_k_overlap,
)
from local_bench.settle.intervals import rate_interval

LEVELS = ("nominal", "ordinal", "interval")


def units(observers):
    """Observers as strings of digits, `.` where one did not rate, into units x observers."""
    return [[None if c == "." else int(c) for c in unit] for unit in zip(*observers, strict=True)]


# Krippendorff, "Computing Krippendorff's Alpha-Reliability" (2011), part C: four observers, twelve units.
FOUR_OBSERVERS = ("123321412...", "1233224125.3", ".3332342251.", "12332441251.")


@pytest.mark.parametrize(("level", "alpha"), [("nominal", 0.743), ("ordinal", 0.815), ("interval", 0.849)])
def test_alpha_is_that_of_krippendorffs_worked_example(level, alpha):
    found = krippendorff_alpha(units(FOUR_OBSERVERS), level)
    assert found.value == pytest.approx(alpha, abs=5e-4)
    assert (found.n, found.n_unscored) == (11, 1), "unit 12 has one rating and so no pair"


def test_binary_alpha_is_that_of_krippendorffs_worked_example():
    """The same paper, part A: two observers, ten units, alpha = 0.095."""
    found = krippendorff_alpha(units(("0100000010", "1110010000")))
    assert found.value == pytest.approx(0.095, abs=5e-4)


@pytest.mark.parametrize(
    ("table", "message"),
    [
        ([[3, 3, 3], [3, None, 3]], "the same"),
        ([[1, 2]], "fewer than two units"),
        ([[1, None], [None, 2], [1, 2]], "fewer than two units"),
        ([], "fewer than two units"),
    ],
)
def test_undefined_alpha_is_none_with_a_reason(table, message):
    for level in LEVELS:
        found = krippendorff_alpha(table, level)
        assert found.value is None
        assert message in found.undefined
        assert found.n + found.n_unscored == len(table)


@pytest.mark.parametrize("seed", range(20))
def test_kappa_is_that_of_scikit_learn(seed):
    draw = random.Random(seed)
    first, second = ([draw.random() < part for _ in range(30)] for part in (0.4, 0.7))
    assert cohen_kappa(first, second).value == pytest.approx(cohen_kappa_score(first, second), abs=1e-12)


def test_kappa_omits_unscored_units_and_is_none_where_undefined():
    found = cohen_kappa([1, 0, None, 1, 0], [1, 0, 1, None, 0])
    assert (found.value, found.n, found.n_unscored) == (1, 3, 2)
    assert cohen_kappa([1, 1, 1], [1, 1, 1]).value is None
    assert "the same" in cohen_kappa([1, 1, 1], [1, 1, 1]).undefined
    assert "fewer than two" in cohen_kappa([1, None], [1, 1]).undefined
    assert cohen_kappa([1, 1, 1, 1], [1, 1, 1, 0]).value == pytest.approx(0)


@pytest.mark.parametrize(("x", "y", "rho"), [([1, 2, 2, 4], [1, 3, 2, 4], 0.9486832980505138), ([1, 2], [2, 1], -1)])
def test_spearman_shares_the_ranks_of_ties(x, y, rho):
    assert spearman(x, y).value == pytest.approx(rho, abs=1e-12)


def test_spearman_of_a_constant_or_too_few_models_is_none():
    assert spearman([1, 1, 1], [1, 2, 3]).value is None
    assert "no ranking" in spearman([1, 2, 3], [5, 5, 5]).undefined
    assert spearman([1], [1]).value is None
    found = spearman([1, None, 3], [None, 2, 3])
    assert (found.value, found.n, found.n_unscored) == (None, 1, 2)
    assert spearman([1, 2, None, 3], [10, 20, 5, 30]).value == 1


def test_top_k_shares_models_not_ranks_and_a_tie_at_the_edge_shares_the_place():
    assert top_k_overlap([9, 8, 7, 1], [7, 9, 8, 2], 3).value == 1
    assert top_k_overlap([9, 8, 7, 1], [1, 2, 8, 9], 2).value == 0
    assert top_k_overlap([9, 8, 7, 1], [9, 1, 8, 2], 2).value == 0.5
    found = top_k_overlap([9, 8, 7, 1], [7, 9, 8, 2], 3)
    assert (found.value, found.by_chance) == (1, 0.75)
    few = top_k_overlap([1, 2, None], [1, 2, 3], 3)
    assert (few.value, few.n, few.n_unscored) == (None, 2, 1)
    assert "fewer than 4" in few.undefined
    assert "fewer than 5" in top_k_overlap([1, 2, 3, 4], [1, 2, 3, 4], 4).undefined
    x, y = [9, 5, 5, 1], [9, 5, 4, 1]  # two models share x's second place, one has y's
    assert top_k_overlap(x, y, 2).value == 0.75
    assert top_k_overlap(x, x, 2).value == 1
    for order in itertools.permutations(range(4)):
        assert top_k_overlap([x[i] for i in order], [y[i] for i in order], 2).value == 0.75


def test_a_rank_correlation_has_the_probability_of_chance_and_needs_four_models():
    assert rank_correlation([1, 2, 3, 4], [1, 2, 3, 4]).by_chance == pytest.approx(1 / 24)
    assert rank_correlation([1, 2, 3, 4], [4, 3, 2, 1]).by_chance == 1
    two = rank_correlation([1, 2, 3, 4], [2, 1, 3, 4])
    assert (two.value, two.by_chance) == (pytest.approx(0.8), pytest.approx(4 / 24))
    x, y = [5, 1, 4, 4, 2, 3], [4, 1, 5, 2, 2, 6]
    drawn = [spearman(x, order).value for order in itertools.permutations(y)]
    own = spearman(x, y).value
    assert rank_correlation(x, y).by_chance == pytest.approx(np.mean([rho >= own - 1e-9 for rho in drawn]))
    assert rank_correlation(range(9), range(9)).by_chance < 0.001
    few = rank_correlation([1, 2, 3], [1, 2, 3])
    assert (few.value, few.n) == (None, 3)
    assert "fewer than 4 models" in few.undefined


@pytest.mark.parametrize(
    ("values", "word"),
    [
        ([3, 3, 5], 3),
        ([5, 3, 3, 5], 3),
        ([True, False], False),
        ([True, True, False], True),
        ([5, None], 5),
        ([5, None, None], None),
        ([None, None], None),
        ([], None),
    ],
)
def test_a_panel_majority_is_strict_and_needs_a_quorum(values, word):
    assert majority(values) == word
    assert majority(values[::-1]) == word


def test_a_panel_s_mean_needs_a_quorum():
    assert panel_mean([1, 2, None]) == 1.5
    assert panel_mean([1, None, None]) is None
    assert panel_mean([]) is None
    assert panel_mean([0.1] * 10) == 0.1
    assert panel_mean([5 / 13 * met for met in (1, 2, 12, 12, 12)]) == 3, "of 13 points by five judges: 15 / 5"
    assert panel_mean([4, 5, 4]) == 13 / 3


def test_retest_counts_questions_that_never_change():
    found = agreement.test_retest([[1, 4, 0, None], [1, 5, 0, 2], [1, 4, 0, 2]], "abbc")
    assert (found.same.value, found.same.n, found.same.n_unscored) == (2 / 3, 3, 1)
    assert (found.same.low, found.same.high) == rate_interval([1, 1], [1, 2])
    assert found.mean_abs_difference == pytest.approx(2 / 9), "two of nine pairs of answers are one apart"
    found = agreement.test_retest([[None, 1], [1, None]], "ab")
    assert (found.same.value, found.same.n, found.same.n_unscored) == (None, 0, 2)
    assert found.mean_abs_difference is None


def test_the_interval_of_kappa_is_that_of_the_rate_over_tasks_and_within_the_possible():
    draw = random.Random(5)
    first = [draw.random() < 0.5 for _ in range(60)]
    second = [x if draw.random() < 0.8 else not x for x in first]
    found = cohen_kappa(first, second, range(60))
    by_chance = (found.value - agreement_rate(first, second, range(60)).value) / (found.value - 1)
    rate = agreement_rate(first, second, range(60))
    assert found.low == pytest.approx((rate.low - by_chance) / (1 - by_chance))
    assert found.high == pytest.approx((rate.high - by_chance) / (1 - by_chance))
    assert found.low < found.value < found.high
    doubled = cohen_kappa(first * 2, second * 2, [*range(60)] * 2)
    assert (doubled.low, doubled.high) == pytest.approx((found.low, found.high)), (
        "a task of two equal images says no more than one"
    )
    one_task = cohen_kappa(first, second, [0] * 60)
    assert (one_task.low, one_task.high) == (None, None)
    # the rate's lower end at a high agreement by chance alone would give -4.9
    found = cohen_kappa([1] * 19 + [0], [1] * 18 + [0, 1], [0] * 10 + [1] * 10)
    assert -1 == found.low <= found.value <= found.high <= 1


def test_the_mean_difference_and_its_interval_over_tasks():
    of_tasks = {"a": [1.0, 3.0], "b": [-1.0], "c": [1.0]}
    mean, ends = mean_difference(of_tasks)
    assert mean == 1
    assert ends is not None
    assert ends[0] < mean < ends[1]
    assert ends[1] - mean == pytest.approx(mean - ends[0])
    _, bounded = mean_difference(of_tasks, (0, 5))
    assert bounded is not None
    assert -5 <= bounded[0] < mean < bounded[1] <= 5
    assert mean_difference({"a": [1.0, 3.0]}) == (2, None)
    assert mean_difference({}) == (None, None)


def test_the_rate_is_of_units_that_both_rated():
    found = agreement_rate([True, False, None, True, True], [True, True, True, None, True], "aabbc")
    assert found.value == 2 / 3
    assert (found.n, found.n_unscored) == (3, 2)
    assert (found.low, found.high) == rate_interval([1, 1], [2, 1]), "of the tasks a and c"
    assert agreement_rate(["A", "tie"], ["A", "B"], "ab").value == 0.5
    assert agreement_rate([None], [True], "a").value is None
    assert agreement_rate([None], [True], "a").n_unscored == 1


def test_lists_of_different_lengths_are_refused():
    for figure in (cohen_kappa, spearman):
        with pytest.raises(ValueError, match="zip"):
            figure([1, 2, 3], [1, 2])
    with pytest.raises(ValueError, match="zip"):
        agreement_rate([1, 2, 3], [1, 2, 3], [1, 2])
