import numpy as np
import pytest
from PIL import Image

from local_bench.core.errors import ConfigError
from local_bench.judges.metrics.base import check_metrics, make_metric, metric_card, metric_names


def noise(seed, size=96):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8))


def smooth(size=96):
    ramp = np.linspace(0, 255, size)[None, :, None].repeat(size, 0).repeat(3, 2)
    return Image.fromarray(ramp.astype(np.uint8))


CAPTION = "a poster of a mountain hut"


@pytest.mark.parametrize("name", ["piqe", "entropy", "clip_cap:tiny-clip"])
def test_one_by_one_is_all_at_once_and_order_does_not_matter(name):
    metric, images = make_metric(name), [noise(1), smooth(), noise(2, 128)]
    together = [s.value for s in metric.score(images, [CAPTION] * 3)]
    assert together == [metric.score([image], [CAPTION])[0].value for image in images]
    assert [s.value for s in metric.score(images[::-1], [CAPTION] * 3)] == together[::-1]
    assert metric.spec.name == name


def test_entropy_is_shannons():
    grey = Image.fromarray(np.tile(np.arange(256, dtype=np.uint8), (256, 1)), "L").convert("RGB")
    assert make_metric("entropy").score([grey], [None])[0].value == pytest.approx(8, abs=0.05)
    assert make_metric("entropy").score([Image.new("RGB", (64, 64), "red")], [None])[0].value == pytest.approx(
        0, abs=1e-6
    )


def test_piqe_finds_noise_worse_than_a_ramp_with_little_noise():
    ramp = np.asarray(smooth(256), np.float32)
    rng = np.random.default_rng(0)
    light, heavy = (
        Image.fromarray(np.clip(ramp + rng.normal(0, sigma, ramp.shape), 0, 255).astype(np.uint8)) for sigma in (3, 60)
    )
    piqe = make_metric("piqe")
    assert piqe.score([heavy], [None])[0].value > piqe.score([light], [None])[0].value


def test_an_image_that_is_too_small_is_unscored_not_zero():
    (score,) = make_metric("piqe").score([noise(0, 16)], [None])
    assert score.value is None
    assert "smaller than 32 pixels" in score.unscored


def test_a_wrong_name_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'piqe'"):
        check_metrics(["piqué"])


def test_clip_cap_is_open_clips_own_cosine(cache):
    import open_clip
    import torch

    from local_bench.core.cards import card
    from local_bench.core.weights import resolve

    location = f"local-dir:{resolve(card('tiny-clip', 'metric'))}"
    model, _, prepare = open_clip.create_model_and_transforms(location)
    with torch.no_grad():
        seen = model.eval().encode_image(prepare(noise(3)).unsqueeze(0))
        read = model.encode_text(open_clip.get_tokenizer(location)([CAPTION]))
    expected = torch.nn.functional.cosine_similarity(seen, read).item()
    metric = make_metric("clip_cap:tiny-clip")
    assert metric.score([noise(3)], [CAPTION])[0].value == pytest.approx(expected, abs=1e-6)
    assert metric.score([noise(3)], ["another caption"])[0].value != pytest.approx(expected, abs=1e-6)
    assert metric.score([noise(3)], [None])[0].unscored == "there is no caption to compare it with"


def test_a_metric_is_named_with_its_model():
    assert metric_names() == ["clip_cap", "entropy", "piqe"]
    assert metric_card("clip_cap").name == "clip-vit-l-14-336"
    assert metric_card("clip_cap:tiny-clip").name == "tiny-clip"
    for wrong in ("piqe:tiny-clip", "clip_cap:tiny-flux", "clip-cap"):
        with pytest.raises(ConfigError):
            metric_card(wrong)
