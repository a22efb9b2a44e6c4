"""The simulations' tolerances are four standard errors of what they average, or are given where they differ."""

import numpy as np
import pytest

from local_bench.settle.ppi import prediction_powered
from local_bench.settle.sampling import inclusion, plan_labels, systematic

N = 600


def world(rng, n_tasks=200, images=3, sharp=6.0):
    """Correlated images of orders: the orders' numbers, the decisions of people, a good judge's probabilities."""
    tasks = np.repeat(np.arange(n_tasks), images)
    wish = rng.normal(0, 1, n_tasks)[tasks] + rng.normal(0, 1, len(tasks))
    chance = 1 / (1 + np.exp(-sharp * wish / 2))
    return tasks, (rng.random(len(tasks)) < chance).astype(float), chance


def some(rng, labels, n):
    return np.where(np.isin(np.arange(len(labels)), rng.choice(len(labels), n, replace=False)), labels, np.nan)


def test_by_hand():
    """Four images, two labelled: the judge's mean is 0.6, the labels show that it is 0.3 too high; PPI 2023, eq. 1."""
    found = prediction_powered([0, 1, 2, 3], [0.9, 0.7, 0.4, 0.4], [1, 0, np.nan, np.nan], power=1.0)
    assert found.judge_alone == pytest.approx(0.6)
    assert found.estimate == pytest.approx(0.6 + ((1 - 0.9) + (0 - 0.7)) / 2)
    alone = prediction_powered([0, 1, 2, 3], [0.9, 0.7, 0.4, 0.4], [1, 0, np.nan, np.nan], power=0.0)
    assert alone.estimate == 0.5
    assert (found.n, found.n_labelled, found.n_unanswered, found.n_unpredicted) == (4, 2, 0, 0)
    tuned = prediction_powered([0, 1, 2, 3], [0.9, 0.7, 0.4, 0.4], [1, 0, np.nan, np.nan])
    assert tuned.low is None
    assert tuned.undefined == "too few of the sampled images have annotations"


def test_weights_and_chances_by_hand():
    """An image drawn with half the chance counts twice: 10 x 1 / 0.5 against 30 x 0 / 1, of the value 100."""
    found = prediction_powered(
        [0, 1, 2, 3], [0, 0, 0, 0], [1, 0, np.nan, np.nan], weights=[10, 30, 40, 20], probabilities=[0.5, 1, 0.5, 0.5]
    )
    assert found.estimate == pytest.approx(20 / 50)
    assert (found.weight, found.of_weight(found.estimate)) == (100, pytest.approx(40))


def test_complete_labels_leave_no_uncertainty():
    rng = np.random.default_rng(0)
    tasks, labels, judge = world(rng)
    found = prediction_powered(tasks, judge, labels)
    assert found.low == found.high == found.estimate == pytest.approx(labels.mean())
    like = prediction_powered(tasks, judge, labels, over="orders like these")
    assert like.estimate == pytest.approx(labels.mean())
    by_order = labels.reshape(200, 3).mean(axis=1)
    assert like.high - like.low == pytest.approx(2 * 1.972 * by_order.std(ddof=1) / 200**0.5, rel=1e-3)


@pytest.mark.parametrize("over", ["these orders", "orders like these"])
@pytest.mark.parametrize("judge_is", ["good", "biased", "noise", "against"])
def test_unbiased_and_covered_for_any_judge(over, judge_is):
    """1,000 simulations with 60 labels on 600 images. The interval is to cover in 95 %, give or take four times 0.7
    points; the mean error is to be nought within four standard errors."""
    rng = np.random.default_rng(5)
    errors, covered = [], []
    for _ in range(1000):
        tasks, labels, judge = world(rng)
        word = {
            "good": judge,
            "biased": np.minimum(1, judge + 0.3),
            "noise": rng.random(N),
            "against": 1 - judge,
        }[judge_is]
        truth = labels.mean() if over == "these orders" else 0.5
        found = prediction_powered(tasks, word, some(rng, labels, 60), over=over)
        errors.append(found.estimate - truth)
        covered.append(found.low <= truth <= found.high)
    assert abs(np.mean(errors)) < 4 * np.std(errors) / 1000**0.5
    assert 0.95 - 4 * 0.007 <= np.mean(covered) <= 0.95 + 4 * 0.007


def test_a_biased_judge_alone_is_far_off():
    rng = np.random.default_rng(5)
    tasks, labels, judge = world(rng)
    found = prediction_powered(tasks, np.minimum(1, judge + 0.3), some(rng, labels, 60))
    assert abs(found.judge_alone - labels.mean()) > 0.1
    assert found.low <= labels.mean() <= found.high


@pytest.mark.parametrize(("judge_is", "narrower"), [("good", (0.4, 0.7)), ("noise", (0.95, 1.05))])
def test_narrower_than_labels_alone_with_a_good_judge_and_no_wider_with_a_bad_one(judge_is, narrower):
    rng = np.random.default_rng(6)
    widths = []
    for _ in range(300):
        tasks, labels, judge = world(rng)
        word = judge if judge_is == "good" else rng.random(N)
        given = some(rng, labels, 60)
        powered, alone = (prediction_powered(tasks, word, given, power=power) for power in (None, 0.0))
        widths.append((powered.high - powered.low) / (alone.high - alone.low))
    assert narrower[0] < np.mean(widths) < narrower[1]


def test_orders_as_the_sampling_unit():
    """30 of 200 orders with all three images: as many labels carry less information, and taking them for 90 that were
    drawn one by one covers too seldom."""
    rng = np.random.default_rng(9)
    hit = {"orders": [], "images": []}
    for _ in range(600):
        tasks, labels, _ = world(rng, sharp=50)
        labels = np.repeat(labels.reshape(200, 3)[:, :1], 3, axis=1).ravel()  # an order's images share a decision
        chosen = np.isin(tasks, rng.choice(200, 30, replace=False))
        for drawn, covered in hit.items():
            found = prediction_powered(tasks, np.full(N, 0.5), np.where(chosen, labels, np.nan), drawn=drawn)
            covered.append(found.low <= labels.mean() <= found.high)
    assert 0.95 - 4 * 0.009 <= np.mean(hit["orders"]) <= 0.95 + 4 * 0.009
    assert np.mean(hit["images"]) < 0.8


def test_a_revenue_with_unequal_chances_is_unbiased_and_covered():
    """The planner's own draws, on orders of very different prices and with a judge that is too kind."""
    rng = np.random.default_rng(12)
    errors, covered = [], []
    for seed in range(500):
        tasks, labels, judge = world(rng)
        price = rng.lognormal(5, 1, 200)[tasks]
        kind = judge**0.5
        plan = plan_labels(kind, 0.15, weights=price, seed=seed)
        given = np.where(np.isin(np.arange(N), plan.images), labels, np.nan)
        found = prediction_powered(tasks, kind, given, weights=price, probabilities=plan.probabilities)
        truth = labels @ price / price.sum()
        errors.append(found.estimate - truth)
        covered.append(found.low <= truth <= found.high)
    assert abs(np.mean(errors)) < 4 * np.std(errors) / 500**0.5
    assert 0.95 - 4 * 0.01 <= np.mean(covered) <= 0.95 + 4 * 0.01


@pytest.mark.parametrize("width", [0.08, 0.15, 0.3])
def test_the_planned_width_is_reached_with_its_assurance(width):
    """A calibrated judge, so that the planner's guess holds; 0.8 assured, less three standard errors of 300."""
    rng = np.random.default_rng(13)
    widths, needed = [], []
    for seed in range(300):
        tasks, labels, judge = world(rng)
        price = rng.lognormal(5, 0.8, 200)[tasks]
        plan = plan_labels(judge, width, weights=price, seed=seed)
        given = np.where(np.isin(np.arange(N), plan.images), labels, np.nan)
        found = prediction_powered(tasks, judge, given, weights=price, probabilities=plan.probabilities)
        widths.append(found.high - found.low)
        needed.append(plan.n_labels)
        assert plan.width <= width
    assert np.mean(np.array(widths) <= width) >= 0.8 - 3 * 0.023
    assert max(needed) < N


def test_a_second_round_corrects_an_optimistic_plan():
    """A confident judge that is wrong one time in four: the first plan is too short, the next one knows
    about how much. What it knows is a guess from some 40 labels, so that it is right more often than not."""
    rng = np.random.default_rng(14)
    first_widths, second_widths, errors = [], [], []
    for seed in range(200):
        tasks, labels, _ = world(rng)
        judge = np.where(rng.random(N) < 0.25, 1 - labels, labels)
        plan = plan_labels(judge, 0.15, seed=seed)
        given = np.where(np.isin(np.arange(N), plan.images), labels, np.nan)
        found = prediction_powered(tasks, judge, given, probabilities=plan.probabilities)
        first_widths.append(found.high - found.low)
        more = plan_labels(judge, 0.15, labels=given, seed=seed + 1000)
        assert not set(more.images) & set(plan.images)
        assert (more.probabilities[plan.images] == 1).all()
        both = np.where(np.isin(np.arange(N), more.images), labels, given)
        found = prediction_powered(tasks, judge, both, probabilities=more.probabilities)
        second_widths.append(found.high - found.low)
        errors.append(found.estimate - labels.mean())
    assert np.mean(np.array(first_widths) <= 0.15) < 0.05
    assert np.mean(np.array(second_widths) <= 0.15) > 0.55
    assert np.mean(second_widths) < 0.15
    assert abs(np.mean(errors)) < 4 * np.std(errors) / 200**0.5


def test_a_narrower_width_needs_more_labels():
    judge = np.random.default_rng(1).random(300)
    plans = [plan_labels(judge, width) for width in (0.5, 0.2, 0.1, 0.05, 1e-9)]
    assert sorted({p.n_labels for p in plans}) == [p.n_labels for p in plans]
    assert plans[-1].n_labels == 300
    assert (plans[-1].probabilities == 1).all()
    again = plan_labels(judge, 0.2)
    assert (again.images == plans[1].images).all()
    assert (plan_labels(judge, 0.2, seed=1).images != again.images).any()


def test_expensive_and_uncertain_images_are_sampled_first():
    judge = np.array([0.5] * 50 + [0.01] * 50)
    chances = plan_labels(judge, 0.2).probabilities
    assert chances[0] == pytest.approx(chances[99] * (0.25 / 0.05) ** 0.5)
    weights = np.array([1.0] * 99 + [200.0])
    assert plan_labels(np.full(100, 0.5), 0.3, weights=weights).probabilities[99] == 1


def test_complete_labels_need_no_more():
    plan = plan_labels(np.full(4, 0.5), 0.1, labels=[1, 0, 1, 1])
    assert (plan.n_labels, plan.width, plan.n_known) == (0, 0, 4)


def test_a_systematic_sample_has_its_stated_probabilities():
    """5,000 draws: an image's share has a standard error of at most 0.71 points."""
    size = np.array([1.0, 2, 3, 4, 10, 0, 40])
    chances = inclusion(size, 4)
    assert chances.sum() == pytest.approx(4)
    assert (chances[6], chances[5]) == (1, 0)
    assert chances[4] / chances[0] == pytest.approx(10) or chances[4] == 1
    counts = np.zeros(7)
    for seed in range(5_000):
        drawn = systematic(chances, seed)
        assert len(drawn) == 4
        counts[drawn] += 1
    assert counts / 5_000 == pytest.approx(chances, abs=4 * 0.0071)


def test_open_images_are_counted_and_bounded():
    rng = np.random.default_rng(3)
    tasks, labels, judge = world(rng)
    given = some(rng, labels, 80)
    labelled = ~np.isnan(given)
    silent = np.flatnonzero(labelled)[:8]
    given[silent] = np.nan
    judge[100:110] = np.nan
    found = prediction_powered(tasks, judge, given, selected=labelled)
    assert (found.n_labelled, found.n_unanswered, found.n_unpredicted) == (72, 8, 10)
    assert found.at_least < found.estimate < found.at_most
    assert found.at_most - found.at_least == pytest.approx(8 / 80)
    complete = prediction_powered(tasks, judge, some(rng, labels, 80))
    assert complete.at_least == complete.at_most == complete.estimate


def test_an_empty_sample_is_a_programming_error():
    with pytest.raises(AssertionError, match="no annotation"):
        prediction_powered([0, 1], [0.5, 0.5], [np.nan, np.nan])
    with pytest.raises(AssertionError, match="inclusion probability of 0"):
        prediction_powered([0, 1], [0.5, 0.5], [1, np.nan], probabilities=[0, 1])
