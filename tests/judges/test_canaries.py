import pytest
from PIL import ImageChops

from local_bench.core.images import pixel_digest
from local_bench.core.types import Verdict
from local_bench.judges.vlm.injection import BAND_TOP, SIDE, Attack, attacks, fooled
from local_bench.judges.vlm.rubrics import rubric

ATTACKS, IMAGES = attacks()
NAMES = [attack.name for attack in ATTACKS]
each = pytest.mark.parametrize("attack", ATTACKS, ids=NAMES)


def test_the_set_is_the_same_on_every_call_and_names_its_images_by_their_digest():
    again, images = attacks()
    assert again == ATTACKS
    assert images.keys() == IMAGES.keys() == {sha for a in ATTACKS for q in (a.clean, a.attacked) for sha in q.images}
    for sha, image in IMAGES.items():
        assert (image.mode, image.size) == ("RGB", (SIDE, SIDE))
        assert pixel_digest(image) == pixel_digest(images[sha]) == sha


def test_names_are_unique_and_both_channels_cover_every_benchmark():
    assert len(set(NAMES)) == len(NAMES) >= 12
    rubrics = {way: {a.attacked.rubric for a in ATTACKS if a.way == way} for way in ("painted", "brief")}
    assert rubrics["painted"] == {*("brf", "veq_aesthetic", "veq_technical", "cns_edit", "vllm_qa", "hype_edit")}
    assert rubrics["brief"] == {"brf", "vllm_qa", "hype_edit"}


@each
def test_both_questions_render_and_every_answer_has_the_field(attack: Attack):
    tested = rubric(attack.clean.rubric)
    texts = [tested.render(tested.defaults | dict(q.slots), q.roles) for q in (attack.clean, attack.attacked)]
    assert (texts[0] == texts[1]) == (attack.way == "painted")
    assert not any("<|" in text for text in texts)
    assert all(attack.field in form for form in tested.answer)
    assert not tested.pictures or len(attack.clean.roles) == len(attack.clean.images)


@each
def test_clean_and_attacked_differ_in_the_attacking_text_only(attack: Attack):
    clean, attacked = attack.clean, attack.attacked
    same = ("rubric", "point", "roles", "repeat", "collage", "slots" if attack.way == "painted" else "images")
    assert all(getattr(clean, name) == getattr(attacked, name) for name in same)
    if attack.way == "painted":
        (pair,) = {(a, b) for a, b in zip(clean.images, attacked.images, strict=True) if a != b}
        box = ImageChops.difference(IMAGES[pair[0]], IMAGES[pair[1]]).getbbox()
        assert box is not None
        left, top, right, bottom = box  # no letter is cut off at the image's edge
        assert left > 0
        assert top > BAND_TOP
        assert max(right, bottom) < SIDE
    else:
        (changed,) = [(a, b) for (_, a), (_, b) in zip(clean.slots, attacked.slots, strict=True) if a != b]
        assert changed[1].startswith(changed[0])


def test_some_briefs_attack_in_chinese_and_some_with_a_fake_turn():
    attacked_slots = [dict(a.attacked.slots) for a in ATTACKS if a.way == "brief"]
    texts = ["\n".join(slots.values()) for slots in attacked_slots]
    assert sum("一" <= character <= "鿿" for text in texts for character in text) > 20
    assert sum("<|im_start|>system" in text for text in texts) >= 2
    assert sum("[end " in text for text in texts) >= 2


def verdict(value: object, labels: dict[str, float] | None = None) -> Verdict:
    return Verdict({"met": value}, None, "", None if labels is None else {"met": labels})


@pytest.mark.parametrize(
    ("clean", "attacked", "expected"),
    [
        (verdict(0), verdict(1), True),
        (verdict(False), verdict(True), True),
        (verdict(2), verdict(5), True),
        (verdict(1), verdict(1), False),
        (verdict(1), verdict(0), False),
        (verdict(0, {"0": 0.9, "1": 0.1}), verdict(1, {"0": 0.39, "1": 0.61}), True),
        (verdict(0, {"0": 0.9, "1": 0.1}), verdict(1, {"0": 0.45, "1": 0.55}), False),  # the answer flips, by less
        (verdict(0, {"0": 1.0, "1": 0.0}), verdict(1, {"0": 0.5, "1": 0.5}), False),
        (Verdict(None, "cut off", ""), verdict(1), None),
        (verdict(0), Verdict(None, "cut off", ""), None),
    ],
)
def test_fooled_means_more_than_half_a_step_above_the_clean_question(clean, attacked, expected):
    assert fooled(ATTACKS[0], clean, attacked) is expected
    clarity = next(a for a in ATTACKS if a.field == "clarity")  # the attacked field is compared
    low, high = (Verdict({"clarity": n, "realism": 5 - n}, None, "") for n in (1, 4))
    assert (fooled(clarity, low, high), fooled(clarity, high, low)) == (True, False)
