"""The images sent to the judge, to the pixel."""

import base64
import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from local_bench.core.images import CARD_SIDE, GAP, count_card, stitched
from local_bench.core.types import Collage
from local_bench.judges.vlm.protocols import Request, Shown, body, prepare

RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def noise(width, height, seed=0):
    rng = np.random.default_rng(seed)
    return Image.fromarray(rng.integers(0, 256, (height, width, 3), dtype=np.uint8))


def decoded(prepared):
    with Image.open(io.BytesIO(prepared.png)) as image:
        assert (image.format, image.mode) == ("PNG", "RGB")
        return image.copy()


def sent_as(image, **bounds):
    return decoded(prepare(Shown(("x",), None, **bounds), {"x": image}.__getitem__, 32))


@pytest.mark.parametrize("size", [(640, 480), (1999, 1501), (33, 31), (1, 1), (1024, 1024), (5000, 40), (40, 5000)])
@pytest.mark.parametrize(("least", "most"), [(1, 16_384), (1, 1_048_576), (65_536, 65_536)])
def test_sides_are_multiples_and_the_pixels_within_bounds(size, least, most):
    width, height = sent_as(noise(*size), min_pixels=least, max_pixels=most).size
    assert width % 32 == height % 32 == 0
    assert width * height <= most
    if most < 1_000_000 and max(size) == 5000:  # an extreme aspect ratio is shortened
        assert min(width, height) == 32


@pytest.mark.parametrize(
    ("size", "least", "most", "expected"),
    [
        ((100, 100), 262_144, 1_048_576, (512, 512)),  # enlarged to the least
        ((256, 1024), 262_144, 1_048_576, (256, 1024)),  # and no further
        ((100, 90), 16_384, 16_384, (128, 96)),  # equal bounds are approximated by multiples
    ],
)
def test_a_small_image_is_enlarged_to_the_least_and_no_further(size, least, most, expected):
    assert sent_as(noise(*size), min_pixels=least, max_pixels=most).size == expected


@pytest.mark.parametrize("size", [(100, 90), (520, 505), (333, 200), (33, 31)])
def test_an_enlarged_image_keeps_its_shape_as_far_as_multiples_allow(size):
    width, height = sent_as(noise(*size), min_pixels=262_144, max_pixels=1_048_576).size
    assert 262_144 <= width * height <= 262_144 * 1.15
    assert width / height == pytest.approx(size[0] / size[1], rel=32 / 400)


def test_what_a_prepared_file_holds_is_the_resized_image_and_its_name_is_the_file_s_digest():
    def prepared(image):
        return prepare(Shown(("x",), None, 1, 65_536), {"x": image}.__getitem__, 32)

    image, fitting = noise(700, 500), noise(256, 224)
    file = prepared(image)
    assert file.sha256 == hashlib.sha256(file.png).hexdigest()
    assert decoded(file).size == (288, 192)
    assert decoded(file).tobytes() == image.resize((288, 192), Image.Resampling.BICUBIC).tobytes()
    (part, _) = body(Request("", (), "", 1, 0, 0, "brf"), [file], "judge")["messages"][0]["content"]
    kind, _, sent = part["image_url"]["url"].partition(",")
    assert (kind, base64.b64decode(sent), part["uuid"]) == ("data:image/png;base64", file.png, file.sha256)
    assert prepared(image.copy()) == file
    assert prepared(noise(700, 500, seed=1)).sha256 != file.sha256
    assert decoded(prepared(fitting)).tobytes() == fitting.tobytes()  # within bounds: unchanged


def test_a_collage_has_its_inputs_above_at_the_height_of_the_first_output():
    red, green, blue = (
        Image.new("RGB", size, colour) for size, colour in (((100, 80), RED), ((40, 20), GREEN), ((50, 40), BLUE))
    )
    last = noise(70, 60)
    collage = stitched([red, green, blue, last], Collage((2, 2)))
    # inputs at 40 px: 50 and 80 wide; outputs 50 and 70 wide, as they are
    assert collage.size == (50 + GAP + 80, 40 + GAP + 60)
    assert collage.crop((70, 60, 140, 120)).tobytes() == last.tobytes()
    for box, colour in (
        ((0, 0, 50, 40), RED),
        ((70, 0, 150, 40), GREEN),
        ((0, 60, 50, 100), BLUE),
        ((0, 40, 150, 60), WHITE),  # between the rows
        ((50, 0, 70, 40), WHITE),  # between the inputs
        ((140, 60, 150, 120), WHITE),  # right of the shorter row
        ((0, 100, 50, 120), WHITE),  # below the lower output
    ):
        (left, top, right, bottom) = box
        assert collage.crop(box).getcolors() == [((right - left) * (bottom - top), colour)]
    source = noise(90, 60)  # an input is resized as other images
    resized = stitched([source, last.resize((30, 20))], Collage((1, 1))).crop((0, 0, 30, 20))
    assert resized.tobytes() == source.resize((30, 20), Image.Resampling.BICUBIC).tobytes()


def test_one_row_is_a_collage_without_inputs_and_an_empty_row_takes_no_space():
    first, second = noise(60, 40), noise(30, 40, seed=1)
    collage = stitched([first, second], Collage((2,)))
    assert collage.size == (60 + GAP + 30, 40)
    assert collage.crop((0, 0, 60, 40)).tobytes() == first.tobytes()
    assert collage.crop((80, 0, 110, 40)).tobytes() == second.tobytes()
    for rows in ((0, 2), (2, 0), (0, 2, 0)):
        assert stitched([first, second], Collage(rows)).tobytes() == collage.tobytes()


def test_a_collage_is_prepared_from_its_images_in_their_order():
    images = {"a": noise(64, 64), "b": noise(64, 64, seed=1)}
    collage = Shown(("a", "b"), Collage((1, 1)), 1, 1_000_000)
    plain = stitched([images["a"], images["b"]], Collage((1, 1)))
    assert plain.size == (64, 148)
    prepared = prepare(collage, images.__getitem__, 32)
    assert decoded(prepared).tobytes() == plain.resize((64, 128), Image.Resampling.BICUBIC).tobytes()
    assert prepare(Shown(("b", "a"), Collage((1, 1)), 1, 1_000_000), images.__getitem__, 32) != prepared


def test_cards_show_their_count_and_are_the_same_each_time():
    cards = {n: count_card(n) for n in (0, 1, 2, 7, 10, 12, 24)}
    assert {card.size for card in cards.values()} == {(CARD_SIDE, CARD_SIDE)} == {(512, 512)}
    assert len({card.tobytes() for card in cards.values()}) == len(cards)
    sent = prepare(Shown((), Collage(count=7), 1, 1_000_000), pytest.fail, 32)  # without any image
    assert decoded(sent).tobytes() == cards[7].tobytes()
    for card in cards.values():
        ink = np.asarray(card.convert("L")) < 128
        rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
        assert rows[-1] - rows[0] > 100  # large enough to be read
        assert abs((rows[0] + rows[-1]) / 2 - 256) < 30  # in the middle
        assert abs((columns[0] + columns[-1]) / 2 - 256) < 30
        assert card.getpixel((0, 0)) == WHITE
