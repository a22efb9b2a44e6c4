"""The metrics that read pixels: equal to computations written here from their formulas, on random images.

That neither order nor neighbours change a score: test_threads.py.
"""

import json

import cv2
import numpy as np
import pytest
from PIL import Image
from torchvision.transforms.functional import to_tensor

from local_bench.judges.metrics.base import ImageFile, Subject
from local_bench.judges.metrics.pixels import luma
from local_bench.judges.metrics.registry import make_metric

from .helpers import drawing, drawn, make_image, noise, saved, score, values, without_halves

SIZES = [((96, 80), (96, 80)), ((64, 120), (96, 80)), ((33, 47), (128, 31))]


def random_image(rng, size):
    return Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))


def subjects(tmp_path, n=6):
    rng = np.random.default_rng(7)
    samples = []
    for i in range(n):
        size, of_source = SIZES[i % len(SIZES)]
        mask = Image.fromarray((rng.random((of_source[1], of_source[0])) > 0.6).astype(np.uint8) * 255)
        samples.append(
            Subject(
                str(i),
                saved(random_image(rng, size), tmp_path / f"i{i}.png"),
                saved(random_image(rng, of_source), tmp_path / f"s{i}.png"),
                saved(mask, tmp_path / f"m{i}.png") if i % 2 else None,
            )
        )
    return samples


def opened(subject):
    source = Image.open(subject.source.path)
    image = Image.open(subject.image.path).resize(source.size, Image.Resampling.BICUBIC)
    mask = None if subject.mask is None else np.asarray(Image.open(subject.mask.path)) > 128
    return np.asarray(image, float), np.asarray(source, float), mask


def by_formula(name, subject):
    """Each from its definition, independently of our code."""
    image, source, mask = opened(subject)
    match name:
        case "l1_raw":
            weights = np.ones(image.shape) if mask is None else np.repeat(~mask[..., None], 3, 2).astype(float)
            return float((abs(image - source) / 255 * weights).sum() / weights.sum())
        case "colorfulness":
            r, g, b = (image[..., i] / 255 for i in range(3))
            rg, yb = abs(r - g), abs(0.5 * (r + g) - b)
            return float((rg.var() + yb.var()) ** 0.5 + 0.3 * (rg.mean() ** 2 + yb.mean() ** 2) ** 0.5)
        case "psnr":
            return float(-10 * np.log10(((image / 255 - source / 255) ** 2).mean() + 1e-8))
        case "l1_colorize":
            a, b = (np.asarray(Image.fromarray(x.astype(np.uint8)).convert("L"), float) for x in (image, source))
            return float(1 - abs(a - b).mean() / 255)
        case "l1_canny":
            edges = cv2.Canny(image.astype(np.uint8), 100, 200).astype(float)
            return float(1 - abs(edges - np.asarray(Image.open(subject.source.path).convert("L"), float)).mean() / 255)
        case "ssim":
            return wangs_ssim(image, source)
        case _:
            raise AssertionError(name)


def exact_luma(rgb):
    """(299 R + 587 G + 114 B) / 1000 rounded in integers, .5 to even."""
    quotient, rest = np.divmod(rgb.astype(np.int64) @ np.array([299, 587, 114]), 1000)
    return (quotient + (rest > 500) + (rest == 500) * (quotient % 2)).astype(float)


def wangs_ssim(x, y):
    """Wang et al. 2004 on luma, Gaussian window by two one-dimensional passes."""
    x, y = exact_luma(x), exact_luma(y)
    offsets = np.arange(11) - 5
    window = np.exp(-(offsets**2) / (2 * 1.5**2))
    window /= window.sum()

    def mean(p):
        p = np.apply_along_axis(np.convolve, 0, p, window, "valid")
        return np.apply_along_axis(np.convolve, 1, p, window, "valid")

    c1, c2 = (0.01 * 255) ** 2, (0.03 * 255) ** 2
    mx, my = mean(x), mean(y)
    vx, vy, cov = mean(x * x) - mx**2, mean(y * y) - my**2, mean(x * y) - mx * my
    contrast = np.maximum((2 * cov + c2) / (vx + vy + c2), 0)
    return float((contrast * (2 * mx * my + c1) / (mx**2 + my**2 + c1)).mean())


@pytest.mark.parametrize("name", ["colorfulness", "l1_raw", "l1_colorize", "l1_canny", "psnr", "ssim"])
def test_a_metric_equals_its_formula_with_masks_and_different_sizes(tmp_path, name):
    samples = subjects(tmp_path)
    results = values(make_metric(name), samples)
    assert results == [pytest.approx(by_formula(name, subject), abs=1e-6) for subject in samples]
    assert len(set(results)) == len(samples)


def test_ssim_is_pyiqas_where_no_luma_is_half(tmp_path):
    """float32 moves luma by at most 255 * 2^-22, so it can only decide where luma is .5, which integers show."""
    import pyiqa

    theirs = pyiqa.create_metric("ssim", device="cpu")
    for subject in subjects(tmp_path, 3):
        image, source = (Image.fromarray(without_halves(x)) for x in opened(subject)[:2])
        expected = float(theirs(*(to_tensor(x).unsqueeze(0) for x in (image, source))))
        clear = Subject("clear", saved(image, tmp_path / "image.png"), saved(source, tmp_path / "source.png"))
        assert values(make_metric("ssim"), [clear]) == [pytest.approx(expected, abs=1e-7)]


@pytest.mark.every_cpu
def test_every_colour_has_the_luma_of_integers_and_a_half_goes_to_even():
    rgb = np.stack(np.meshgrid(np.arange(0, 256, 3), np.arange(256), np.arange(0, 256, 5), indexing="ij"), -1)
    rgb = rgb.reshape(-1, 64, 3).astype(np.uint8)
    np.testing.assert_array_equal(luma(rgb), exact_luma(rgb))
    halves = rgb[(rgb.astype(int) @ np.array([299, 587, 114])) % 1000 == 500]
    assert len(halves) > 100
    assert not (luma(halves[None]) % 2).any()


@pytest.mark.every_cpu
def test_entropy_and_ssim_are_the_formulas_of_pyiqa_in_float64(tmp_path):
    """The same definition computed in two ways; SSIM's window is made by scipy in one and by pyiqa in the other."""
    samples = subjects(tmp_path, 3)
    for name in ("entropy", "ssim"):
        assert values(make_metric(name), samples) == pytest.approx(
            values(make_metric(f"pyiqa:{name}"), samples), rel=1e-12
        )


GOLDEN = {
    "colorfulness": 0.2899681446520726,
    "entropy": 6.719340678370662,
    "l1_aligned": 0.02976222222222222,
    "l1_canny": 0.4990806535947713,
    "l1_colorize": 0.9792467973856209,
    "l1_raw": 0.02976222222222222,
    "piqe": 57.271242865810464,
    "psnr": 27.489696330953404,
    "ssim": 0.6985753101839334,
    "ssim_aligned": 0.6985753101839334,
    "pyiqa:cw_ssim": 0.9962560822855021,
    "pyiqa:fsim": 0.6897871164192735,
    "pyiqa:gmsd": 0.09760701514732453,
    "pyiqa:mad": 172.1007572107194,
    "pyiqa:nlpd": 0.21480840238335205,
    "pyiqa:psnr": 27.489696330953404,
    "pyiqa:psnry": 30.356491227912393,
    "pyiqa:ssimc": 0.5365861634733282,
    "pyiqa:vif": 0.5251764178808074,
    "pyiqa:vsi": 0.9265259006753952,
}
# Sums of exact or correctly rounded float64 terms: n terms of one sign, added in any order, are off by at most n 2^-53
# of their sum. Here n is at most 3 * 160 * 128, and no formula multiplies that by more than 10.
# VIF alone divides by what is left after a cancellation (a band's variance in a window), here over 1e-3 of the terms.
FLOAT64 = 10 * 3 * 160 * 128 * 2**-53


@pytest.mark.every_cpu
@pytest.mark.parametrize("name", GOLDEN)
def test_a_drawn_image_keeps_its_number(tmp_path, name):
    grain = np.random.default_rng(3).normal(0, 12, (150, 200, 3))
    grainy = Image.fromarray((np.asarray(drawing((200, 150))) + grain).clip(0, 255).astype(np.uint8))
    image = saved(grainy.resize((160, 128), Image.Resampling.BOX), tmp_path / "image.png")
    subject = Subject("drawn", image, drawn(tmp_path / "source.png", (200, 150)))
    assert values(make_metric(name), [subject]) == [pytest.approx(GOLDEN[name], rel=FLOAT64)]


def test_the_source_itself_has_the_best_score(tmp_path):
    same = Subject("same", drawn(tmp_path / "a.png"), drawn(tmp_path / "b.png"))
    best = {"l1_raw": 0, "l1_aligned": 0, "ssim": 1, "ssim_aligned": 1, "l1_colorize": 1}
    assert {name: values(make_metric(name), [same])[0] for name in best} == best
    assert values(make_metric("psnr"), [same]) == [pytest.approx(80)]


def test_the_masked_region_does_not_count_and_a_mask_of_everything_leaves_nothing(tmp_path):
    source, edited = drawn(tmp_path / "source.png"), drawing()
    width, height = edited.size
    left_half = (0, 0, width // 2, height)
    edited.paste((0, 255, 0), left_half)
    image = saved(edited, tmp_path / "image.png")
    half, everything, grey = (Image.new("L", edited.size, shade) for shade in (0, 255, 128))
    half.paste(255, left_half)
    small = half.resize((width // 2, height // 2), Image.Resampling.NEAREST)
    masks = [saved(mask, tmp_path / f"m{i}.png") for i, mask in enumerate((half, small, everything, grey))]
    samples = [Subject(str(i), image, source, mask) for i, mask in enumerate([*masks, None])]
    inside, smaller, nothing, threshold, whole = score(make_metric("l1_raw"), samples)
    assert inside.value == smaller.value == 0
    assert whole.value > 0.05
    assert (nothing.value, nothing.unscored) == (None, "the mask leaves nothing to compare")
    assert threshold.value == whole.value  # 128 is not edited, 129 is


@pytest.mark.parametrize("move", [(3, 0), (0, -4), (-5, 2)])
def test_a_shifted_result_is_aligned_before_the_comparison(tmp_path, move):
    source = noise(5, (160, 128))
    moved = Image.fromarray(np.roll(np.asarray(source), move, (0, 1)))
    subject = Subject("moved", saved(moved, tmp_path / "moved.png"), saved(source, tmp_path / "source.png"))
    raw, aligned, ssim, ssim_aligned = (
        values(make_metric(name), [subject])[0] for name in ("l1_raw", "l1_aligned", "ssim", "ssim_aligned")
    )
    assert raw > 0.01
    assert aligned == pytest.approx(0, abs=1e-9)
    assert ssim < 0.9
    assert ssim_aligned == pytest.approx(1, abs=1e-9)


def test_alignment_never_increases_the_distance_and_ignores_large_shifts(tmp_path):
    source = noise(6, (160, 128))
    far = Image.fromarray(np.roll(np.asarray(source), 40, 1))
    shifted = Subject("far", saved(far, tmp_path / "far.png"), saved(source, tmp_path / "near.png"))
    raw, aligned = (values(make_metric(name), [*subjects(tmp_path), shifted]) for name in ("l1_raw", "l1_aligned"))
    assert all(after <= before for before, after in zip(raw, aligned, strict=True))
    assert aligned[-1] == raw[-1]


def test_missing_and_damaged_inputs_are_unscored_and_the_others_measured(tmp_path):
    good = make_image(tmp_path, 1)
    torn, bomb, gone = (ImageFile(tmp_path / f"{name}.png") for name in ("torn", "bomb", "gone"))
    torn.path.write_bytes(good.path.read_bytes()[:200])
    Image.new("1", (11_000, 11_000)).save(bomb.path)
    pairs = [(good, good), (torn, good), (good, torn), (good, None), (bomb, good), (gone, good)]
    scores = score(make_metric("l1_raw"), [Subject(str(i), *pair) for i, pair in enumerate(pairs)])
    assert [each.value for each in scores] == [0, None, None, None, None, None]
    reasons = [each.unscored for each in scores[1:]]
    expected = [
        "torn.png",
        "torn.png",
        "there is no source picture to compare it with",
        "11000x11000",
        "does not exist",
    ]
    assert [part in reason for part, reason in zip(expected, reasons, strict=True)] == [True] * 5
    assert str(tmp_path) not in json.dumps(reasons)
    small = saved(Image.new("RGB", (8, 20)), tmp_path / "small.png")
    assert "smaller than 11 pixels" in score(make_metric("ssim"), [Subject("small", small, small)])[0].unscored
