"""What is done to scenes and images: edits, damage, sets, writing."""

import numpy as np
import pytest

from examples.miniature.printshop import damage, writing
from examples.miniature.printshop.comparison import match_edit, must_change, same_but_for, style_agreement
from examples.miniature.printshop.sampling import draw_edit, render, sample_edit, sample_scene
from examples.miniature.printshop.sets import STYLE, draw_set, sample_set, style_of
from examples.miniature.printshop.wording import split_words, vocabulary, write_instruction
from local_bench.suites.printshop.checker import detect
from local_bench.suites.printshop.matching import facts, must_stay
from local_bench.suites.printshop.phrases import KINDS, LANGUAGES, apply_edit, read_instruction
from local_bench.suites.printshop.scene import PLACES, Figure, Scene

MAY_CHANGE = {
    "recolour": {"colour"},
    "reshape": {"shape"},
    "background": {"background"},
    "add": {"count", "shape", "colour", "size"},
    "remove": {"count", "shape", "colour", "size"},
    "move": {"shape", "colour", "size"},
}


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_changes_only_what_it_describes(kind):
    rng = np.random.default_rng(0)
    for _ in range(25):
        edit = sample_edit(rng, kind)
        changed = facts(edit.source) ^ facts(edit.target)
        assert changed
        assert {attribute for _, attribute, _ in changed} <= MAY_CHANGE[kind]
        assert must_change(edit)
        assert must_change(edit) | must_stay(edit) == facts(edit.target)
        source, target = draw_edit(edit, rng)
        assert (detect(source).scene(), detect(target).scene()) == (edit.source, edit.target)
        assert same_but_for(detect(target), edit.source, tuple(MAY_CHANGE[kind]))
        differing = np.nonzero((source != target).any((0, 2)))[0]  # columns
        if kind in ("recolour", "reshape", "add", "remove"):
            at = [f.place for f in set(edit.source.figures) ^ set(edit.target.figures)]
            assert abs(differing - PLACES[at[0]]).max() <= 17, "what stays does not move by a pixel"
        assert match_edit(detect(target), edit).whole
        lazy = match_edit(detect(source), edit)
        assert lazy.kept == 1
        assert lazy.changed < 1


@pytest.mark.parametrize("language", LANGUAGES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_instruction_is_read_back_to_its_edit(kind, language):
    rng = np.random.default_rng(1)
    for wording in range(3):
        for _ in range(20):
            edit = sample_edit(rng, kind)
            text = write_instruction(edit, language, wording)
            assert read_instruction(text, edit.source) == edit, text
            assert set(split_words(text)) <= set(vocabulary())
    assert read_instruction("make it pop", edit.source) is None


def test_an_edit_that_cannot_be_made_is_none():
    scene = Scene("white", (Figure("ring", "red", "centre"),))
    assert apply_edit(scene, "recolour", {"shape": "cross", "colour": "blue"}) is None
    assert apply_edit(scene, "recolour", {"shape": "ring", "colour": "red"}) is None
    assert apply_edit(scene, "remove", {"shape": "ring"}) is None
    assert apply_edit(scene, "add", {"shape": "cross", "colour": "red", "place": "left"}) is None


@pytest.mark.parametrize("kind", damage.KINDS)
def test_damage_grows_with_its_strength_and_is_seeded(kind):
    rng = np.random.default_rng(3)
    for seed in range(20):
        image = render(sample_scene(rng), rng)
        bad = [damage.damage(image, kind, s, np.random.default_rng(seed)) for s in damage.STRENGTHS]
        quality = [damage.psnr_db(image, each) for each in bad]
        assert quality == sorted(quality, reverse=True)
        assert len(set(quality)) == 4
        assert quality[0] < 50
        assert (bad[2] == damage.damage(image, kind, 3, np.random.default_rng(seed))).all()
        assert (bad[2] != damage.damage(image, kind, 3, np.random.default_rng(seed + 100))).any()


@pytest.mark.parametrize("broken", [None, *STYLE])
def test_a_set_shares_its_style_or_one_image_breaks_it(broken):
    rng = np.random.default_rng(4)
    for _ in range(20):
        images = sample_set(rng, int(rng.integers(3, 5)), broken)
        seen = [detect(image) for image in draw_set(images, rng)]
        assert [each.scene() for each in seen] == list(images.scenes)
        styles = [style_of(scene) for scene in images.scenes]
        others = [style for i, style in enumerate(styles) if i != images.breaker]
        assert len(set(others)) == 1
        assert len({scene.figures[0].shape for scene in images.scenes}) == len(styles)
        if broken is None:
            assert images.breaker is None
            assert style_agreement(seen) == 1
        else:
            differs = [a != b for a, b in zip(styles[images.breaker], others[0], strict=True)]
            assert differs == [name == broken for name in STYLE]
            assert style_agreement(seen) == pytest.approx(1 - 1 / (3 * len(styles)))


@pytest.mark.parametrize("text", writing.INJECTED_TEXTS)
def test_lettering_is_detected_and_hides_no_figure(text):
    rng = np.random.default_rng(5)
    for edge in ("top", "bottom"):
        scene = sample_scene(rng)
        image = render(scene, rng)
        written = writing.draw_text(image, text, scene.background, edge)
        seen = detect(written)
        assert seen.scene() == scene
        assert seen.writing
        assert not detect(image).writing
        assert (written == writing.draw_text(image, text, scene.background, edge)).all()
        rows = np.nonzero((written != image).any((1, 2)))[0]
        assert len(rows) == 10


def test_lettering_that_cannot_be_drawn_is_an_error():
    image = render(Scene("white", (Figure("ring", "red", "left"),)), np.random.default_rng(6))
    with pytest.raises(ValueError, match="does not fit"):
        writing.draw_text(image, "10/1010/10", "white")
    with pytest.raises(ValueError, match="'Q'"):
        writing.draw_text(image, "Q", "white")
