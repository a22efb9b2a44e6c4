import numpy as np
import pytest
from PIL import Image

from local_bench.core.errors import ConfigError
from local_bench.judges.metrics.base import check_names, make_metric, metric_names


def noise(seed, size=96):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (size, size, 3), dtype=np.uint8))


def smooth(size=96):
    ramp = np.linspace(0, 255, size)[None, :, None].repeat(size, 0).repeat(3, 2)
    return Image.fromarray(ramp.astype(np.uint8))


@pytest.mark.parametrize("name", metric_names())
def test_one_by_one_is_all_at_once_and_order_does_not_matter(name):
    metric, images = make_metric(name), [noise(1), smooth(), noise(2, 128)]
    together = [s.value for s in metric.score(images)]
    assert together == [metric.score([image])[0].value for image in images]
    assert [s.value for s in metric.score(images[::-1])] == together[::-1]
    assert metric.spec.name == name


def test_entropy_is_shannons():
    grey = Image.fromarray(np.tile(np.arange(256, dtype=np.uint8), (256, 1)), "L").convert("RGB")
    assert make_metric("entropy").score([grey])[0].value == pytest.approx(8, abs=0.05)
    assert make_metric("entropy").score([Image.new("RGB", (64, 64), "red")])[0].value == pytest.approx(0, abs=1e-6)


def test_piqe_finds_noise_worse_than_a_ramp_with_little_noise():
    ramp = np.asarray(smooth(256), np.float32)
    rng = np.random.default_rng(0)
    light, heavy = (
        Image.fromarray(np.clip(ramp + rng.normal(0, sigma, ramp.shape), 0, 255).astype(np.uint8)) for sigma in (3, 60)
    )
    piqe = make_metric("piqe")
    assert piqe.score([heavy])[0].value > piqe.score([light])[0].value


def test_an_image_that_is_too_small_is_unscored_not_zero():
    (score,) = make_metric("piqe").score([noise(0, 16)])
    assert score.value is None
    assert "smaller than 32 pixels" in score.unscored


def test_a_wrong_name_names_the_nearest():
    with pytest.raises(ConfigError, match="did you mean 'piqe'"):
        check_names(["piqué"])
