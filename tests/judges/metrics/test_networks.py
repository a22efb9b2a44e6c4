"""What holds for every network that reads one image at a time, on small models."""

import pytest
from PIL import Image

from local_bench.judges.metrics.base import Subject, Unscorable
from local_bench.judges.metrics.registry import make_metric

from .helpers import (
    assert_alone_as_together,
    assert_order_and_neighbours_change_nothing,
    drawn,
    make_image,
    saved,
    score,
    values,
)

IMAGES = ("aes_v2.5:tiny-aesthetic", "laion_aes:tiny-laion")
PAIRS = {
    "clip_cap:tiny-clip": "caption",
    "clip_src:tiny-clip": "source picture",
    "clip_ref:tiny-clip": "reference picture",
    "dino_ref:tiny-dinov2": "reference picture",
    "style_ref:tiny-csd": "reference picture",
}
PROMPTED = ("pick_score:tiny-pick-score", "hps_v2.1:tiny-hps", "image_reward:tiny-image-reward")
ALIKE = [name for name in PAIRS if "cap" not in name]


@pytest.mark.parametrize("name", [*IMAGES, *PAIRS, *PROMPTED])
def test_batches_order_and_neighbours_change_nothing(tmp_path, name):
    mask = Image.new("L", (96, 80), 0)
    mask.paste(255, (20, 10, 70, 60))
    masks = (None, saved(mask, tmp_path / "mask.png"))
    made = [
        Subject(
            str(i),
            make_image(tmp_path, i, (96, 80 + 8 * i)),
            make_image(tmp_path, 100 + i, (64, 120)),
            masks[i % 2],
            references=(make_image(tmp_path, 200 + i, (72, 72)), make_image(tmp_path, 300 + i)),
            caption=f"a poster of a mountain hut {i}",
        )
        for i in range(5)
    ]
    metric = make_metric(name)
    assert_alone_as_together(metric, made)
    if name not in PROMPTED:
        assert_order_and_neighbours_change_nothing(metric.network)
        metric.network.close()
    assert metric.network.identity["dtype"] == "float32"


@pytest.mark.parametrize("name", ALIKE)
def test_an_image_is_most_like_itself(tmp_path, name):
    one, full_mask = drawn(tmp_path / "a.png"), saved(Image.new("RGB", (160, 128), "white"), tmp_path / "m.png")
    same = [Subject("a", one, one, references=(one,)), Subject("b", one, one, full_mask, references=(one,))]
    assert values(make_metric(name), same) == pytest.approx([1, 1], abs=1e-6)


@pytest.mark.parametrize(("name", "what"), [*PAIRS.items(), *((name, "caption") for name in PROMPTED)])
def test_missing_inputs_are_reported(tmp_path, name, what):
    (one,) = score(make_metric(name), [Subject("a", make_image(tmp_path, 1))])
    assert (one.value, one.unscored) == (None, f"there is no {what} to compare it with")


@pytest.mark.parametrize("name", ALIKE)
def test_an_extreme_aspect_ratio_is_unscored(name):
    with pytest.raises(Unscorable, match="30000x1 is too slender"):
        make_metric(name).network.prepare([Image.new("RGB", (30000, 1))], None)
