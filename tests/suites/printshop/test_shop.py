from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from examples.miniature.printshop import orderbook
from examples.miniature.printshop.sampling import held_out, render
from examples.miniature.printshop.wording import split_words, vocabulary
from local_bench.core.errors import TaskFileError
from local_bench.core.images import load_image, pixel_digest
from local_bench.suites.printshop import shop
from local_bench.suites.printshop.checker import detect
from local_bench.suites.printshop.matching import holds, read_point
from local_bench.suites.registry import suite
from local_bench.suites.servimage import questions as servimage


@pytest.fixture(scope="module")
def tasks():
    return suite("printshop").tasks(None, pixel_digest)


def test_the_tasks_agree_with_the_readme(tasks):
    assert len(tasks) == 48
    assert Counter(task.category for task in tasks) == dict.fromkeys(("Portrait", "Product", "Digital"), 16)
    assert {len(task.deliverables) for task in tasks} == {1, 2, 3, 4}
    assert sum(task.source_sha256 is not None for task in tasks) == 12
    assert not any(task.unscored or task.notes for task in tasks)
    assert all(5_000_000 <= task.price_micro_usd <= 80_000_000 for task in tasks)
    pairs = [scene for task in tasks for scene in shop.truth(task) if len(scene.figures) == 2]
    assert 0.3 < sum(map(held_out, pairs)) / len(pairs) < 0.7


def test_the_tasks_are_generated_to_the_same_bytes(tmp_path):
    orderbook.write(tmp_path)
    written = {str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*") if path.is_file()}
    drawn = {str(path.relative_to(shop.FOLDER)) for path in shop.FOLDER.rglob("*.png")}
    assert written == {"orders.jsonl", "sources.json"} | drawn
    for name in written:
        if name.endswith(".png"):
            assert pixel_digest(load_image(tmp_path / name)) == pixel_digest(load_image(shop.FOLDER / name))
        else:
            assert (tmp_path / name).read_bytes() == (shop.FOLDER / name).read_bytes()
    assert orderbook.orders(1)[0].line != orderbook.orders()[0].line


def points_met(task, images):
    """For each evaluation point, whether any of the images meets it; None if undetermined."""
    answers = [[holds(read_point(text), seen) for seen in images] for text in task.evaluation_points]
    return [True if True in each else None if None in each else False for each in answers]


def test_the_points_hold_for_the_ordered_scene_only(tasks):
    rng = np.random.default_rng(0)
    images = {task.task_id: [detect(render(scene, rng)) for scene in shop.truth(task)] for task in tasks}
    for task in tasks:
        assert points_met(task, images[task.task_id]) == [True] * len(task.evaluation_points)
        for other in tasks:
            if shop.truth(other) != shop.truth(task):
                assert not all(points_met(task, images[other.task_id]))


def test_a_source_image_shows_its_scene_and_does_not_yet_meet_the_order(tasks):
    kinds = Counter()
    for task in tasks:
        if task.source_sha256 is None:
            assert all(edit is None for _, edit in shop.requested(task))
            continue
        ((_, edit),) = shop.requested(task)
        image = load_image(shop.FOLDER / "pictures" / f"{task.task_id}.png")
        assert pixel_digest(image) == task.source_sha256
        seen = detect(np.asarray(image))
        assert seen.scene() == edit.source == shop.sources()[task.task_id]
        assert False in points_met(task, [seen])
        kinds[edit.kind] += 1
    assert len(kinds) == 6


def test_a_prompt_uses_the_vocabulary_and_is_short(tasks):
    for task in tasks:
        for deliverable in servimage.deliverables(task):
            words = split_words(deliverable.prompt)
            assert set(words) <= set(vocabulary())
            assert len(words) <= 40
            assert deliverable.prompt.split(". ")[0] == task.deliverables[deliverable.index - 1]


def test_words_outside_the_vocabulary_are_refused(tasks):
    with pytest.raises(TaskFileError, match="'a cat'"):
        shop.truth(replace(tasks[0], deliverables=("a cat",)))
    assert read_point("it is nice") is None
