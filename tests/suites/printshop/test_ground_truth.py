"""The print shop's truth, in the form of a faultless judge's answers."""

import numpy as np
import pytest

from examples.miniature.printshop.sampling import render
from local_bench.core.images import pixel_digest
from local_bench.core.types import Verdict
from local_bench.suites.printshop import shop
from local_bench.suites.printshop.matching import edit_score, facts, set_scores
from local_bench.suites.printshop.shop import truths
from local_bench.suites.registry import suite
from local_bench.suites.servimage import questions as servimage


@pytest.fixture(scope="module")
def tasks():
    return suite("printshop").tasks(None, pixel_digest)


def drawn(task, seed=3):
    rng = np.random.default_rng(seed)
    return {i: render(scene, rng) for i, scene in enumerate(shop.truth(task), 1)}


def scores_of(task, found):
    answers = {(i, *key, 0): Verdict(a, None, "") for i, truth in found.items() for key, a in truth.answers.items()}
    return {i: {score.name: score.value for score in scores} for i, scores in servimage.scores(task, answers).items()}


def test_the_ordered_image_is_correct_and_has_full_marks(tasks):
    for task in tasks:
        found = truths(task, drawn(task))
        assert all(truth.right for truth in found.values()), task.task_id
        for scores in scores_of(task, found).values():
            assert scores["brf"] == 5, task.task_id
            assert scores["cns"] in (5, None), task.task_id


def test_an_image_of_another_order_is_incorrect(tasks):
    ones = [task for task in tasks if len(task.deliverables) == 1]
    for task, other in zip(ones, [*ones[1:], ones[0]], strict=True):
        found = truths(task, drawn(other))[1]
        same = shop.truth(task)[0] == shop.truth(other)[0]
        assert found.right is same, task.task_id
        assert same or found.match < 1
        assert same or scores_of(task, {1: found})[1]["brf"] < 5, task.task_id


def test_an_image_of_another_size_or_none_is_left_out(tasks):
    task = next(task for task in tasks if len(task.deliverables) == 3)
    images = drawn(task)
    images[2] = np.repeat(np.repeat(images[2], 2, 0), 2, 1)
    found = truths(task, images)
    assert sorted(found) == [1, 3]
    assert all(truth.answers["cns_set", 0] is None for truth in found.values())  # part of a set has no truth
    assert truths(task, {}) == {}


def test_the_score_of_an_edit_follows_the_unchanged_parts(tasks):
    task = next(task for task in tasks if task.source_sha256 is not None)
    _, edit = shop.requested(task)[0]
    assert edit_score(facts(edit.target), edit) == 5
    assert edit_score(facts(edit.source), edit) == 5  # nothing was edited, so everything is unchanged
    assert edit_score(frozenset(), edit) == 1
    less = facts(edit.target) - {("picture", "background", edit.target.background)}
    assert 1 < edit_score(less, edit) < 5


@pytest.mark.parametrize(
    ("styles", "expected"),
    [
        ([("white", "red", "large")] * 3, [5, 5, 5]),
        ([("white", "red", "large"), ("white", "red", "large"), ("white", "red", "small")], [4, 4, 3]),
        ([("white", "red", "large"), ("white", "blue", "large"), ("white", "red", "large")], [4, 2, 4]),
        ([("white", "red", "large"), ("grey", "blue", "small"), ("white", "red", "large")], [4, 1, 4]),
        ([("white", None, None), ("white", "red", "large"), ("white", "red", "large")], [1, 4, 4]),
        ([], []),
    ],
)
def test_a_set_is_marked_by_its_style(styles, expected):
    assert set_scores(styles) == expected
