"""Measures of predicted probabilities, splits, the tuned rule, and calibration on validation tasks."""

import itertools

import numpy as np
import pytest
from scipy.stats import binom
from sklearn.metrics import average_precision_score, balanced_accuracy_score, brier_score_loss, roc_auc_score

from local_bench.core.errors import UserError
from local_bench.settle.features import Features, split_of
from local_bench.settle.predictors import evaluation, fitting
from local_bench.settle.predictors.evaluation import accuracy_difference, evaluate
from local_bench.settle.predictors.fitting import fit_calibration, fit_concepts, fit_held_out, out_of_fold, tune_rule
from local_bench.settle.predictors.models import Calibrated, Platt, Rule, dumps, loads
from tests.settle.test_predictors import world

PINNED = ["test", "train", "train"]
"""The splits of t0, t1 and t2: stored predictors and published results rely on them."""


@pytest.fixture(scope="module")
def guesses():
    table, labels = world(150)
    rng = np.random.default_rng(3)
    return table, labels > 0, np.round(np.clip(0.3 * labels + rng.uniform(0, 0.7, len(labels)), 0, 1), 2)


@pytest.fixture
def few_resamples(monkeypatch):
    """For values, which no resample changes."""
    monkeypatch.setattr(evaluation, "RESAMPLES", 100)


def test_values_are_those_of_scikit_learn(guesses):
    table, paid, p = guesses
    found = evaluate(p, paid, table.tasks, table.categories)
    assert found.accuracy.value == pytest.approx(((p >= 0.5) == paid).mean())
    assert found.balanced_accuracy.value == pytest.approx(balanced_accuracy_score(paid, p >= 0.5))
    assert found.auc.value == pytest.approx(roc_auc_score(paid, p))
    assert found.pr_auc.value == pytest.approx(average_precision_score(paid, p))
    assert found.brier.value == pytest.approx(brier_score_loss(paid, p))
    for name in ("accuracy", "balanced_accuracy", "auc", "pr_auc", "brier"):
        of = getattr(found, name)
        assert of.low < of.value < of.high, name
    right = sum(table.categories.count(name) * of.value for name, of in found.by_category.items())
    assert right / len(p) == pytest.approx(found.accuracy.value)


def test_the_calibration_error_by_hand():
    """Two bins: 0.25 predicted and 0.5 paid, 0.75 predicted and all paid; both off by a quarter."""
    p, paid = np.array([0.25, 0.25, 0.75, 0.75]), np.array([True, False, True, True])
    found = evaluate(p, paid, np.arange(4), ("a",) * 4)
    assert found.ece.value == pytest.approx(0.25)


def test_the_calibration_error_that_right_probabilities_have(few_resamples):
    """Of 20 images with a probability of 0.25 and 20 with 0.75: twice the mean deviation of a binomial, over 40."""
    found = evaluate(np.repeat([0.25, 0.75], 20), np.arange(40) % 2 == 0, np.arange(40), ("a",) * 40)
    deviation = sum(abs(k - 5) * binom.pmf(k, 20, 0.25) for k in range(21))
    assert found.ece_if_calibrated == pytest.approx(2 * deviation / 40, abs=4 * 0.03 / 1000**0.5)
    assert (found.ece.low, found.ece.high) == (None, None)
    many = evaluate(np.repeat([0.25, 0.75], 2000), np.arange(4000) % 2 == 0, np.arange(4000), ("a",) * 4000)
    assert many.ece_if_calibrated < 0.2 * found.ece_if_calibrated
    assert evaluate(np.array([0.0, 1.0]), np.array([False, True]), np.arange(2), ("a",) * 2).ece_if_calibrated == 0


def test_no_interval_of_few_tasks(guesses):
    table, paid, p = guesses
    for n_tasks in (29, 30):
        few = np.flatnonzero(table.tasks < n_tasks)
        found = evaluate(p[few], paid[few], table.tasks[few], ("a",) * len(few))
        for name in ("accuracy", "balanced_accuracy", "auc", "pr_auc", "brier"):
            of = getattr(found, name)
            assert of.value is not None
            assert (of.low is None) == (of.high is None) == (n_tasks < 30)
        assert (found.by_category["a"].low is None) == (n_tasks < 30)
    few = table.tasks < 29
    assert accuracy_difference(p[few], 1 - p[few], paid[few], table.tasks[few]).low is None


def test_an_evaluation_does_not_depend_on_the_order_of_rows(guesses):
    table, paid, p = guesses
    rows = np.random.default_rng(1).permutation(len(p))
    names = np.random.default_rng(2).permutation(150)
    shuffled = p[rows], paid[rows], names[table.tasks][rows], tuple(table.categories[i] for i in rows)
    assert evaluate(p, paid, table.tasks, table.categories) == evaluate(*shuffled)
    difference = accuracy_difference(p, np.round(p[::-1], 1), paid, table.tasks)
    assert difference == accuracy_difference(shuffled[0], np.round(p[::-1], 1)[rows], *shuffled[1:3])


def test_missing_predictions_are_counted_and_left_out(guesses):
    table, paid, p = guesses
    holed = p.copy()
    holed[:30] = np.nan
    found = evaluate(holed, paid, table.tasks, table.categories)
    assert (found.n, found.n_unpredicted, found.n_tasks) == (420, 30, 140)
    assert evaluate(np.full(len(p), np.nan), paid, table.tasks, table.categories) is None
    same = accuracy_difference(holed, p, paid, table.tasks)
    assert (same.value, same.low, same.high) == (0, 0, 0)


def test_one_class_has_no_auc_and_no_balanced_accuracy():
    found = evaluate(np.array([0.2, 0.9]), np.array([True, True]), np.arange(2), ("a", "a"))
    assert (found.auc.value, found.balanced_accuracy.value, found.accuracy.value) == (None, None, 0.5)


def test_splits_depend_on_the_task_and_the_seed_alone():
    tasks = [f"t{i}" for i in range(4000)]
    of = [split_of(task) for task in tasks]
    shares = [of.count(split) / 4000 for split in ("train", "validation", "test")]
    assert shares == pytest.approx([0.7, 0.15, 0.15], abs=0.02)
    assert [split_of(task) for task in tasks] == of
    assert [split_of(task, 1) for task in tasks] != of
    assert of[:3] == PINNED


def brute(table, labels, names):
    """The best accuracy of any threshold rule on images where one of the scores applies."""
    columns = [table.names.index(name) for name in names]
    choices = [[*np.unique(c[~np.isnan(c)]), 9.0] for c in table.scores[:, columns].T]
    counts = table.applies[:, columns].any(axis=1)
    rules = (Rule(dict(zip(names, of, strict=True))) for of in itertools.product(*choices))
    return max((rule.decisions(table).accepted == (labels > 0))[counts].mean() for rule in rules)


@pytest.mark.parametrize("names", [("brf",), ("brf", "cns"), ("brf", "veq", "cns")])
def test_the_tuned_rule_is_the_best_rule(names):
    table, labels = world(12, 2)
    rounded = Features(
        table.names, np.round(table.scores), table.applies, table.categories, table.price_micro_usd, table.tasks
    )
    found = tune_rule(rounded, labels, names)
    counts = rounded.applies[:, [rounded.names.index(name) for name in names]].any(axis=1)
    reached = (found.decisions(rounded).accepted == (labels > 0))[counts].mean()
    assert reached == brute(rounded, labels, names)


def test_the_tuned_rule_can_reject_everything():
    table, _ = world(30)
    labels = np.zeros(90)
    labels[[np.argmin(table.scores[:, 0]), np.argsort(table.scores[:, 0])[1]]] = 1  # only the worst are paid for
    found = tune_rule(table, labels, ("brf",))
    assert not found.decisions(table).accepted.any()


def test_calibration_on_other_tasks_repairs_overconfidence(few_resamples):
    """Log-odds three times too large and shifted, on validation tasks; measured on test tasks."""
    rng = np.random.default_rng(0)
    odds = rng.normal(0, 1.5, 4000)
    paid = (rng.random(4000) < 1 / (1 + np.exp(-odds))).astype(float)
    said = 3 * odds + 1
    validation, test = slice(0, 2000), slice(2000, 4000)
    model = fit_calibration(said[validation], paid[validation])
    assert loads(dumps(model)) == model
    tasks = np.arange(2000)
    before = evaluate(Platt(1, 0).probabilities(said[test]), paid[test] > 0, tasks, ("a",) * 2000)
    after = evaluate(model.calibration.probabilities(said[test]), paid[test] > 0, tasks, ("a",) * 2000)
    assert after.ece.value < 0.5 * before.ece.value
    assert after.brier.value < before.brier.value
    assert (model.calibration.slope, model.calibration.intercept) == pytest.approx((1 / 3, -1 / 3), abs=0.05)


def test_calibrating_a_models_log_odds_needs_enough_of_both(guesses):
    odds = np.linspace(-1, 1, 40)
    with pytest.raises(UserError, match="5 accepted and 35 rejected"):
        fit_calibration(odds, np.arange(40) < 5)
    holed = Calibrated(Platt(1, 0)).decisions(np.array([0.0, np.nan]))
    assert (holed.accepted.tolist(), holed.known.tolist()) == ([True, False], [True, False])
    assert Platt(1, 0).probabilities(np.array([0.0]))[0] == 0.5
    assert holed.unscored == {1: "the model gave no prediction"}


def test_few_validation_images_calibrate_out_of_fold_instead(monkeypatch):
    """With seven validation images the validation labels have no influence."""
    table, labels = world(60)
    train, validation = table.rows(np.arange(150)), table.rows(np.arange(150, 157))
    models = [fit_held_out(train, labels[:150], validation, of) for of in (labels[150:157], 1 - labels[150:157])]
    assert models[0] == models[1]
    monkeypatch.setattr(fitting, "LEAST_VALIDATION", 1)
    models = [fit_held_out(train, labels[:150], validation, of) for of in (labels[150:157], 1 - labels[150:157])]
    assert models[0] != models[1]


def test_out_of_fold_no_image_is_predicted_by_a_model_with_its_tasks_labels():
    """Also an image without a label whose task has labels of other images."""
    table, labels = world(60)
    given = labels.astype(float)
    task = table.tasks[0]
    own = np.flatnonzero(table.tasks == task)
    given[own[0]] = np.nan
    before = out_of_fold(table, given)
    assert not np.isnan(before).any()
    fitted = fit_concepts(table, given).predictor.probabilities(table)
    assert not np.allclose(before, fitted)
    for i in own[1:]:
        table.scores[i] = 5 - table.scores[i]  # what its task's rows say must not reach its model
    after = out_of_fold(table, given)
    assert after[own[0]] == before[own[0]]
    refitted = fit_concepts(table, given).predictor.probabilities(table)
    assert refitted[own[0]] != fitted[own[0]]
