"""Predictors across runs: leaks, inputs, partial annotations, settlement."""

import json
import random
import shutil

import numpy as np
import pytest

from local_bench.analysis.people_settlement import settled_by_predictions
from local_bench.analysis.predictors.card import inputs_of, load, save
from local_bench.analysis.predictors.evaluation import MAJORITY, RUN_RULE, TUNED_RULE, report
from local_bench.analysis.predictors.images import labelled_images
from local_bench.analysis.predictors.predictions import n_used_tasks, predictions, train, train_on
from local_bench.core.errors import UserError
from local_bench.runs.payment import read_predictions, write_predictions
from local_bench.runs.rundir import RunDir
from local_bench.settle.features import task_digest
from local_bench.settle.predictors.models import Rule
from tests.analysis.annotated_runs import annotated_run
from tests.report.conftest import order


@pytest.fixture(autouse=True)
def _few_resamples(monkeypatch):
    monkeypatch.setattr("local_bench.settle.predictors.evaluation.RESAMPLES", 200)  # of intervals that no test reads


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two annotated runs with 40 tasks in common; the second has a model that delivers nothing."""
    folder = tmp_path_factory.mktemp("predictors")
    return annotated_run(folder / "a", range(160), 0), annotated_run(
        folder / "b", range(120, 220), 1, models=("tiny-sd35", "tiny-pixart"), silent="tiny-pixart"
    )


@pytest.fixture
def opened(runs):
    (a, a_file), (b, b_file) = runs
    with RunDir.open(a) as first, RunDir.open(b) as second:
        yield [first, second], [a_file, b_file]


@pytest.fixture(scope="module")
def card(runs):
    (a, a_file), _ = runs
    with RunDir.open(a) as run:
        return train([run], [a_file], "logistic")


def test_no_task_is_in_two_splits(opened):
    both, files = opened
    images = labelled_images(both, files, ["brf"], 0)
    of_task = {}
    for task, split in zip(images.tasks, images.splits, strict=True):
        of_task.setdefault(task, set()).add(split)
    assert all(len(of) == 1 for of in of_task.values())
    assert len(of_task) == 220
    trained = train(both, files, "rule").trained_on.tasks
    groups = [set(trained[split]) for split in trained]
    assert not groups[0] & groups[1] | groups[0] & groups[2] | groups[1] & groups[2]
    assert sum(map(len, groups)) == 220
    backwards = labelled_images(both[::-1], files[::-1], ["brf"], 0)
    assert dict(zip(backwards.tasks, backwards.splits, strict=True)) == dict(
        zip(images.tasks, images.splits, strict=True)
    )
    assert backwards.manifest_sha256 == images.manifest_sha256


def test_a_task_under_another_name_is_the_same_task():
    one, other = order("o1", "a", 1, 1), order("x9", "b", 2, 1, title="Order o1")
    assert task_digest(one) == task_digest(other)
    assert task_digest(one) != task_digest(order("o1", "a", 1, 1, brief="another"))


def test_training_tasks_are_not_evaluated(card, opened):
    (a, b), (a_file, b_file) = opened
    found = report(card, [a], [a_file])
    assert found.n + found.n_left_out == 320
    assert found.n == card.trained_on.n_images["test"]
    evaluation = report(card, [b], [b_file])
    seen = {task_digest(t) for t in a.store.tasks()} & card.used_tasks
    assert evaluation.n_left_out == sum(task_digest(t) in seen for t in b.store.tasks()) > 0
    everything = card.model_copy(
        update={"trained_on": card.trained_on.model_copy(update={"tasks": {"train": [], "validation": [], "test": []}})}
    )
    assert report(everything, [a], [a_file]).n_left_out == 0, "the negative control"
    tasks = [task_digest(task) for task in a.store.tasks()]
    all_used = card.trained_on.model_copy(update={"tasks": card.trained_on.tasks | {"train": tasks}})
    with pytest.raises(UserError, match="no annotated image is of a task"):
        report(card.model_copy(update={"trained_on": all_used}), [a], [a_file])


def test_shuffled_annotations_give_chance(opened, tmp_path):
    """The negative control: of shuffled decisions nothing is learnt, with the same scores; of the real ones a lot."""
    (a, b), files = opened
    shuffled = []
    for i, file in enumerate(files):
        rows = [json.loads(line) for line in file.read_text().splitlines()]
        decisions = [row["overall"] for row in rows]
        random.Random(i).shuffle(decisions)
        shuffled.append(tmp_path / f"{i}.jsonl")
        text = (json.dumps(row | {"overall": of}) + "\n" for row, of in zip(rows, decisions, strict=True))
        shuffled[-1].write_text("".join(text))
    learnt, chance = (report(train([a], [of[0]]), [a, b], of).rows[-1].evaluation for of in (files, shuffled))
    assert learnt.auc.value > 0.9
    assert 0.35 < chance.auc.value < 0.65
    assert chance.accuracy.value < max(chance.base_rate, 1 - chance.base_rate) + 0.08


def test_a_decision_changes_only_the_labels(runs, tmp_path):
    """Features, splits and tasks are the same for any annotations."""
    (a, a_file), _ = runs
    flipped = tmp_path / "flipped.jsonl"
    rows = [json.loads(line) for line in a_file.read_text().splitlines()]
    flipped.write_text("".join(json.dumps(row | {"overall": not row["overall"]}) + "\n" for row in rows))
    with RunDir.open(a) as run:
        one, other = (labelled_images([run], [file], ["brf", "veq"], 0) for file in (a_file, flipped))
    np.testing.assert_array_equal(one.features.scores, other.features.scores)
    assert (one.splits, one.tasks, one.features.categories) == (other.splits, other.tasks, other.features.categories)
    assert (one.accepted == 1 - other.accepted).all()
    assert one.manifest_sha256 != other.manifest_sha256


def test_rows_have_a_fixed_order_and_every_baseline(card, opened):
    (_, b), (_, b_file) = opened
    rows = report(card, [b], [b_file]).rows
    assert [row.name for row in rows] == [MAJORITY, RUN_RULE, TUNED_RULE, "predictor (logistic)"]
    assert len({row.evaluation.n for row in rows}) == 1
    majority, _, tuned, learnt = rows
    assert tuned.over_tuned_rule is None
    assert learnt.over_tuned_rule.value == pytest.approx(
        learnt.evaluation.accuracy.value - tuned.evaluation.accuracy.value
    )
    assert learnt.evaluation.accuracy.value > majority.evaluation.accuracy.value + 0.2
    assert majority.evaluation.auc.value == 0.5


def test_a_file_of_predictions_adds_a_row(card, opened, tmp_path):
    (_, b), (_, b_file) = opened
    lines = predictions(card, b)
    write_predictions(lines, tmp_path / "p.jsonl")
    other = read_predictions(tmp_path / "p.jsonl")
    assert list(other.values()) == lines
    predicted = [line.model_copy(update={"source": "somebody"}) for line in lines if line.probability is not None]
    write_predictions(predicted[5:], tmp_path / "q.jsonl")
    found = report(card, [b], [b_file], [read_predictions(tmp_path / "q.jsonl")])
    by_name = {row.name: row for row in found.rows}
    assert by_name["somebody"].evaluation.n_unpredicted in range(6)
    assert by_name["somebody"].evaluation.n == found.n - by_name["somebody"].evaluation.n_unpredicted
    with pytest.raises(UserError, match="two files"):
        report(card, [b], [b_file], 2 * [read_predictions(tmp_path / "q.jsonl")])
    with pytest.raises(UserError, match="the predictor is"):
        report(card, [b], [b_file], [other])
    of_b = train([b], [b_file], "rule", seed=1)
    write_predictions(predictions(of_b, b), tmp_path / "b.jsonl")
    leaking = read_predictions(tmp_path / "b.jsonl")
    found = report(card, [b], [b_file], [leaking])
    (row,) = [row for row in found.rows if row.name == "predictor (rule)"]
    held_out = {task.task_id for task in b.store.tasks() if task_digest(task) not in of_b.used_tasks}
    assert 0 < row.evaluation.n <= 2 * len(held_out)
    assert row.evaluation.n == found.n - row.evaluation.n_unpredicted
    assert f"{row.evaluation.n_unpredicted} predictions of 'predictor (rule)' are left out" in found.notes[-1]


def test_training_is_deterministic_and_the_card_loads(runs, opened, tmp_path):
    both, files = opened
    one, other = (train(both, files) for _ in range(2))
    assert one == other
    save(one, tmp_path / "p")
    again = load(tmp_path / "p")
    assert again == one
    assert predictions(again, both[1]) == predictions(one, both[1])
    with pytest.raises(UserError, match="not an empty folder"):
        save(one, tmp_path / "p")


def test_models_that_deliver_nothing_are_settled(card, opened):
    (_, b), _ = opened
    lines = predictions(card, b)
    silent = [line for line in lines if line.model == "tiny-pixart"]
    assert {line.unscored for line in silent} == {"there is no image"}
    settled = {one.predicted.model: one for one in settled_by_predictions(b, lines)}
    assert settled["tiny-pixart"].predicted.total.revenue_micro_usd == 0
    unmade = settled["tiny-pixart"]
    assert unmade.expected.at_most_expected_micro_usd == unmade.predicted.total.bounds_micro_usd[1] > 0
    assert (unmade.expected.expected_micro_usd, unmade.expected.n_unscored) == (0, len(silent))
    delivered = [line for line in lines if line.model == "tiny-sd35"]
    price = {t.task_id: t.price_micro_usd for t in b.store.tasks()}
    revenue = sum(price[line.task_id] for line in delivered if line.accepted)
    assert settled["tiny-sd35"].predicted.total.revenue_micro_usd == revenue
    expected = sum(price[line.task_id] * line.probability for line in delivered)
    assert settled["tiny-sd35"].expected.expected_micro_usd == pytest.approx(expected, abs=1)
    assert all(line.accepted == (line.probability >= 0.5) for line in delivered)
    used, n = n_used_tasks(lines)
    assert 0 < used < 40 < n == 100


def test_partial_annotations_are_trained_on(runs, tmp_path):
    (a, a_file), _ = runs
    lines = a_file.read_text().splitlines(keepends=True)
    random.Random(0).shuffle(lines)
    few = tmp_path / "few.jsonl"
    few.write_text("".join(lines[:60]))
    with RunDir.open(a) as run:
        card = train([run], [few], "logistic")
        assert sum(card.trained_on.n_images.values()) == 60
        labelled = {json.loads(line)["task_id"] for line in lines[:60]}
        used, n = n_used_tasks(predictions(card, run))
        assert used <= len(labelled) < n, "a task without a label trains nothing"
        assert report(card, [run], [a_file]).n > 320 - 2 * len(labelled)
        assert card.trained_on.calibrated_on == "training, out of fold"
        few.write_text(lines[0])
        with pytest.raises(UserError, match="annotate more images"):
            train([run], [few], "logistic")


def test_a_run_annotated_twice_is_refused(runs, tmp_path):
    (a, a_file), _ = runs
    shutil.copytree(a, tmp_path / "copy")
    with (
        RunDir.open(a) as one,
        RunDir.open(tmp_path / "copy") as copy,
        pytest.raises(UserError, match="is annotated in both"),
    ):
        train([one, copy], [a_file, a_file])


def test_other_rubrics_and_scores_are_refused(card, opened, tmp_path):
    (a, _), _ = opened
    worded, _ = annotated_run(tmp_path / "r", range(30), rubric="brf")
    with RunDir.open(worded) as run:
        inputs = inputs_of(run)
        changed = inputs.model_copy(update={"rubrics": [("brf", "0" * 64)]})
        assert predictions(card, run), "a rubric that the training runs lack changes nothing"
        with pytest.raises(UserError, match="the rubric brf of"):
            predictions(card.model_copy(update={"inputs": changed}), run)
    missing = card.inputs.model_copy(update={"scores": [*card.inputs.scores, "hype_pass"]})
    with pytest.raises(UserError, match="has no score 'hype_pass'"):
        predictions(card.model_copy(update={"inputs": missing}), a)
    few, _ = annotated_run(tmp_path / "few", range(300, 330), acceptance={"brf": 3, "veq": 2})
    with RunDir.open(few) as run:
        assert set(inputs_of(run).scores) == set(inputs_of(a).scores)


def test_log_odds_of_a_model_that_reads_images_are_calibrated_and_used(opened):
    """The way in for a model of another kind: log-odds by work id, the rest as for every predictor."""
    (a, _), (a_file, _) = opened
    inputs = inputs_of(a)
    images = labelled_images([a], [a_file], inputs.scores, 0)
    rng = np.random.default_rng(0)
    noisy = {key: float(4 * (y - 0.5) + rng.normal(0, 1)) for key, y in zip(images.keys, images.accepted, strict=True)}
    rule = Rule({"brf": 3.0})
    card = train_on(images, inputs, ["a"], rule, "logistic", log_odds=noisy)
    *_, row = report(card, [a], [a_file], log_odds=noisy).rows
    assert row.evaluation.accuracy.value > 0.9
    lines = predictions(card, a, log_odds=noisy)
    assert all(line.probability is not None for line in lines)
    del noisy[lines[0].work_id]
    assert predictions(card, a, log_odds=noisy)[0].unscored == "the model gave no prediction"
    with pytest.raises(UserError, match="none are given"):
        predictions(card, a)
    with pytest.raises(UserError, match="infinite"):
        predictions(card, a, log_odds=noisy | {lines[0].work_id: float("inf")})
