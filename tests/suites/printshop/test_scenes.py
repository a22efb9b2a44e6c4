from dataclasses import asdict
from itertools import product

import numpy as np
import pytest
from PIL import Image

from examples.miniature.printshop.damage import enlarged
from examples.miniature.printshop.sampling import held_out, render, sample_scene, sample_variation, wording_held_out
from local_bench.core.images import pixel_digest
from local_bench.suites.printshop.phrases import wordings
from local_bench.suites.printshop.scene import (
    BACKGROUNDS,
    COLOURS,
    PLACES,
    SHAPES,
    SIZES,
    Figure,
    Scene,
    draw,
    scene_from,
)

GOLDEN = ["4a336ad493a6", "e470b62bf78e", "5ca24c786278", "d9b08e2caf3b"]


def pair(scene):
    return frozenset((figure.colour, figure.shape) for figure in scene.figures)


def all_of_one():
    for background, *attributes in product(BACKGROUNDS, SHAPES, COLOURS, PLACES, SIZES):
        yield Scene(background, (Figure(*attributes),))


def test_images_are_the_same_bytes_everywhere():
    def digests(seed):
        rng = np.random.default_rng(seed)
        return [pixel_digest(Image.fromarray(render(sample_scene(rng), rng))) for _ in range(4)]

    assert [d[:12] for d in digests(7)] == GOLDEN
    assert not set(digests(8)) & set(digests(7))


def test_a_scene_is_its_json_and_its_figures_have_no_order():
    left, right = Figure("ring", "red", "left"), Figure("cross", "blue", "right", "small")
    scene = Scene("white", (right, left))
    assert scene.figures == (left, right)
    assert scene == Scene("white", (left, right))
    assert scene_from(asdict(scene)) == scene
    assert scene == Scene("white", (left, right)) != Scene("black", (left, right))


@pytest.mark.parametrize(
    "figures",
    [
        (),
        (Figure("ring", "red", "left"), Figure("ring", "blue", "right")),
        (Figure("ring", "red", "left"), Figure("cross", "blue", "centre")),
        (Figure("ring", "red", "left"), Figure("cross", "blue", "left")),
    ],
)
def test_overlapping_figures_are_no_scene(figures):
    with pytest.raises(AssertionError):
        Scene("white", figures)


def test_no_training_scene_has_a_held_out_pair():
    rng = np.random.default_rng(0)
    trained = {pair(sample_scene(rng, 2, "train")) for _ in range(3000)}
    tested = {pair(sample_scene(rng, 2, "held_out")) for _ in range(1000)}
    assert not trained & tested
    assert 0.06 < len(tested) / len(trained | tested) < 0.15
    assert len(trained | tested) == 6 * 36, "all pairs of different shapes are seen on one side or the other"
    assert {pair(sample_scene(rng, 2)) for _ in range(2000)} & tested, "without a split they are drawn"


def test_a_held_out_pair_is_held_out_in_every_place_size_and_background():
    scene = sample_scene(np.random.default_rng(1), 2, "held_out")
    left, right = scene.figures
    swapped = (Figure(right.shape, right.colour, "left", "small"), Figure(left.shape, left.colour, "right", "large"))
    assert all(held_out(Scene(background, swapped)) for background in BACKGROUNDS)


def test_a_tenth_of_figure_and_wording_pairs_is_held_out():
    scenes = list(all_of_one())
    excluded = [[wording_held_out(scene, name) for name in wordings()] for scene in scenes]
    assert 0.08 < np.mean(excluded) < 0.12
    for language in ("en", "zh"):
        assert not any(all(wording_held_out(scene, name) for name in wordings(language)) for scene in scenes)


def test_enlarging_adds_nothing():
    rng = np.random.default_rng(2)
    scene = sample_scene(rng)
    image = draw(scene, sample_variation(rng, len(scene.figures)))
    large = enlarged(image)
    assert large.shape == (128, 128, 3)
    assert all((large[i::2, j::2] == image).all() for i, j in product(range(2), repeat=2))
