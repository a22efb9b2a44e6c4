import itertools
from dataclasses import replace

import numpy as np
import pytest

from local_bench.core.errors import UserError
from local_bench.core.types import Score
from local_bench.settle.acceptance import by_threshold
from local_bench.settle.features import Features, feature_table
from local_bench.settle.intervals import share_interval
from local_bench.settle.predictors.fitting import fit_calibration, fit_concepts, fit_rule
from local_bench.settle.predictors.models import (
    Calibrated,
    Decisions,
    ExpectedRevenue,
    Platt,
    RealisedRevenue,
    Rule,
    expected_revenue,
)

CATEGORIES = ("Digital", "Portrait", "Product")


def world(n_tasks=250, images=3, seed=0):
    """Images whose payment depends on their scores, their category and something of the order that nobody sees."""
    rng = np.random.default_rng(seed)
    n = n_tasks * images
    tasks = np.repeat(np.arange(n_tasks), images)
    scores = rng.uniform(0, 5, (n, 3))
    applies = np.ones((n, 3), dtype=bool)
    applies[:, 2] = rng.random(n_tasks)[tasks] < 0.6
    scores[~applies] = np.nan
    category = rng.integers(0, 3, n_tasks)[tasks]
    odds = 1.2 * (scores[:, 0] - 2.5) + 0.3 * scores[:, 1] + 0.8 * np.nan_to_num(scores[:, 2] - 3) + category - 2
    odds += rng.normal(0, 0.5, n_tasks)[tasks]
    paid = rng.random(n) < 1 / (1 + np.exp(-odds))
    price = (rng.lognormal(5, 1, n_tasks)[tasks] * 1e6).astype(np.int64)
    table = Features(("brf", "veq", "cns"), scores, applies, tuple(CATEGORIES[i] for i in category), price, tasks)
    return table, paid.astype(float)


@pytest.fixture(scope="module")
def fitted():
    table, labels = world()
    return fit_concepts(table, labels)


def test_the_rule_of_a_table_is_the_rule_of_single_decisions():
    """The table's rule and the one for single decisions, on every case."""
    rule = {"brf": 3.0, "veq": 2.0, "lighting": 1.0}
    choices = [Score("x", 1.0), Score("x", 3.0), Score("x", None, "cut off"), Score("x", None, applies=False), None]
    images = [
        [replace(score, name=name) for name, score in zip(rule, of_image, strict=True) if score]
        for of_image in itertools.product(choices, repeat=3)
    ]
    table = feature_table(images, ["Digital"] * 125, [1] * 125, ["t"] * 125, ("brf", "veq", "lighting"))
    found = Rule(rule).decisions(table)
    alone = [by_threshold(scores, rule) for scores in images]
    assert found.accepted.tolist() == [d.accepted is True for d in alone]
    assert found.known.tolist() == [d.accepted is not None for d in alone]
    assert set(found.unscored) == {i for i, d in enumerate(alone) if d.unscored}
    assert {why.split()[0] for why in found.unscored.values()} == {"brf", "veq", "lighting", "nothing"}


def test_the_model_beats_the_majority_class_on_unseen_orders(fitted):
    q = fitted.quality
    assert (q.n, q.n_tasks) == (750, 250)
    assert q.accuracy > max(q.base_rate, 1 - q.base_rate) + 0.1
    assert q.auc > 0.8
    assert q.pr_auc > q.base_rate + 0.2
    assert q.brier < 0.75 * q.base_rate * (1 - q.base_rate)
    assert q.ece < 0.06, "750 images in ten bins: chance alone gives about 0.03"


def test_random_labels_have_chance_auc():
    """Random labels, the same for an order's images: splits by image would let the order be known again."""
    rng = np.random.default_rng(1)
    tasks = np.repeat(np.arange(120), 4)
    names = tuple(f"s{i}" for i in range(60))  # enough for an order to be known again
    scores = rng.uniform(0, 5, (120, 60))[tasks]
    table = Features(names, scores, np.ones((480, 60), bool), ("x",) * 480, np.ones(480, np.int64), tasks)
    labels = rng.integers(0, 2, 120)[tasks].astype(float)
    q = fit_concepts(table, labels).quality
    assert 0.35 < q.auc < 0.65
    leaky = replace(table, tasks=np.arange(480))
    assert fit_concepts(leaky, labels).quality.auc > 0.7, "the negative control: each image an order of its own"


def test_a_score_that_all_annotated_images_share_says_nothing_about_another_value():
    """Six orders of one image with 0.7, of which four are paid for: the mean of 0.7 is not exactly 0.7."""
    names, tasks = ("s",), np.arange(6)
    table = Features(names, np.full((6, 1), 0.7), np.ones((6, 1), bool), ("x",) * 6, np.ones(6, np.int64), tasks)
    model = fit_concepts(table, [1, 1, 1, 1, 0, 0]).predictor
    other = replace(table, scores=np.full((6, 1), 3.0))
    assert model.probabilities(other) == pytest.approx(model.probabilities(table))


def test_fifty_labels_are_better_than_chance():
    """With unbalanced folds the prediction could be reversed and the AUC be far below a half."""
    for seed in (0, 1):
        table, labels = world(50, 1, seed)
        assert fit_concepts(table, labels).quality.auc > 0.6


def test_an_image_s_probability_is_independent_of_other_images(fitted):
    table, _ = world(30, seed=4)
    together = fitted.predictor.probabilities(table)
    alone = [fitted.predictor.probabilities(table.rows(np.array([i])))[0] for i in range(90)]
    assert together.tolist() == alone


def test_unscored_images_have_no_probability_and_inapplicable_scores_do(fitted):
    table, labels = world(40)
    scores = table.scores.copy()
    scores[0, 0] = np.nan
    holed = replace(table, scores=scores)
    predicted = fitted.predictor.probabilities(holed)
    assert np.isnan(predicted).tolist() == [True] + [False] * 119
    decided = fitted.predictor.decisions(holed)
    assert (decided.known.tolist(), decided.unscored) == ([False] + [True] * 119, {0: "brf was not scored"})
    given = labels.copy()
    given[5:9] = np.nan
    taught = fit_concepts(holed, given)
    assert (taught.quality.n, taught.n_unscored, taught.n_unlabelled) == (115, 1, 4)


def test_a_fitted_rule_reports_its_accuracy():
    table, labels = world()
    found = fit_rule(table, labels, {"brf": 2.5})
    passed = table.scores[:, 0] >= 2.5
    assert found.predictor.paid_if_accepted == pytest.approx(labels[passed].mean(), abs=0.002)
    assert found.predictor.paid_if_rejected == pytest.approx(labels[~passed].mean(), abs=0.002)
    probabilities = {found.predictor.paid_if_accepted, found.predictor.paid_if_rejected}
    assert set(found.predictor.probabilities(table)) == probabilities
    assert found.quality.ece < 0.05
    with pytest.raises(UserError, match="without annotations has no probabilities"):
        Rule({"brf": 2.5}).probabilities(table)


def test_expected_and_realised_by_hand():
    predicted = np.array([0.25, 0.9, np.nan])
    price = np.array([100, 1000, 7])
    assert expected_revenue(predicted, price) == ExpectedRevenue(925, 932, 2, 1)
    interval = expected_revenue(predicted, price, np.array([0, 1, 1])).interval_micro_usd
    assert interval == tuple(round(1100 * end) for end in share_interval([25, 900], [100, 1000]))
    assert expected_revenue(predicted, price, np.array([4, 4, 1])).interval_micro_usd is None
    decided = Calibrated(Platt(1.0, 0.0)).decisions(np.log(predicted / (1 - predicted)))
    assert decided.realised_revenue(price) == RealisedRevenue(1000, 1007, 2, 1)
    decisions = Decisions(np.array([True, False, False]), np.array([True, True, False]))
    assert decisions.realised_revenue(price) == RealisedRevenue(100, 107, 2, 1)


def test_the_interval_of_an_expected_revenue_covers_that_of_such_orders():
    """400 samples of 48 orders of one or two images with probabilities that depend on the price."""
    rng = np.random.default_rng(3)

    def draw(n_orders):
        tasks = np.repeat(np.arange(n_orders), rng.integers(1, 3, n_orders))
        price = rng.lognormal(5, 1, n_orders)[tasks]
        values = np.clip(rng.normal(0, 1, n_orders)[tasks] + rng.normal(0, 0.3, len(tasks)) - price / 500, -4, 4)
        return tasks, np.rint(price * 1e6).astype(np.int64), 1 / (1 + np.exp(-values))

    _, price, values = draw(400_000)
    share, covered = values @ price / price.sum(), 0
    for _ in range(400):
        tasks, price, values = draw(48)
        low, high = expected_revenue(values, price, tasks).interval_micro_usd
        covered += low <= share * price.sum() <= high
    assert covered / 400 >= 0.95 - 3 * 0.011


def test_money_of_decisions_is_exact_beyond_floats():
    price = np.array([2**53 + 1, 2], dtype=np.int64)
    assert Decisions(np.array([True, True]), np.array([True, True])).realised_revenue(price).realised_micro_usd == (
        2**53 + 3
    )


def test_calibration_by_hand():
    assert Platt(2.0, -1.0).probabilities(np.array([0.5]))[0] == 0.5
    assert Platt(1.0, 0.0).probabilities(np.array([-1e9, 1e9])) == pytest.approx([0, 1])
    odds = np.random.default_rng(0).normal(0, 1, 500)
    assert fit_calibration(odds, odds < 0).calibration.slope == 0, "calibrating never turns an order round"


@pytest.mark.parametrize("effect", [-0.5, -0.1, 0.1, 0.5, 2.0])
def test_the_calibration_is_at_its_optimum_whatever_the_scale_of_the_log_odds(effect):
    rng = np.random.default_rng(0)
    for _ in range(20):
        odds = rng.normal(0, 1, 150)
        paid = rng.random(150) < 1 / (1 + np.exp(-effect * odds))
        target = np.where(paid, (paid.sum() + 1) / (paid.sum() + 2), 1 / ((~paid).sum() + 2))
        for said in (odds + 1, 20 * odds + 30):
            line = fit_calibration(said, paid).calibration
            residual = line.probabilities(said) - target
            assert residual.mean() == pytest.approx(0, abs=1e-3), "the mean probability is the share accepted"
            slope = float(residual @ odds) / 150  # of the loss
            assert slope >= 0 if line.slope == 0 else slope == pytest.approx(0, abs=1e-3)


def test_too_few_labels_are_an_error():
    table, _ = world(10)
    for labels in (np.ones(30), np.full(30, np.nan), np.array([1.0] * 3 + [0.0] * 27)):
        with pytest.raises(UserError, match="annotate more images"):
            fit_concepts(table, labels)
    few = np.zeros(30)
    few[[0, 20]] = 1
    assert fit_concepts(table, few).quality.n == 30
    both = np.array([1.0, 0, 0, 1, 0, 1] + [np.nan] * 24)
    assert fit_concepts(table, both).quality.n == 6, "two orders, so that a fold has one to learn from"


def test_other_scores_than_those_of_training_are_an_error_and_an_unseen_category_has_no_column(fitted):
    table = feature_table([[Score("brf", 3.0)]], ["Digital"], [1], ["t"], ("brf",))
    with pytest.raises(UserError, match="was fitted to brf, veq, cns, not to brf"):
        fitted.predictor.probabilities(table)
    table = replace(world(2)[0], categories=("Music",) * 6)
    assert not np.isnan(fitted.predictor.probabilities(table)).any()
