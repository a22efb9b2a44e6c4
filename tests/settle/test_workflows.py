from fractions import Fraction as F

import numpy as np

from local_bench.settle.attempts import (
    FAIL,
    MISSING,
    PASS,
    UNSCORED,
    best_of,
    count_attempts,
    pass_at_k_unbiased,
    retry_until_pass,
    revised_once,
    single_shot,
)

NAN = float("nan")


def table(*rows):
    outcomes = {"P": PASS, "F": FAIL, "?": UNSCORED, " ": MISSING}
    return np.array([[outcomes[letter] for letter in row] for row in rows], dtype=np.int8)


def test_open_attempts_pass_in_the_upper_bound_only_and_too_few_have_no_estimate():
    outcomes = table("?F", "F ", "FF")
    assert (single_shot(outcomes).n_passed, single_shot(outcomes).n_passed_high) == (0, 1)
    assert (retry_until_pass(outcomes).n_passed, retry_until_pass(outcomes).n_passed_high) == (0, 2)
    unjudged = best_of(table("PF", "FF"), np.full((2, 2), NAN), 2)
    assert (unjudged.n_passed, unjudged.n_passed_high) == (0, 1), "nothing was picked, so nothing is known"
    assert best_of(table("PF"), np.array([[NAN, 1.0]]), 2).n_passed == 0, "an attempt without a score is not picked"
    assert [best_of(table(row), np.array([[1.0, 1.0]]), 2).n_passed for row in ("PF", "FP")] == [1, 0]
    sums = np.array([[5 + 19 / 6 + 5, 5 + 25 / 6 + 4]])
    assert sums[0, 0] < sums[0, 1]
    assert [best_of(table(row), sums, 2).n_passed for row in ("PF", "FP")] == [1, 0], "both are 79/6"
    assert pass_at_k_unbiased(3, 1, 4) is None
    assert count_attempts(table("PFF")).shown.pass_at_unbiased(4) is None


def test_images_that_were_not_made_have_no_cost_and_no_review():
    outcomes = table(" P", "FF", "P ", "  ", "? ")
    shot, tries = single_shot(outcomes), retry_until_pass(outcomes)
    assert (shot.n_images, shot.n_reviews) == (3, 3)
    assert (tries.n_images, tries.n_reviews) == (1 + 2 + 1 + 0 + 1,) * 2
    pick = best_of(outcomes, np.array([[NAN, 1], [1, 2], [1, NAN], [NAN, NAN], [1, NAN]]), 2)
    assert (pick.n_images, pick.n_reviews) == (1 + 2 + 1 + 0 + 1, 4)
    assert [way.n_passed for way in (shot, tries, pick)] == [1, 2, 2]
    assert [way.n_passed_high for way in (shot, tries, pick)] == [4, 4, 4], "missing ones may have passed"
    revised = revised_once(table("F", "F", " ", "P")[:, 0], table("P", " ", " ", " ")[:, 0], "e")
    assert (revised.n_images, revised.n_reviews, revised.n_passed) == (3 + 1, 3 + 1, 2)
    assert shot.cost_usd(F("0.1"), F("0.5")) == F("1.8")


def test_three_workflows_on_the_same_attempts():
    outcomes = table("PFFF", "FFPP", "FFFF")
    shot, tries = single_shot(outcomes), retry_until_pass(outcomes)
    assert (shot.n_passed, shot.n_images, shot.n_reviews) == (1, 3, 3)
    assert (tries.n_passed, tries.n_images, tries.n_reviews) == (2, 1 + 3 + 4, 1 + 3 + 4)
    scores = np.array([[1, 2, 0, 0], [0, 1, 3, 3], [1, 1, 1, 1]], dtype=float)
    pick = best_of(outcomes, scores, 4)
    assert (pick.n_passed, pick.n_images, pick.n_reviews) == (1, 12, 3), "it takes the 2 of the first task, which fails"
    assert best_of(outcomes, scores, 1).n_passed == shot.n_passed
    assert pick.usd_per_success(F("0.1"), F("0.5")) == F("2.7")
    assert shot.usd_per_success(F("0.1"), F("0.5")) == F("1.8")
    assert retry_until_pass(table("FF")).usd_per_success(F(1), F(1)) is None
