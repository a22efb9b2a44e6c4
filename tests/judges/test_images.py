"""The images sent to the judge, to the pixel."""

import hashlib
import io

import numpy as np
import pytest
from PIL import Image

from local_bench.core.images import CARD_SIDE, GAP, count_card, stitched
from local_bench.core.types import Collage
from local_bench.judges.vlm.chat_api import prepare
from local_bench.judges.vlm.protocols import Shown

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


@pytest.mark.parametrize("size", [(640, 480), (1999, 1501), (33, 31), (1, 1), (1024, 1024), (300, 900)])
@pytest.mark.parametrize(("least", "most"), [(1, 16_384), (1, 1_048_576), (65_536, 65_536)])
def test_sides_are_multiples_and_the_pixels_within_bounds(size, least, most):
    width, height = sent_as(noise(*size), min_pixels=least, max_pixels=most).size
    assert width % 32 == height % 32 == 0
    assert width * height <= most


@pytest.mark.parametrize("size", [(5000, 40), (40, 5000)])
@pytest.mark.parametrize(("least", "most"), [(1, 16_384), (65_536, 65_536)])
def test_an_extreme_aspect_ratio_is_shortened(size, least, most):
    width, height = sent_as(noise(*size), min_pixels=least, max_pixels=most).size
    assert min(width, height) == 32
    assert width % 32 == height % 32 == 0
    assert width * height <= most


@pytest.mark.parametrize(("size", "expected"), [((100, 100), (512, 512)), ((256, 1024), (256, 1024))])
def test_a_small_image_is_enlarged_to_the_least_and_no_further(size, expected):
    assert sent_as(noise(*size), min_pixels=262_144, max_pixels=1_048_576).size == expected


@pytest.mark.parametrize("size", [(100, 90), (520, 505), (333, 200), (33, 31)])
def test_an_enlarged_image_keeps_its_shape_as_far_as_multiples_allow(size):
    width, height = sent_as(noise(*size), min_pixels=262_144, max_pixels=1_048_576).size
    assert 262_144 <= width * height <= 262_144 * 1.15
    assert width / height == pytest.approx(size[0] / size[1], rel=32 / 400)


def test_an_image_within_bounds_is_sent_unchanged():
    image = noise(256, 224)
    assert decoded(prepare(Shown(("x",)), {"x": image}.__getitem__, 32)).tobytes() == image.tobytes()


def test_what_a_prepared_file_holds_is_the_resized_image_and_its_name_is_the_file_s_digest():
    image = noise(700, 500)
    prepared = prepare(Shown(("x",), None, 1, 65_536), {"x": image}.__getitem__, 32)
    assert prepared.sha256 == hashlib.sha256(prepared.png).hexdigest()
    size = decoded(prepared).size
    assert size == (288, 192)
    assert decoded(prepared).tobytes() == image.resize(size, Image.Resampling.BICUBIC).tobytes()
    assert prepared.data_uri.startswith("data:image/png;base64,")
    again = prepare(Shown(("x",), None, 1, 65_536), {"x": image.copy()}.__getitem__, 32)
    assert again == prepared
    other = prepare(Shown(("x",), None, 1, 65_536), {"x": noise(700, 500, seed=1)}.__getitem__, 32)
    assert other.sha256 != prepared.sha256


def flat(size, colour):
    return Image.new("RGB", size, colour)


def test_outputs_are_in_a_row_with_white_gaps_and_unchanged_pixels():
    first, second = noise(60, 40), noise(30, 50, seed=1)
    collage = stitched([first, second], Collage((2,)))
    assert collage.size == (60 + GAP + 30, 50)
    assert collage.crop((0, 0, 60, 40)).tobytes() == first.tobytes()
    assert collage.crop((80, 0, 110, 50)).tobytes() == second.tobytes()
    assert collage.crop((60, 0, 80, 50)).getcolors() == [(20 * 50, WHITE)]
    assert collage.crop((0, 40, 60, 50)).getcolors() == [(60 * 10, WHITE)]


def test_inputs_are_above_at_the_height_of_the_first_output():
    images = [flat((100, 80), RED), flat((40, 20), GREEN), flat((50, 40), BLUE), noise(70, 60)]
    collage = stitched(images, Collage((2, 2)))
    # inputs at 40 px: 50 and 80 wide; outputs 50 and 70 wide, as they are
    assert collage.size == (50 + GAP + 80, 40 + GAP + 60)
    assert collage.crop((0, 0, 50, 40)).getcolors() == [(50 * 40, RED)]
    assert collage.crop((70, 0, 150, 40)).getcolors() == [(80 * 40, GREEN)]
    assert collage.crop((0, 60, 50, 100)).getcolors() == [(50 * 40, BLUE)]
    assert collage.crop((70, 60, 140, 120)).tobytes() == images[3].tobytes()
    assert collage.crop((0, 40, 150, 60)).getcolors() == [(150 * 20, WHITE)]  # between the rows
    assert collage.crop((50, 0, 70, 40)).getcolors() == [(20 * 40, WHITE)]  # between the inputs
    assert collage.crop((140, 60, 150, 120)).getcolors() == [(10 * 60, WHITE)]  # right of the shorter row
    assert collage.crop((0, 100, 50, 120)).getcolors() == [(50 * 20, WHITE)]  # below the lower output


def test_an_input_is_resized_as_other_images():
    image = noise(90, 60)
    collage = stitched([image, flat((30, 20), BLUE)], Collage((1, 1)))
    assert collage.crop((0, 0, 30, 20)).tobytes() == image.resize((30, 20), Image.Resampling.BICUBIC).tobytes()


@pytest.mark.parametrize("rows", [(0, 2), (2, 0), (2,), (0, 2, 0)])
def test_an_empty_row_takes_no_space(rows):
    images = [noise(50, 40), noise(50, 40, seed=1)]
    assert stitched(images, Collage(rows)).tobytes() == stitched(images, Collage((2,))).tobytes()
    assert stitched(images, Collage(rows)).size == (120, 40)


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
    assert all(count_card(n).tobytes() == card.tobytes() for n, card in cards.items())
    for card in cards.values():
        ink = np.asarray(card.convert("L")) < 128
        rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
        assert rows[-1] - rows[0] > 100  # large enough to be read
        assert abs((rows[0] + rows[-1]) / 2 - 256) < 30  # in the middle
        assert abs((columns[0] + columns[-1]) / 2 - 256) < 30
        assert card.getpixel((0, 0)) == WHITE


def test_a_card_is_prepared_without_any_image():
    def load(sha256):
        raise AssertionError(sha256)

    prepared = prepare(Shown((), Collage(count=7), 1, 1_000_000), load, 32)
    assert decoded(prepared).tobytes() == count_card(7).tobytes()


def test_equal_bounds_are_approximated_by_multiples():
    assert sent_as(noise(100, 90), min_pixels=16_384, max_pixels=16_384).size == (128, 96)
