import numpy as np
import pytest
from scipy import stats

from local_bench.settle.intervals import exact_sums, percentile, resampled_counts, task_sums


def ratio(sums):
    return sums[..., 0] / sums[..., 1]


def test_percentiles_are_those_of_scipy():
    """Of the same resamples; scipy interpolates between two of them, and we take the outer one."""
    values = np.random.default_rng(3).gamma(1.5, 2.0, 40)
    sums = np.stack([values, np.ones(40)], axis=1)
    own = percentile(sums, ratio, n_resamples=9999, seed=5)
    theirs = stats.bootstrap((values,), np.mean, n_resamples=9999, method="percentile", random_state=1)
    assert own == pytest.approx(tuple(theirs.confidence_interval), rel=0.03)
    means = np.concatenate([counts @ values for counts in resampled_counts(40, 9999, 5)]) / 40
    assert all(min(abs(means - end)) < 1e-12 for end in own)


def test_it_is_seeded_and_does_not_depend_on_the_chunk_size(monkeypatch):
    table = np.column_stack([np.arange(50.0), np.ones(50)])
    drawn = percentile(table, ratio, n_resamples=300, seed=4)
    assert drawn == percentile(table, ratio, n_resamples=300, seed=4)
    assert drawn != percentile(table, ratio, n_resamples=300, seed=5)
    monkeypatch.setattr("local_bench.settle.intervals._CHUNK_BYTES", 8 * 50 * 7)
    assert drawn == percentile(table, ratio, n_resamples=300, seed=4)
    assert {float(counts.sum(axis=1).max()) for counts in resampled_counts(50, 300, 4)} == {50}


def test_micro_dollars_stay_exact():
    sums = task_sums([0, 2, 0], [[4_000_000_000_000_001, 1], [3, 1], [2_000_000_000_000_002, 1]], 3)
    assert sums.tolist() == [[6_000_000_000_000_003, 2], [0, 0], [3, 1]]
    assert task_sums([], np.empty((0, 2)), 2).tolist() == [[0, 0], [0, 0]]


def test_undefined_intervals_are_none():
    assert percentile(np.ones((1, 2)), ratio) is None
    assert percentile(np.column_stack([[0.0] * 4, [0.0] * 4]), ratio) is None
    often = percentile(np.column_stack([[1.0, 1, 1, 0], [1.0] * 4]), ratio)
    assert often == (0.25, 1)
    seldom = np.eye(10)
    assert percentile(2 * seldom, lambda s: np.where(s[..., 0] * s[..., 1] == 0, np.nan, 1.0)) is None


def test_the_order_of_tasks_changes_no_bit_of_a_sum():
    """As processors differ in the order in which their BLAS adds."""
    draw = np.random.default_rng(0)
    table = np.column_stack([draw.uniform(0, 5, 3001), draw.normal(size=3001) * 1e-9, np.zeros(3001)])
    order = draw.permutation(3001)
    counts = next(resampled_counts(3001, 20))
    sums = exact_sums(table)(counts)
    assert (exact_sums(table[order])(counts[:, order]) == sums).all()
    assert ((counts[:, order] @ table[order]) != (counts @ table)).any()
    assert sums == pytest.approx(counts @ table, rel=1e-12, abs=1e-18)
    assert (exact_sums(np.rint(table))(counts) == counts @ np.rint(table)).all()
    assert exact_sums(np.ones((0, 2)))(np.ones((1, 0))).tolist() == [[0, 0]]
