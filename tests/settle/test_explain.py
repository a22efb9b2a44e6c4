from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from local_bench.core.types import Score
from local_bench.settle.agreement import panel_mean
from local_bench.settle.discrimination import auc, brier, by_bin, ece, ece_if_calibrated, quality
from local_bench.settle.explain import (
    acceptance_by_score,
    auc_interval,
    cohens_d,
    composite,
    explained,
    failures,
    hedges_g,
)
from local_bench.settle.features import feature_table

NA = Score("x", None, applies=False)
GAP = Score("x", None, "cut off")


def table(rows, names=("brf", "clarity", "cns"), categories=None, tasks=None):
    """Rows of numbers, NA or GAP."""
    images = [
        [
            replace(x, name=name) if isinstance(x, Score) else Score(name, float(x))
            for name, x in zip(names, row, strict=True)
        ]
        for row in rows
    ]
    n = len(rows)
    return feature_table(images, categories or ["Digital"] * n, [1] * n, tasks or [str(i) for i in range(n)], names)


def test_brier_and_calibration_by_hand():
    p, accepted = np.array([0.1, 0.1, 0.8, 0.8, 1.0]), np.array([False, True, True, True, True])
    assert brier(p, accepted) == pytest.approx((0.01 + 0.81 + 0.04 + 0.04) / 5)
    bins = by_bin(p, accepted, np.linspace(0, 1, 11))
    assert [b.n for b in bins] == [0, 2, 0, 0, 0, 0, 0, 0, 2, 1]
    assert ece(bins) == pytest.approx((2 * 0.4 + 2 * 0.2 + 0) / 5)
    found = quality(p, accepted, np.array([0, 0, 1, 1, 2]))
    assert (found.n, found.n_tasks, found.accuracy, found.base_rate) == (5, 3, 0.8, 0.8)


def test_the_edges_of_the_ten_bins_are_decimals_and_separate_what_is_calibrated():
    """0.0, 0.1, … 1.0 are each the lower end of their bin; the last bin has 0.9 and 1.0."""
    p = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
    found = quality(p, np.ones(11, dtype=bool), np.arange(11))
    assert [b.low for b in found.bins] == [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9]
    assert [b.high for b in found.bins] == [0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0]
    assert [b.n for b in found.bins] == [1] * 9 + [2]
    assert [b.mean for b in found.bins[:9]] == p[:9].tolist()
    # 0.25 is too low by 0.25 (half are accepted), 0.3 too high by 0.3 (none is): together they would be too high by
    # 0.0250 only
    found = quality(np.array([0.25, 0.25, 0.3, 0.3]), np.array([True, False, False, False]), np.arange(4))
    assert found.ece == pytest.approx((2 * 0.25 + 2 * 0.3) / 4)
    one = ece_if_calibrated(np.array([0.25, 0.3]), n_draws=20_000)
    # |y - p| of each of two bins has the mean 2 p (1 - p)
    assert one == pytest.approx((2 * 0.25 * 0.75 + 2 * 0.3 * 0.7) / 2, abs=0.005)


def test_every_score_and_the_composite_are_compared_with_labels():
    rng = np.random.default_rng(1)
    rows = [[x, rng.uniform(0, 5), NA if i % 3 else rng.uniform(0, 5)] for i, x in enumerate(rng.uniform(0, 5, 200))]
    rows[0][0] = GAP
    labels = np.array([float(row[0] > 3) if row[0] is not GAP else 1.0 for row in rows])
    labels[10:15] = np.nan
    brf, clarity, cns, together = explained(table(rows), labels)
    assert [x.name for x in (brf, clarity, cns, together)] == ["brf", "clarity", "cns", "composite"]
    assert (brf.auc, brf.pr_auc) == pytest.approx((1, 1))
    assert (brf.n, brf.n_unscored, brf.n_not_applicable, brf.n_unlabelled) == (194, 1, 0, 5)
    assert (cns.n, cns.n_not_applicable) == (66, 129)
    assert together.n == 194
    assert clarity.auc_low < 0.5 < clarity.auc_high
    known = ~np.isnan(labels)
    of_clarity = table(rows).scores[known, 1]
    assert clarity.spearman.value == pytest.approx(stats.spearmanr(of_clarity, labels[known]).statistic)
    assert clarity.base_rate == pytest.approx(labels[known].mean())


def test_labels_of_one_class_explain_nothing():
    brf, *_ = explained(table([[1, 2, 3], [2, 3, 4]]), [1, 1])
    assert (brf.auc, brf.auc_low, brf.pr_auc, brf.spearman.value, brf.n) == (None, None, None, None, 2)
    nobody, *_ = explained(table([[1, 2, 3]]), [np.nan])
    assert (nobody.n, nobody.base_rate, nobody.n_unlabelled) == (0, None, 1)


def test_the_interval_of_an_auc_has_its_coverage_with_correlated_images():
    """150 simulations of 60 orders with four like images, of an AUC that is Phi(1 / sqrt 2): 95 % less at most three
    times 1.8 points, and as if the images were orders far less."""
    rng = np.random.default_rng(3)
    truth = stats.norm.cdf(1 / 2**0.5)
    covered, sure = [], []
    for _ in range(150):
        accepted = rng.random(60) < 0.5
        numbers = np.repeat(rng.normal(accepted.astype(float), 1), 4)
        paid, tasks = np.repeat(accepted, 4), np.repeat(np.arange(60), 4)
        low, high = auc_interval(numbers, paid, tasks)
        covered.append(low <= truth <= high)
        if len(sure) < 50:
            low, high = auc_interval(numbers, paid, np.arange(240))
            sure.append(low <= truth <= high)
    assert np.mean(covered) >= 0.95 - 3 * 0.018
    assert np.mean(sure) < 0.8


def test_the_resampled_auc_is_the_auc_of_the_resampled_rows(monkeypatch):
    """Of a resample with every second task twice; the tasks keep their numbers here."""
    rng = np.random.default_rng(4)
    tasks = np.repeat(np.arange(30), 2)
    numbers, accepted = np.repeat(np.arange(30.0), 2), rng.random(60) < 0.4
    count = np.where(np.arange(30) % 2, 1.0, 2.0)
    drawn = []
    monkeypatch.setattr("local_bench.settle.explain.by_content", lambda tasks, *_: (np.arange(60), tasks))
    monkeypatch.setattr(
        "local_bench.settle.explain.resampled_counts", lambda *of: drawn.append(of) or [np.tile(count, (1000, 1))]
    )
    rows = np.repeat(np.arange(60), count[tasks].astype(int))
    expected = auc(numbers[rows], accepted[rows])
    assert auc_interval(numbers, accepted, tasks) == pytest.approx((expected, expected))
    assert drawn == [(30, 1000, 0)]


def test_no_auc_interval_of_few_tasks_and_none_that_depends_on_the_order_of_rows():
    rng = np.random.default_rng(5)
    tasks, accepted = np.repeat(np.arange(30), 3), rng.random(90) < 0.4
    numbers = rng.integers(0, 5, 90) + accepted
    few = tasks < 29
    assert auc_interval(numbers[few], accepted[few], tasks[few]) is None
    shuffled, names = rng.permutation(90), rng.permutation(30)
    whole = auc_interval(numbers, accepted, tasks)
    assert whole == auc_interval(numbers[shuffled], accepted[shuffled], names[tasks][shuffled])
    assert whole[0] < auc(numbers, accepted) < whole[1]


def test_composites_are_equal_whatever_the_last_digits_of_their_sums():
    found = composite(table([[0, 13 / 6, 2], [0, 7 / 6, 3], [0, 13 / 6, 4], [0, 7 / 6, 5]]))
    assert found[0] == found[1]
    assert found[2] == found[3]
    panel = [panel_mean([1, 4 / 3]), panel_mean([7 / 6, 7 / 6]), 1, 5]
    assert panel[0] != panel[1]
    brf, *_ = explained(table([[x, 0, NA] for x in panel]), [0, 1, 0, 1])
    assert (brf.auc, brf.spearman.value) == (0.875, pytest.approx(0.5**0.5))
    dominant = failures(table([[panel[0], panel[1], NA], [panel[1], panel[0], NA]]), [0, 0])
    assert (dominant.n_tied, [row.share for row in dominant.rows]) == (2, [1, 0, 0])


def test_the_composite_needs_every_score_that_applies():
    found = composite(table([[1, 2, NA], [1, 2, 6], [1, GAP, 6], [NA, NA, NA]]))
    assert found[:2].tolist() == [1.5, 3]
    assert np.isnan(found[2:]).all()


def test_acceptance_by_score():
    found = acceptance_by_score(table([[0, 0, 0], [5, 5, 5], [4, 4, 4.5], [1, 1, GAP]]), [0, 1, 0, 1], bins=5)
    assert [(b.low, b.n, b.rate) for b in found] == [
        *((0, 1, 0), (1, 0, None), (2, 0, None), (3, 0, None), (4, 2, 0.5))
    ]
    alone = acceptance_by_score(table([[0, 2, 0], [5, 2, 5]]), [0, 1], "clarity", bins=5)
    assert [(b.n, b.rate) for b in alone] == [(0, None), (0, None), (2, 0.5), (0, None), (0, None)]


ROWS = [[2, 5, 5], [4, 4, 5], [5, 5, 1], [3, 3, 3], [5, 4, NA], [GAP, 3, 4], [NA, 4, 3], [1, 1, 1]]
LABELS = [0, 0, 0, 0, 1, 0, 0, np.nan]
WHERE = ["Digital", "Digital", "Product", "Product", "Digital", "Digital", "Product", "Product"]


def test_failures_by_hand():
    """Rejected: brf; brf and clarity tied; cns; all tied; open; cns. The fifth is accepted, the last not labelled."""
    found = failures(table(ROWS, categories=WHERE), LABELS)
    assert (found.n_rejected, found.n_tied, found.n_unscored, found.n_unlabelled) == (6, 2, 1, 1)
    assert [row.share for row in found.rows] == pytest.approx([3 / 5, 0, 2 / 5])
    assert [row.at_least for row in found.rows] == pytest.approx([3 / 6, 0, 2 / 6])
    assert [row.at_most for row in found.rows] == pytest.approx([4 / 6, 1 / 6, 2 / 6]), "open between brf and clarity"
    assert found.rows[0].by_category == {"Digital": 1, "Product": pytest.approx(1 / 3)}
    assert found.rows[1].mean_accepted == 4
    assert found.rows[1].mean_rejected == pytest.approx(np.mean([5, 4, 5, 3, 3, 4]))
    assert (found.rows[2].n_accepted, found.rows[2].mean_accepted, found.rows[2].cohens_d) == (0, None, None)
    assert (found.rows[0].n_accepted, found.rows[0].n_rejected) == (1, 4)


def test_tied_failures_count_for_the_first_and_none_has_no_shares():
    first = failures(table([row[::-1] for row in ROWS], ("cns", "clarity", "brf"), WHERE), LABELS)
    assert first.rows[0].share == pytest.approx(3 / 5), "the order of the columns decides"
    names = ("brf", "clarity", "realism", "aesthetic", "text", "cns")
    found = failures(table([[5, 4, 4, 4, NA, NA]], names), [0])
    assert [row.share for row in found.rows] == [0, 1, 0, 0, 0, 0]
    found = failures(table(ROWS), np.ones(8))
    assert found.n_rejected == 0
    assert [row.share for row in found.rows] == [None, None, None]


def test_cohens_d_and_hedges_g_by_hand():
    """Means 4 and 2, squares 2 and 8 over 2 + 3 degrees of freedom: pooled sd sqrt 2."""
    assert (hedges_g(1.0, 8), hedges_g(None, 8)) == (1 - 3 / 31, None)
    assert cohens_d(np.array([3.0, 4, 5]), np.array([0.0, 2, 2, 4])) == pytest.approx(2 / 2**0.5)
    assert cohens_d(np.array([1.0]), np.array([1.0])) is None
    assert cohens_d(np.array([1.0, 1]), np.array([2.0, 2])) is None
    assert cohens_d(np.array([0.7] * 3), np.array([2.0] * 3)) is None, "the mean of three times 0.7 is not exactly 0.7"


def test_auc_is_mann_and_whitneys():
    rng = np.random.default_rng(0)
    numbers, accepted = rng.integers(0, 6, 300).astype(float), rng.random(300) < 0.3
    u = stats.mannwhitneyu(numbers[accepted], numbers[~accepted]).statistic
    assert auc(numbers, accepted) == pytest.approx(u / (accepted.sum() * (~accepted).sum()), abs=1e-12)
