"""What holds for every network that reads one image at a time, on small models."""

import numpy as np
import pytest
from PIL import Image

from local_bench.judges.metrics.base import Subject, Unscorable

from .helpers import drawn, make_image, metric_of, noise, read, saved, score, values

CAPTION = "a poster of a mountain hut"
IMAGES = {"aes_v2.5:tiny-aesthetic": 1, "laion_aes:tiny-laion": 1}
"""With the length of the array that is read off an image."""
PAIRS = {
    "clip_cap:tiny-clip": ("caption", 64),
    "clip_src:tiny-clip": ("source picture", 64),
    "clip_ref:tiny-clip": ("reference picture", 64),
    "dino_ref:tiny-dinov2": ("reference picture", 48),
    "style_ref:tiny-csd": ("reference picture", 64),
}
PROMPTED = ("pick_score:tiny-pick-score", "hps_v2.1:tiny-hps", "image_reward:tiny-image-reward")
ALIKE = [name for name in PAIRS if "cap" not in name]
NEEDS = {name: what for name, (what, _) in PAIRS.items()} | dict.fromkeys(PROMPTED, "caption")


@pytest.mark.parametrize("name", [*IMAGES, *NEEDS])
def test_batches_order_and_neighbours_change_nothing(tmp_path, name):
    mask = Image.new("L", (96, 80), 0)
    mask.paste(255, (20, 10, 70, 60))
    masks = (None, saved(mask, tmp_path / "mask.png"))
    samples = [
        Subject(
            str(i),
            make_image(tmp_path, i, (96, 80 + 8 * i)),
            make_image(tmp_path, 100 + i, (64, 120)),
            masks[i % 2],
            references=(make_image(tmp_path, 200 + i, (72, 72)), make_image(tmp_path, 300 + i)),
            caption=f"{CAPTION} {i}",
        )
        for i in range(5)
    ]
    metric = metric_of(name)
    together = values(metric, samples, 4)
    assert together == pytest.approx(values(metric, samples, 1), rel=1e-5, abs=1e-5)
    assert len(set(together)) == len(samples)
    assert metric.network.identity["dtype"] == "float32"
    inputs = [feature_input for subject in samples for feature_input in metric.inputs(subject)]
    arrays, turned = read(metric.network, inputs, 4), read(metric.network, inputs[::-1], 4)[::-1]
    np.testing.assert_allclose(arrays, turned, atol=1e-5)
    if name not in PROMPTED:
        length = IMAGES[name] if name in IMAGES else PAIRS[name][1]
        assert {(array.dtype.name, array.shape) for array in arrays} == {("float32", (length,))}
    if name in PAIRS:
        np.testing.assert_allclose(np.linalg.norm(arrays, axis=1), 1, atol=1e-6)


@pytest.mark.parametrize("name", ALIKE)
def test_an_image_is_most_like_itself(tmp_path, name):
    image, full_mask = drawn(tmp_path / "a.png"), saved(Image.new("RGB", (160, 128), "white"), tmp_path / "m.png")
    same = [Subject("a", image, image, references=(image,)), Subject("b", image, image, full_mask, references=(image,))]
    assert values(metric_of(name), same) == pytest.approx([1, 1], abs=1e-6)


def test_missing_inputs_are_reported(tmp_path):
    for name, what in NEEDS.items():
        (missing,) = score(metric_of(name), [Subject("a", make_image(tmp_path, 1))])
        assert (missing.value, missing.unscored) == (None, f"there is no {what} to compare it with")


@pytest.mark.parametrize("name", ALIKE)
def test_an_extreme_aspect_ratio_is_unscored(name):
    with pytest.raises(Unscorable, match="30000x1 is too slender"):
        metric_of(name).network.prepare([Image.new("RGB", (30000, 1))], None)


GOLDEN = [
    ("aes_v2.5:tiny-aesthetic", {}, 5.556586),
    ("laion_aes:tiny-laion", {}, 4.016817),
    ("clip_cap:tiny-clip", {"caption": CAPTION}, -0.040087),
    ("clip_src:tiny-clip", {}, 0.971108),
    ("dino_ref:tiny-dinov2", {}, 0.569098),
    ("dino_ref:tiny-dinov2", {"mask": (70, 20, 150, 120)}, 0.541063),
    ("style_ref:tiny-csd", {}, 0.602147),
    ("pick_score:tiny-pick-score", {"caption": f"{CAPTION}, 3 suns"}, 0.970269),
    ("hps_v2.1:tiny-hps", {"caption": f"{CAPTION}, 3 suns"}, -0.116680),
    ("image_reward:tiny-image-reward", {"caption": f"{CAPTION}, 3 suns"}, 3.610406),
]


@pytest.mark.parametrize(("name", "settings", "expected"), GOLDEN)
def test_a_drawn_image_keeps_its_number(tmp_path, name, settings, expected):
    other, more = saved(noise(7), tmp_path / "b.png"), dict(settings)
    if "mask" in more:
        mask = Image.new("L", (160, 128), 0)
        mask.paste(255, more["mask"])
        more["mask"] = saved(mask, tmp_path / "m.png")
    subject = Subject("a", drawn(tmp_path / "a.png"), other, references=(other,), **more)
    assert values(metric_of(name), [subject]) == [pytest.approx(expected, abs=1e-4)]
