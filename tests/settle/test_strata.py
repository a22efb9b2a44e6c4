"""The interval of a score over fixed tasks, and the values of IDEA-Bench's cases and ICE-Bench's items in it."""

import numpy as np
import pytest
from scipy import stats

from local_bench.settle.intervals import stratified_interval
from local_bench.suites.ice_bench.scoring import composite, item_scores, needed
from local_bench.suites.idea_bench.published import NO, UNSCORED, YES, interval, subtask

RNG = np.random.default_rng(0)
TASKS = [(w, RNG.normal(3, s, n).tolist()) for w, s, n in ((0.5, 1, 4), (0.3, 2, 9), (0.2, 0.5, 2))]


def error_and_df(tasks):
    parts = [(w**2 * np.var(x, ddof=1) / len(x), len(x) - 1) for w, x in tasks]
    whole = sum(v for v, _ in parts)
    return whole**0.5, whole**2 / sum(v**2 / n for v, n in parts)


def test_it_is_t_with_satterthwaites_degrees_of_freedom_on_a_bounded_scale_wilsons_or_none():
    error, df = error_and_df(TASKS)
    score = sum(w * np.mean(x) for w, x in TASKS)
    half = stats.t.ppf(0.975, df) * error
    assert stratified_interval(TASKS) == pytest.approx((score - half, score + half))
    (_, values) = TASKS[1]
    alone = stats.t.interval(0.95, 8, np.mean(values), stats.sem(values))
    assert stratified_interval([(1, values)]) == pytest.approx(alone), "one task has the t interval of its cases"
    tasks = [(w, np.clip(x, 0, 5).tolist()) for w, x in TASKS]
    (error, df), p = error_and_df(tasks), sum(w * np.mean(x) for w, x in tasks) / 5
    n, t = p * (1 - p) * 25 / error**2, stats.t.ppf(0.975, df)
    for end in stratified_interval(tasks, 5):
        assert n * (end / 5 - p) ** 2 == pytest.approx(t**2 * end / 5 * (1 - end / 5))
    low, high = stratified_interval([(0.5, [100, 100]), (0.5, [100, 100, 100])], 100)
    cases = 1 / (2 * 0.25**2 + 3 * (0.5 / 3) ** 2)
    assert (low, high) == (pytest.approx(100 / (1 + stats.t.ppf(0.975, 3) ** 2 / cases)), pytest.approx(100))
    assert stratified_interval([]) is stratified_interval([(1, [])]) is None
    assert stratified_interval([(0.5, [1, 2]), (0.5, [1])], 5) is None, "a task with one case"
    assert stratified_interval([(1, [3, 3, 3])]) is None
    assert stratified_interval([(1, [3, 3, 3])], 5) is not None


def test_the_order_of_tasks_and_cases_does_not_matter():
    first = stratified_interval(TASKS), stratified_interval(TASKS, 10)
    for seed in range(5):
        rng = np.random.default_rng(seed)
        mixed = [(TASKS[i][0], rng.permutation(TASKS[i][1]).tolist()) for i in rng.permutation(3)]
        assert (stratified_interval(mixed), stratified_interval(mixed, 10)) == first


def test_a_subtask_has_the_scores_of_its_cases():
    answers = np.full((3, 3, 6), YES, dtype=np.int8)
    answers[1] = NO
    answers[2, :, 2] = UNSCORED
    of = subtask(answers)
    assert of.cases == (100, 0, 50)
    assert (of.low, of.n_cases) == (50, 3)
    low, high = interval([[of], []], 2)
    assert 0 <= low < 25 < high <= 50, "an absent category counts 0"
    assert interval([[of], [subtask(answers[:1])]], 2) is None


def test_the_scores_of_items_have_the_composite_and_the_variance_of_the_means():
    task = "Color Editing"
    names = needed(task)
    items = [dict(zip(names, RNG.random(len(names)).tolist(), strict=True)) for _ in range(12)]
    assert item_scores(task, items) == pytest.approx([composite(task, item) for item in items])
    for i, name in ((0, "vllmqa"), (3, "vllmqa"), (3, "l1_raw")):
        del items[i][name]
    means = {name: np.mean([item[name] for item in items if name in item]) for name in names}
    assert np.mean(item_scores(task, items)) == pytest.approx(composite(task, means))
    # if the composite varies only by one metric, the interval is that metric's
    values = RNG.random(20).tolist()
    constant = dict.fromkeys(needed(task), 0.5)
    of = [constant | {"vllmqa": value} for value in values]
    without = {name: value for name, value in constant.items() if name != "vllmqa"}
    spread = np.std(item_scores(task, [*of, *[without] * 20]))
    assert spread / 40**0.5 == pytest.approx(0.3 * 0.5 * np.std(values) / 20**0.5)
