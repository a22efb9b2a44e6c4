import numpy as np
import pytest
from scipy import ndimage

from examples.miniature.printshop.comparison import same_but_for
from examples.miniature.printshop.damage import damage, enlarged
from examples.miniature.printshop.sampling import render, sample_scene
from local_bench.suites.printshop.checker import detect
from local_bench.suites.printshop.matching import match


def right(change, n):
    """How many of `n` fresh images, changed so, are read as their complete scene, and how many as another."""
    rng = np.random.default_rng(n)
    found = []
    for _ in range(n):
        scene = sample_scene(rng)
        found.append((detect(change(render(scene, rng), rng)).scene(), scene))
    return sum(seen == scene for seen, scene in found) / n, sum(seen not in (None, scene) for seen, scene in found) / n


def as_if_generated(image, rng):
    """Soft, a little off in colour, with fine and coarse noise."""
    coarse = 80 * ndimage.gaussian_filter(rng.normal(0, 1, image.shape), (3, 3, 0))
    soft = ndimage.gaussian_filter(image.astype(float), (1, 1, 0))
    return np.clip(soft + rng.uniform(-18, 18, 3) + rng.normal(0, 6, image.shape) + coarse, 0, 255).astype(np.uint8)


def test_decoded_images_of_an_autoencoder_are_read():
    """The best linear one of patches of 8x8 with 16 channels, with and without noise in its latents."""
    rng = np.random.default_rng(0)
    patches = np.concatenate([_patches(render(sample_scene(rng), rng)) for _ in range(300)])
    mean = patches.mean(0)
    basis = np.linalg.eigh((patches - mean).T @ (patches - mean))[1][:, -16:]
    spread = ((patches - mean) @ basis).std(0)

    def through(image, rng, noise):
        latents = (_patches(image) - mean) @ basis + noise * spread * rng.normal(0, 1, (64, 16))
        levels = (latents @ basis.T + mean).reshape(8, 8, 8, 8, 3).transpose(0, 2, 1, 3, 4).reshape(64, 64, 3)
        return np.clip(np.rint(levels), 0, 255).astype(np.uint8)

    assert right(lambda p, rng: through(p, rng, 0), 100)[0] >= 0.98
    assert right(lambda p, rng: through(p, rng, 0.1), 100)[0] >= 0.95
    assert right(lambda p, rng: through(p, rng, 0.6), 50)[0] < 0.5


def _patches(image):
    return image.astype(float).reshape(8, 8, 8, 8, 3).transpose(0, 2, 1, 3, 4).reshape(64, 192)


def test_two_thousand_fresh_images_are_read_without_a_fault():
    assert right(lambda image, rng: image, 2000) == (1, 0)


@pytest.mark.parametrize(
    ("change", "least"),
    [
        (lambda p, rng: enlarged(p), 1),
        (as_if_generated, 0.97),
        (lambda p, rng: damage(p, "blur", 2, rng), 0.97),
        (lambda p, rng: damage(p, "blur", 3, rng), 0.94),
        (lambda p, rng: damage(p, "noise", 3, rng), 0.97),
        (lambda p, rng: damage(p, "noise", 4, rng), 0.94),
        (lambda p, rng: damage(p, "blocks", 3, rng), 0.96),
        (lambda p, rng: damage(p, "blocks", 4, rng), 0.9),
    ],
)
def test_damaged_and_soft_images_are_mostly_read(change, least):
    assert right(change, 100)[0] >= least


def test_unclear_figures_are_left_open_and_not_misread():
    read, wrong = right(lambda p, rng: damage(p, "blur", 4, rng), 120)
    assert 0.4 < read < 0.9
    assert wrong < 0.2


def test_other_images_have_no_certain_scene():
    rng = np.random.default_rng(0)
    for image in (
        np.full((64, 64, 3), 245),
        rng.integers(0, 256, (64, 64, 3)),
        np.broadcast_to(np.arange(64)[:, None, None] * 4, (64, 64, 3)),
        np.kron(rng.integers(0, 256, (8, 8, 3)), np.ones((8, 8, 1))),
    ):
        seen = detect(image.astype(np.uint8))
        assert seen.scene() is None
        assert seen.confidence == 0
    for _ in range(25):
        cells = rng.integers(1, 33)
        detect(np.kron(rng.integers(0, 256, (cells, cells, 3)), np.ones((64, 64, 1)))[:64, :64].astype(np.uint8))


def test_only_sides_of_64_are_taken():
    for shape in ((64, 128, 3), (65, 65, 3), (32, 32, 3), (64, 64, 4)):
        with pytest.raises(ValueError, match="64x64"):
            detect(np.zeros(shape, np.uint8))


def test_only_the_same_scene_matches_completely():
    rng = np.random.default_rng(1)
    scenes = [sample_scene(rng) for _ in range(30)]
    for scene in scenes:
        seen = detect(render(scene, rng))
        assert match(seen, scene) == 1
        assert same_but_for(seen, scene, ())
        for other in scenes:
            if other != scene:
                assert match(seen, other) < 1
                assert not same_but_for(seen, other, ())
