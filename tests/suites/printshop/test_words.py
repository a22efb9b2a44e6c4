from dataclasses import replace
from itertools import product

import numpy as np
import pytest

from examples.miniature.printshop.sampling import sample_caption, sample_point, sample_scene, wording_held_out
from examples.miniature.printshop.wording import points_of, split_words, true_of, vocabulary, write_caption, write_point
from local_bench.suites.printshop.checker import DetectedFigure, DetectedScene
from local_bench.suites.printshop.matching import Point, holds, read_point
from local_bench.suites.printshop.phrases import LANGUAGES, read_caption, wordings


@pytest.mark.parametrize("wording", wordings())
def test_every_wording_is_read_back_to_its_scene(wording):
    rng = np.random.default_rng(0)
    for swapped, large in product((False, True), repeat=2):
        for _ in range(40):
            scene = sample_scene(rng)
            text = write_caption(scene, wording, swapped, large)
            assert read_caption(text) == scene, text
            assert read_caption(text.upper() + ".") == scene


def test_what_is_no_caption_is_not_read():
    for text in ("", "a cat", "a red ring", "white background", "a red ring on the left, mauve background"):
        assert read_caption(text) is None
    assert read_caption("a red ring on the left and a red ring on the right, white background") is None
    assert read_caption("a red ring in the center, gray background") is not None


def test_every_word_is_in_the_vocabulary():
    rng = np.random.default_rng(1)
    for _ in range(300):
        scene = sample_scene(rng)
        for text in (sample_caption(scene, rng), write_point(sample_point(scene, True, rng), "zh")):
            words = split_words(text)
            assert set(words) <= set(vocabulary())
            assert "".join(words) == text.replace(" ", "")
    assert split_words("一个红色的小圆环") == ["一个", "红色", "的", "小", "圆环"]
    assert not {"cat", "{shape}"} & set(vocabulary())


def test_training_never_receives_a_scene_in_a_held_out_wording():
    rng = np.random.default_rng(2)
    scene = next(s for s in iter(lambda: sample_scene(rng, 1), None) if wording_held_out(s, "en.plain"))
    forbidden = {write_caption(scene, "en.plain", say_large=large) for large in (False, True)}
    assert not forbidden & {sample_caption(scene, rng, "en", training=True) for _ in range(200)}
    assert forbidden & {sample_caption(scene, rng, "en") for _ in range(200)}


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("truthful", [True, False])
def test_points_are_read_back_and_have_the_requested_truth(language, truthful):
    rng = np.random.default_rng(3)
    for _ in range(300):
        scene = sample_scene(rng)
        point = sample_point(scene, truthful, rng)
        assert read_point(write_point(point, language)) == point
        assert true_of(point, scene) == truthful
    assert read_point("it looks hand-made") is None


def test_the_points_of_a_scene_are_true_of_it_alone():
    rng = np.random.default_rng(4)
    scenes = [sample_scene(rng) for _ in range(40)]
    for scene, other in product(scenes, repeat=2):
        assert all(true_of(point, other) for point in points_of(scene)) == (scene == other)


def test_a_point_about_an_unclear_figure_is_undecided():
    ring = DetectedFigure("ring", None, "left", "large", 0.0)
    seen = DetectedScene(None, (ring,), False, 0.0)
    assert holds(Point(shape="ring", colour="red"), seen) is None
    assert holds(Point(shape="cross", colour="red"), seen) is False
    assert holds(Point(shape="ring", place="left"), seen) is True
    assert holds(Point(shape="cross", absent=True), seen) is True
    assert holds(Point(shape="cross", absent=True), replace(seen, figures=(replace(ring, shape=None),))) is None
    assert holds(Point(background="white"), seen) is None
    assert holds(Point(count=2), seen) is False
