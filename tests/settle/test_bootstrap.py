import numpy as np
import pytest
from scipy import stats

from local_bench.settle.bootstrap import (
    NOTHING_BELOW,
    SELDOM_DEFINED,
    TOO_FEW_TASKS,
    bootstrap,
    ends,
    ratio_intervals,
    resampled_sums,
    resampled_tables,
    task_sums,
)
from local_bench.settle.intervals import bootstrap_mean, clustered_se, wilson, wilson_clustered


def sum_interval(values, **how):
    (found,) = bootstrap(np.asarray(values, float)[:, None], lambda sums: sums, **how)
    return found


def rates(rng, n_simulations, n_tasks, rate=0.4):
    """Accepted and requested by task (tasks, simulations): one to four correlated images a task; the mean is
    `rate`, because the task's own rate does not depend on how many images it has."""
    requested = rng.integers(1, 5, (n_tasks, n_simulations))
    own = rng.beta(2 * rate, 2 * (1 - rate), (n_tasks, n_simulations))
    return rng.binomial(requested, own), requested


@pytest.mark.parametrize("method", ["percentile", "bca"])
def test_the_interval_of_a_rate_has_its_nominal_coverage(method):
    """1,000 simulations: at 95 % the count of covered ones has a standard deviation of 0.7 points, so that 93 to 97 %
    are 2.9 of these from the nominal level. They share the resamples, which is what a seed does; so there are many."""
    accepted, requested = rates(np.random.default_rng(7), 1000, 150)
    found = ratio_intervals(accepted, requested, method=method, n_resamples=5000)
    covered = np.mean([interval.low <= 0.4 <= interval.high for interval in found])
    assert 0.93 <= covered <= 0.97
    assert {interval.method for interval in found} == {method}


def test_correlated_images_do_not_count_as_independent_orders():
    """The negative control: the same rows, resampled by image, are far too sure."""
    rng = np.random.default_rng(8)
    own = rng.beta(0.4, 0.6, (60, 1000))
    accepted = rng.binomial(1, np.repeat(own, 4, axis=0))
    found = ratio_intervals(accepted, np.ones_like(accepted), n_resamples=1000)
    assert np.mean([interval.low <= 0.4 <= interval.high for interval in found]) < 0.85


def test_percentile_and_bca_are_those_of_scipy():
    """Of the same resamples; scipy interpolates between two of them, and we take the outer one."""
    values = np.random.default_rng(3).gamma(1.5, 2.0, 40)
    means = np.sort(resampled_sums(values[:, None], 9999, 5)[:, 0] / 40)
    for method, name in (("percentile", "percentile"), ("bca", "BCa")):
        (own,) = ratio_intervals(values, np.ones(40), method=method, n_resamples=9999, seed=5)
        theirs = stats.bootstrap((values,), np.mean, n_resamples=9999, method=name, random_state=1)
        assert own.estimate == pytest.approx(values.mean())
        assert own.low == pytest.approx(theirs.confidence_interval.low, rel=0.03)
        assert own.high == pytest.approx(theirs.confidence_interval.high, rel=0.03)
        assert min(abs(means - own.low)) < 1e-12
        assert min(abs(means - own.high)) < 1e-12


def test_bca_is_asymmetric_for_skewed_data():
    values = np.random.default_rng(3).lognormal(0, 1.2, 40)
    plain = sum_interval(values, n_resamples=4000)
    leaning = sum_interval(values, method="bca", n_resamples=4000)
    assert leaning.low > plain.low
    assert leaning.high > plain.high


def test_bca_by_hand():
    """Efron 1987, eq. 6.8, with the jackknife's acceleration, written out for one figure."""
    values = np.array([1.0, 2.0, 3.0, 10.0, 40.0])
    drawn = np.sort(resampled_sums(values[:, None], 2000, 0)[:, 0])
    bias = stats.norm.ppf((np.sum(drawn < 56) + np.sum(drawn == 56) / 2) / 2000)
    jack = np.array([56 - v for v in values])
    a = np.sum((jack.mean() - jack) ** 3) / (6 * np.sum((jack.mean() - jack) ** 2) ** 1.5)
    tails = [stats.norm.cdf(bias + (bias + z) / (1 - a * (bias + z))) for z in stats.norm.ppf([0.025, 0.975])]
    found = sum_interval(values, method="bca", n_resamples=2000)
    assert (found.low, found.high) == ends(drawn, *tails)
    assert found.low > drawn[50]


def test_columns_are_independent_and_seeded():
    rng = np.random.default_rng(0)
    table = rng.random((30, 6))
    together = bootstrap(table, lambda sums: sums)
    alone = [sum_interval(column) for column in table.T]
    for one, other in zip(together, alone, strict=True):
        assert one.low == pytest.approx(other.low, rel=1e-12)
        assert one.high == pytest.approx(other.high, rel=1e-12)
    assert together == bootstrap(table, lambda sums: sums)
    assert together != bootstrap(table, lambda sums: sums, seed=1)


def test_resamples_do_not_depend_on_the_chunk_size(monkeypatch):
    table = np.column_stack([np.ones(50), np.arange(50)])
    drawn = resampled_sums(table, 300, 4)
    assert (drawn[:, 0] == 50).all()
    assert len(set(drawn[:, 1])) > 100
    monkeypatch.setattr("local_bench.settle.bootstrap._CHUNK_BYTES", 8 * 50 * 7)
    assert (resampled_sums(table, 300, 4) == drawn).all()


def test_micro_dollars_stay_exact():
    sums = task_sums([0, 2, 0], [[4_000_000_000_000_001, 1], [3, 1], [2_000_000_000_000_002, 1]], 3)
    assert sums.tolist() == [[6_000_000_000_000_003, 2], [0, 0], [3, 1]]


def test_undefined_intervals_have_a_reason():
    one = sum_interval([5.0])
    assert (one.estimate, one.low, one.high, one.undefined) == (5, None, None, TOO_FEW_TASKS)
    nothing, seldom, often = ratio_intervals(
        np.column_stack([[0, 0, 0, 0], [1, 0, 0, 0], [1, 1, 1, 0]]), np.column_stack([[0] * 4, [1, 0, 0, 0], [1] * 4])
    )
    assert (nothing.estimate, nothing.undefined, nothing.n_undefined) == (None, NOTHING_BELOW, 1000)
    assert seldom.estimate == 1
    assert seldom.n_undefined == pytest.approx(1000 * 0.75**4, abs=60)
    assert (often.n_undefined, often.low, often.high) == (0, 0.25, 1)
    (rare,) = ratio_intervals([1, *[0] * 9], [1, *[0] * 9], n_resamples=200)
    assert rare.low == 1, "with ten tasks two of three resamples have the one that counts"
    few = bootstrap(np.eye(10), lambda sums: np.where(sums[..., :1] < 2, np.nan, 1) * np.ones(1))
    assert few[0].estimate is None
    assert bootstrap(2 * np.eye(10), lambda s: np.where(s[..., :1] * s[..., 1:2] == 0, np.nan, 1.0))[0].undefined == (
        SELDOM_DEFINED
    )


def test_bca_without_a_correction_is_named_percentile():
    (all_pass,) = ratio_intervals(np.ones(20), np.ones(20), method="bca")
    assert (all_pass.estimate, all_pass.low, all_pass.high, all_pass.method) == (1, 1, 1, "percentile")


def test_the_clustered_error_of_one_image_a_task_is_that_of_the_mean():
    values = np.random.default_rng(2).normal(3, 2, 50)[:, None]
    assert clustered_se(values, np.ones((50, 1)))[0] == pytest.approx(stats.sem(values[:, 0]))


def test_the_clustered_error_equals_the_bootstrap_and_the_true_error():
    accepted, requested = rates(np.random.default_rng(5), 1000, 150)
    errors = clustered_se(accepted.astype(float), requested.astype(float))
    truth = (accepted.sum(axis=0) / requested.sum(axis=0)).std()
    assert errors.mean() == pytest.approx(truth, rel=0.07), "a standard deviation of 1,000 is known to 2.2 %"
    naive = np.sqrt(0.4 * 0.6 / requested.sum(axis=0)).mean()
    assert errors.mean() > 1.2 * naive
    assert np.isnan(clustered_se(np.ones((1, 1)), np.ones((1, 1))))[0]


def test_wilson_for_tasks_is_wilson_for_independent_images():
    rng = np.random.default_rng(9)
    accepted = rng.binomial(1, 0.3, 400)
    low, high = wilson_clustered(accepted, np.ones(400))
    assert (low, high) == pytest.approx(wilson(int(accepted.sum()), 400), abs=2e-4)
    twice = wilson_clustered(2 * accepted, 2 * np.ones(400))
    assert twice == pytest.approx((low, high), abs=1e-9), "an order's second image that says the same adds nothing"
    assert wilson_clustered([3, 2, 4], [3, 2, 4]) == wilson(3, 3), "three orders, not nine images"
    assert wilson_clustered([], []) == (0, 1)


def test_wilson_for_tasks_covers_a_rate_near_its_edge():
    """At 3 % with 40 tasks of three images; the plain one, which counts images, does not."""
    rng = np.random.default_rng(11)
    own = rng.beta(0.03, 0.97, (40, 1000))
    accepted = rng.binomial(3, own)
    by_task = [wilson_clustered(column, [3] * 40) for column in accepted.T]
    by_image = [wilson(int(column.sum()), 120) for column in accepted.T]
    assert np.mean([low <= 0.03 <= high for low, high in by_task]) > 0.92
    assert np.mean([low <= 0.03 <= high for low, high in by_image]) < 0.9


def test_the_mean_s_old_interval_is_the_same_bootstrap():
    groups = [[1.0, 2.0], [4.0], [0.5, 0.5, 3.0], [2.0]]
    (found,) = ratio_intervals([3, 4, 4, 2], [2, 1, 3, 1], n_resamples=2000)
    assert bootstrap_mean(groups) == (found.low, found.high)


def test_tasks_with_equal_sums_are_drawn_by_their_number_with_the_same_distribution(monkeypatch):
    rng = np.random.default_rng(1)
    sums = np.column_stack([rng.integers(0, 2, 900) * 5e6, rng.integers(1, 4, 900) * 5e6])
    by_task = np.sort(resampled_sums(sums, 20_000), axis=0)
    monkeypatch.setattr("local_bench.settle.bootstrap._MANY_TASKS", 0)
    drawn = resampled_sums(sums, 20_000)
    assert (drawn == resampled_sums(sums, 20_000)).all()
    assert (drawn % 5e6 == 0).all()
    expected = len(sums) * np.cov(sums.T, ddof=0)
    assert np.cov(drawn.T) == pytest.approx(expected, abs=0.05 * expected.diagonal().min())
    by_kind = np.sort(drawn, axis=0)
    deviation = by_task.std(axis=0)
    for quantile in (0.025, 0.5, 0.975):
        at = int(quantile * 20_000)
        assert by_kind[at] == pytest.approx(by_task[at], abs=0.1 * deviation.max())


@pytest.mark.parametrize("many", [0, 10_000])
def test_draws_for_a_table_do_not_depend_on_other_tables_and_chunks(monkeypatch, many):
    monkeypatch.setattr("local_bench.settle.bootstrap._MANY_TASKS", many)
    rng = np.random.default_rng(2)
    few, more = rng.integers(0, 2, (300, 2)) * 1.0, rng.random((300, 3))
    together = resampled_tables([few, more, few * 2], 500, 3, stacked=True)
    alone = resampled_tables([few, more, few * 2], 500, 3)
    assert (alone[1] == resampled_sums(more, 500, 3)).all()
    assert (together[0] == resampled_sums(few, 500, 3)).all()
    assert together[1] == pytest.approx(resampled_sums(more, 500, 3), rel=1e-12)
    assert (together[2] == 2 * together[0]).all()
    monkeypatch.setattr("local_bench.settle.bootstrap._CHUNK_BYTES", 8 * 300 * 7)
    assert (resampled_sums(few, 500, 3) == together[0]).all()
