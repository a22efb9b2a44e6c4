"""The simulations' tolerances are four standard errors of what they average, or are given where they differ."""

from dataclasses import asdict

import numpy as np
import pytest
from scipy import stats

from local_bench.settle.intervals import rate_interval, share_interval
from local_bench.settle.ppi import inclusion, plan_labels, prediction_powered, systematic

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
    columns = [0, 1, 2, 3], [0.9, 0.7, 0.4, 0.4], [1, 0, np.nan, np.nan]
    found, alone, tuned = (prediction_powered(*columns, power=power) for power in (1.0, 0.0, None))
    assert found.judge_alone == pytest.approx(0.6)
    assert found.estimate == pytest.approx(0.6 + ((1 - 0.9) + (0 - 0.7)) / 2)
    assert alone.estimate == 0.5
    assert (found.n, found.n_labelled, found.n_unanswered, found.n_unpredicted) == (4, 2, 0, 0)
    assert (tuned.low, tuned.undefined) == (None, "fewer than three of the sampled images have annotations")
    assert (tuned.bound_low, tuned.bound_high) == (0.25, 0.75)
    # an image drawn with half the chance counts twice: 10 x 1 / 0.5 against 30 x 0 / 1, of the value 100
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
    assert (found.bound_low, found.bound_high) == (found.low, found.high)
    like = prediction_powered(tasks, judge, labels, over="orders like these")
    assert like.estimate == pytest.approx(labels.mean())
    accepted, price = labels.reshape(200, 3).sum(axis=1), rng.lognormal(5, 1, 200)
    wilson = share_interval(accepted * price, 3 * price)
    like = prediction_powered(tasks, judge, labels, weights=price[tasks], over="orders like these")
    assert (like.low, like.high) == pytest.approx(wilson)
    like = prediction_powered(tasks, judge, labels, over="orders like these")
    assert (like.low, like.high) == pytest.approx(rate_interval(accepted, np.full(200, 3)), abs=0.01)


@pytest.mark.parametrize(("n", "variance"), [(10, 4 * 0.25 / (10 + 4)), (20, 0.05)])
def test_no_error_in_a_sample_is_not_certainty(n, variance):
    """A judge that is always right, and labels on n of 100 images, drawn with equal chances: the variance of a label is
    that with four more from a guess, at least 0.05."""
    labels = np.tile([1.0, 0.0], 50)
    found = prediction_powered(np.arange(100), labels, np.where(np.arange(100) < n, labels, np.nan))
    half = stats.t.ppf(0.975, n - 2) * (variance * (1 - n / 100) / n) ** 0.5
    assert (found.power, found.estimate) == (1, pytest.approx(0.5))
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half))


def test_equal_predictions_of_the_annotated_images_say_nothing_about_their_annotations():
    """The mean of six times 0.9 is not exactly 0.9: the power is not the quotient of such differences."""
    found = prediction_powered(range(12), [0.9] * 6 + [0.1] * 6, [1, 1, 1, 1, 1, 0] + [np.nan] * 6)
    assert (found.power, found.estimate) == (0, pytest.approx(5 / 6))


def test_a_judge_that_is_always_wrong_is_not_used():
    """The labels alone: 10 of 20 accepted."""
    labels = np.tile([1.0, 0.0], 50)
    found = prediction_powered(np.arange(100), 1 - labels, np.where(np.arange(100) < 20, labels, np.nan))
    half = stats.t.ppf(0.975, 18) * (0.25 * 20 / 19 * 0.8 / 20) ** 0.5
    assert (found.power, found.estimate) == (0, 0.5)
    assert (found.low, found.high) == pytest.approx((0.5 - half, 0.5 + half))


def test_the_variance_and_its_degrees_of_freedom_by_hand():
    """Five labels with chances 1, 0.5, 0.4, 0.2 and 0.3, and a judge that is right."""
    price, chance = np.array([8.0, 4, 2, 1, 3, 40, 40]), np.array([1, 0.5, 0.4, 0.2, 0.3, 0.2, 0.2])
    labels = [1, 1, 0, 1, 0, np.nan, np.nan]
    found = prediction_powered(
        range(7), [1, 1, 0, 1, 0, 1, 0], labels, weights=price, probabilities=chance, power=1.0, level=0.5
    )
    w = np.array([8, 8, 5, 5, 10]) / 36
    s = (1 - chance[:5]) * w**2
    effective = s.sum() ** 2 / (s**2).sum()
    variance = max(0.05, 4 * 0.25 / (effective + 4)) * s.sum()
    half = stats.t.ppf(0.75, min(4 - 1, effective)) * variance**0.5
    assert effective < 3
    assert found.estimate == pytest.approx(53 / 98)
    assert (found.bound_low, found.bound_high) == (pytest.approx(13 / 98), pytest.approx(93 / 98))
    assert (found.low, found.high) == pytest.approx((53 / 98 - half, 53 / 98 + half))


def test_one_order():
    columns = [3] * 5, [0.5] * 5, [1, 0, 1, np.nan, np.nan]
    these, like = (prediction_powered(*columns, over=over) for over in ("these orders", "orders like these"))
    assert these.estimate == pytest.approx(2 / 3)
    assert (these.low, these.high) == (these.bound_low, these.bound_high) == (0.4, pytest.approx(0.8))
    assert (like.low, like.undefined) == (None, "fewer than two orders")


def test_images_without_a_price():
    """They say nothing about revenue: labels on such images alone have no interval, and such orders are none."""
    price = [0, 0, 0, 0, 10, 20]
    found = prediction_powered(range(6), [0.5] * 6, [1, 0, 1, 1, np.nan, np.nan], weights=price)
    assert (found.estimate, found.low, found.bound_low, found.bound_high) == (0.5, None, 0, 1)
    assert found.undefined == "fewer than three of the sampled images have annotations"
    columns = [0, 0, 0, 0, 1, 2], [0.5] * 6, [1, 0, 1, np.nan, 1, 1]
    found = prediction_powered(*columns, weights=[5.0, 5.0, 5.0, 5.0, 0, 0], over="orders like these")
    assert (found.low, found.undefined) == (None, "fewer than two orders")


def test_an_estimate_is_within_what_is_certain():
    """160 of 240 dollars are accepted for certain; the sample of the others has the expensive ones and weighs 160."""
    labels = [1, 1, 0, 0, 0, *[np.nan] * 5]
    price = [80, 80, 20, 20, 20, 4, 4, 4, 4, 4]
    found = prediction_powered(range(10), [0.1] * 10, labels, weights=price, probabilities=[1, 1, *[0.375] * 8])
    assert found.estimate == found.low == found.at_least == found.at_most == found.bound_low == pytest.approx(160 / 240)
    assert found.high <= found.bound_high == pytest.approx(180 / 240)


@pytest.mark.parametrize("over", ["these orders", "orders like these"])
def test_the_order_of_rows_changes_nothing(over):
    rng = np.random.default_rng(8)
    tasks, labels, judge = world(rng)
    judge, price = np.round(judge, 1), rng.choice([10.0, 30.1, 200.7], 200)[tasks]
    plan = plan_labels(judge, 0.2, weights=price, seed=1)
    given = np.where(np.isin(np.arange(N), plan.images), labels, np.nan)
    names, shuffled = rng.permutation(200), rng.permutation(N)

    def results(rows, tasks):
        columns = {"weights": price[rows], "probabilities": plan.probabilities[rows], "over": over}
        return asdict(prediction_powered(tasks[rows], judge[rows], given[rows], **columns))

    assert results(np.arange(N), tasks) == results(shuffled, names[tasks])
    again = plan_labels(judge[shuffled], 0.2, weights=price[shuffled], seed=1)
    assert (again.probabilities == plan.probabilities[shuffled]).all()
    assert (again.n_labels, again.width) == (plan.n_labels, plan.width)
    assert sorted(price[shuffled][again.images]) == sorted(price[plan.images])


@pytest.mark.parametrize(
    ("judge_is", "over"),
    [
        *(("good", over) for over in ("these orders", "orders like these")),
        *(("biased", "orders like these"), ("noise", "these orders"), ("against", "these orders")),
    ],
)
def test_unbiased_and_covered_for_any_judge(over, judge_is):
    """1,000 simulations with 60 labels on 600 images. The interval is to cover in 95 %, less four times 0.7 points; the
    mean error is to be nought within four standard errors."""
    rng = np.random.default_rng(5)
    errors, covered = [], []
    for _ in range(1000):
        tasks, labels, judge = world(rng)
        word = {"good": judge, "biased": np.minimum(1, judge + 0.3), "noise": rng.random(N), "against": 1 - judge}[
            judge_is
        ]
        truth = labels.mean() if over == "these orders" else 0.5
        found = prediction_powered(tasks, word, some(rng, labels, 60), over=over)
        errors.append(found.estimate - truth)
        covered.append(found.low <= truth <= found.high)
        if judge_is == "biased":
            assert abs(found.judge_alone - labels.mean()) > 0.1, "which the judge alone is not"
    assert abs(np.mean(errors)) < 4 * np.std(errors) / 1000**0.5
    assert np.mean(covered) >= 0.95 - 4 * 0.007


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
    assert np.mean(covered) >= 0.95 - 4 * 0.01


def shop(rng, n_orders, judge):
    """Images of orders of very different prices and sizes, and a judge that is right in a share `judge` of them, or
    that accepts what people pay for in half of the cases (None)."""
    n = np.where(rng.random(n_orders) < 0.78, 1, rng.integers(2, 9, n_orders))
    tasks = np.repeat(np.arange(n_orders), n)
    price = rng.lognormal(0, 1.2, n_orders)[tasks] / n[tasks]
    good = rng.normal(size=n_orders)[tasks] + rng.normal(size=len(tasks)) > 0
    if judge is None:
        return tasks, price, np.where(good, 0.93, 0.02), good & (rng.random(len(tasks)) < 0.55)
    return tasks, price, np.where(good, 0.97, 0.03), good ^ (rng.random(len(tasks)) >= judge)


@pytest.mark.parametrize(
    ("judge_is", "design"),
    [(0.97, "uniform"), (0.97, "rounds"), (0.9, "price"), (0.9, "rounds"), (None, "uniform"), (None, "rounds")],
)
def test_coverage_of_few_labels(judge_is, design):
    """400 simulations of 48 orders: a judge that seldom errs, one that errs more often than it says, one that is too
    kind; at least 95 % less three standard errors. `rounds` ends as soon as the interval is narrow enough."""
    rng = np.random.default_rng(21)
    covered = {"these orders": 0, "orders like these": 0}
    _, price, _, decisions = shop(rng, 200_000, judge_is)
    at_large = decisions @ price / price.sum()
    for _ in range(400):
        tasks, price, judge, decisions = shop(rng, 48, judge_is)
        n, given, narrow = len(tasks), np.full(len(tasks), np.nan), False
        while not narrow:
            if design == "rounds":
                plan = plan_labels(judge, 0.15, weights=price, labels=given, seed=int(rng.integers(2**31)))
                chosen, chances = plan.images, plan.probabilities
            elif design == "price":
                chances = inclusion(price, n // 4)
                chosen = systematic(chances, int(rng.integers(2**31)))
            else:
                chosen, chances = rng.choice(n, n // 4, replace=False), np.full(n, n // 4 / n)
            given[chosen] = decisions[chosen]
            columns = {"weights": price, "probabilities": chances}
            found = {over: prediction_powered(tasks, judge, given, **columns, over=over) for over in covered}
            narrow = design != "rounds" or found["these orders"].width <= 0.15
        for over, truth in (("these orders", decisions @ price / price.sum()), ("orders like these", at_large)):
            covered[over] += found[over].low <= truth <= found[over].high
    assert min(covered.values()) / 400 >= 0.95 - 3 * 0.011


def test_the_first_round_assumes_that_the_judge_is_no_better_than_a_guess():
    """Ten points wide with 600 images of equal price: 1.96 (0.25 (1 / n - 1 / 600))^0.5 = 0.05, with t for 1.96."""
    sharp = plan_labels(np.tile([0.999, 0.001], 300), 0.1)
    n = sharp.n_labels
    for of, narrow in ((n, True), (n - 1, False)):
        half = stats.t.ppf(0.975, of - 2) * (0.25 * (1 / of - 1 / 600)) ** 0.5
        assert (half <= 0.05) == narrow
    assert sharp.width == pytest.approx(2 * stats.t.ppf(0.975, n - 2) * (0.25 * (1 / n - 1 / 600)) ** 0.5)


@pytest.mark.parametrize(("share_right", "reached"), [(1.0, 1.0), (0.75, 1.0), (0.5, 0.3)])
def test_the_first_round_and_the_next(share_right, reached):
    """A judge that says 0.99 or 0.01. Where it is right in half of the cases, a label differs from it by more than from
    a guess, the first round is often too short, and the next one, which knows how wrong it is, seldom."""
    rng = np.random.default_rng(14)
    widths, errors = [], []
    for seed in range(100):
        tasks, labels, _ = world(rng)
        judge = np.where(rng.random(N) < share_right, labels, 1 - labels) * 0.98 + 0.01
        plan = plan_labels(judge, 0.15, seed=seed)
        given = np.where(np.isin(np.arange(N), plan.images), labels, np.nan)
        first = prediction_powered(tasks, judge, given, probabilities=plan.probabilities)
        more = plan_labels(judge, 0.15, labels=given, seed=seed + 1000)
        assert not set(more.images) & set(plan.images)
        assert (more.probabilities[plan.images] == 1).all()
        both = np.where(np.isin(np.arange(N), more.images), labels, given)
        found = prediction_powered(tasks, judge, both, probabilities=more.probabilities)
        widths.append((first.width, found.width))
        errors.append(found.estimate - labels.mean())
    rates = (np.array(widths) <= 0.15).mean(axis=0)
    assert rates[0] >= reached - 0.15
    assert rates[1] >= 0.8 - 3 * 0.04
    assert abs(np.mean(errors)) <= 4 * np.std(errors) / 100**0.5 + 1e-12


def test_a_narrower_width_needs_more_labels_and_expensive_and_uncertain_images_come_first():
    judge = np.random.default_rng(1).random(300)
    plans = [plan_labels(judge, width) for width in (0.5, 0.2, 0.1, 0.05, 1e-9)]
    assert sorted({p.n_labels for p in plans}) == [p.n_labels for p in plans]
    assert plans[-1].n_labels == 300
    assert (plans[-1].probabilities == 1).all()
    again = plan_labels(judge, 0.2)
    assert (again.images == plans[1].images).all()
    assert (plan_labels(judge, 0.2, seed=1).images != again.images).any()
    judge = np.array([0.5] * 50 + [0.01] * 50)
    chances = plan_labels(judge, 0.2).probabilities
    assert chances[0] == pytest.approx(chances[99] * (0.25 / 0.05) ** 0.5)
    weights = np.array([1.0] * 99 + [200.0])
    assert plan_labels(np.full(100, 0.5), 0.3, weights=weights).probabilities[99] == 1
    plan = plan_labels(np.full(4, 0.5), 0.1, labels=[1, 0, 1, 1])
    assert (plan.n_labels, plan.width, plan.n_known) == (0, 0, 4)


def test_undecided_images_are_not_drawn_again():
    labels = np.tile([1.0, 0.0, np.nan, np.nan], 30)
    undecided = np.arange(120) % 4 == 2
    plan = plan_labels(np.full(120, 0.6), 1e-9, labels=labels, undecided=undecided)
    assert plan.images.tolist() == list(range(3, 120, 4))
    assert set(plan.probabilities[undecided]) == {1.0}
    assert plan.n_known == 60
    assert not plan_labels(np.full(120, 0.6), 1e-9, labels=labels, undecided=np.isnan(labels)).n_labels


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


def test_open_images_are_counted_and_bounded_and_an_empty_sample_is_a_programming_error():
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
    with pytest.raises(AssertionError, match="no annotation"):
        prediction_powered([0, 1], [0.5, 0.5], [np.nan, np.nan])
    with pytest.raises(AssertionError, match="inclusion probability of 0"):
        prediction_powered([0, 1], [0.5, 0.5], [1, np.nan], probabilities=[0, 1])
