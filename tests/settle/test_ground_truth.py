"""Judged and true money, by hand."""

from types import SimpleNamespace

import pytest

from local_bench.cli.tables import earnings
from local_bench.settle.ground_truth import ALL, JudgedAnswer, JudgedDeliverable, answer_accuracy, audit_revenue

DOLLAR = 1_000_000


def paid(task_id, part, judged, faultless, right, score=None, true_score=None, model="m"):
    return JudgedDeliverable(model, task_id, part * DOLLAR, judged, faultless, right, score, true_score)


ROWS = [
    paid("a", 10, True, True, True, 5.0, 5.0),
    paid("b", 20, True, False, False, 4.0, 2.5),  # the judge is taken in
    paid("c", 40, False, True, True, 2.0, 5.0),  # the judge overlooks it
    paid("d", 80, True, True, False, 5.0, 5.0),  # the rule is: all points are met, and yet it is not right
    paid("e", 160, None, True, True, None, 5.0),  # open pays nothing
    paid("f", 320, True, True, None, 5.0, None),  # nobody knows
]


def test_true_and_judged_revenue():
    [row] = audit_revenue(ROWS)
    expected = {
        "judged": 10 + 20 + 80,
        "faultless": 10 + 40 + 80 + 160,
        "true": 10 + 40 + 160,
        "too_much": 20 + 80,
        "too_little": 40 + 160,
        "off": (10 + 20 + 80) - (10 + 40 + 160),
    }
    assert {name: getattr(row, f"{name}_micro_usd") / DOLLAR for name in expected} == expected
    assert row.off_micro_usd == row.too_much_micro_usd - row.too_little_micro_usd
    assert (row.n, row.n_unknown, row.n_right) == (5, 1, 3)
    assert (row.decided.value, row.decided.n, row.decided.n_unscored) == (1 / 4, 4, 1)
    low, high = row.off_interval_micro_usd
    assert low <= row.off_micro_usd <= high
    assert low >= -310 * DOLLAR  # the orders' total value
    assert high <= 310 * DOLLAR


def test_answers_are_counted_by_model_and_over_all():
    answers = [
        JudgedAnswer("j", "brf", "m", "t", 1, 1),
        JudgedAnswer("j", "brf", "m", "t", 1, 0),
        JudgedAnswer("j", "brf", "n", "t", 0, 1),
        JudgedAnswer("j", "brf", "n", "t", None, 1),
        JudgedAnswer("j", "brf", "n", "t", 0, None),
    ]
    rows = {row.model: row for row in answer_accuracy(answers, (0, 5))}
    assert list(rows) == [ALL, "m", "n"]
    assert (rows[ALL].same.n, rows[ALL].same.n_unscored) == (3, 2)
    assert rows[ALL].same.value == pytest.approx(1 / 3)
    assert (rows[ALL].n_yes_for_no, rows[ALL].n_no_for_yes, rows[ALL].rho) == (1, 1, None)
    assert rows["m"].mean_difference == 0.5
    assert rows["n"].mean_difference == -1


def test_graded_answers_have_an_order():
    rows = answer_accuracy(
        [JudgedAnswer("j", "cns", "m", "t", given, true) for given, true in ((5, 4), (3, 2), (2, 1), (4, 3))], (0, 5)
    )
    assert rows[0].rho.value == pytest.approx(1)
    assert rows[0].same.value == 0
    assert rows[0].mean_difference == 1
    assert (rows[0].n_yes_for_no, rows[0].n_no_for_yes) == (None, None)


def test_what_has_no_ground_truth_is_not_worth_nothing():
    """A model of which an image is missing, and one without any: the amounts are of the others, or unknown."""
    some, none = audit_revenue([*ROWS, paid("f", 320, None, None, None, model="nothing")])
    assert (some.n, some.n_unknown, some.value_micro_usd) == (5, 1, (10 + 20 + 40 + 80 + 160) * DOLLAR)
    assert (none.true_micro_usd, none.true_interval_micro_usd, none.value_micro_usd) == (None, None, 0)
    low, high = (end / DOLLAR for end in some.true_interval_micro_usd)
    total = SimpleNamespace(
        revenue_micro_usd=DOLLAR, revenue_interval_micro_usd=None, value_micro_usd=630 * DOLLAR, open_micro_usd=0
    )
    accounts = SimpleNamespace(settlements=[SimpleNamespace(model=name, total=total) for name in ("m", "nothing")])
    assert [line.partition("; ")[2] for line in earnings(accounts, SimpleNamespace(money=[some, none]))] == [
        f"by ground truth $210.00 (95 %: ${low:.2f} to ${high:.2f}) of the $310.00 of the images that have one",
        "no image has a ground truth",
    ]


def wilson(p, n, t):
    """(p + t^2 / 2n -+ t sqrt(p (1 - p) / n + t^2 / 4n^2)) / (1 + t^2 / n)"""
    middle, half = p + t * t / (2 * n), t * (p * (1 - p) / n + t * t / (4 * n * n)) ** 0.5
    return (middle - half) / (1 + t * t / n), (middle + half) / (1 + t * t / n)


def biased(rubric, pairs):
    """The interval of a judge's answers to one point of each task."""
    answers = [JudgedAnswer("j", rubric, "m", str(i), *pair) for i, pair in enumerate(pairs)]
    return answer_accuracy(answers, (0, 5))[0]


def test_the_bias_of_a_judge_is_on_its_scale_and_its_interval_ends_at_what_is_possible():
    """Two tasks, differences 1 and 0 on a scale from -1 to 1: shares of 1 and 1 / 2, with the mean 3 / 4 and the
    standard error 1 / 4, so that n = (3 / 16) / (1 / 16) = 3, and t of one degree of freedom is 12.706."""
    met = biased("brf", [(1, 0), (1, 1)])
    low, high = wilson(3 / 4, 3, 12.7062)
    assert (met.mean_difference, met.interval) == (0.5, pytest.approx((2 * low - 1, 2 * high - 1), rel=1e-4))
    assert met.interval[1] < 1
    points = biased("cns", [(5, 1), (5, 5)])  # 4 and 0 of at most 5: shares of 0.9 and 0.5, mean 0.7, error 0.2
    low, high = wilson(0.7, 0.7 * 0.3 / 0.2**2, 12.7062)
    assert (points.mean_difference, points.interval) == (2, pytest.approx((10 * low - 5, 10 * high - 5), rel=1e-4))
    # ten tasks without the point, which the judge always finds met: 10 of 10, t of nine degrees of freedom 2.2622
    always = biased("brf", [(1, 0)] * 10)
    low, _ = wilson(1, 10, 2.2622)
    assert (always.mean_difference, always.interval) == (1, pytest.approx((2 * low - 1, 1), rel=1e-4))
