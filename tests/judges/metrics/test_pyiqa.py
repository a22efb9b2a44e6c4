"""pyiqa's metrics through our loading: the numbers of pyiqa's own, and nothing left behind by the way they are got."""

import random
import shutil
import warnings

import numpy as np
import pytest
import torch
from torchvision.transforms.functional import to_tensor

from local_bench.core.cards import card
from local_bench.core.convert import convert, read_converted
from local_bench.core.weights import resolve
from local_bench.judges.metrics.base import Subject, Unscorable
from local_bench.judges.metrics.pyiqa_metric import PyiqaFormula, PyiqaMetric
from local_bench.judges.metrics.pyiqa_network import PyiqaNetwork, called
from local_bench.judges.metrics.pyiqa_scope import seeded
from local_bench.judges.metrics.pyiqa_store import Store, read_store
from local_bench.judges.metrics.pyiqa_tiny import _MUSIQ
from local_bench.judges.metrics.registry import Weights, make_metric

from .helpers import alone, blurred, drawing, drawn, noise, picture, saved, score, values

TINY = ("brisque", "clipiqa", "lpips", "musiq_koniq:tiny-musiq", "nima", "niqe")


def tiny(name):
    return make_metric(name if ":" in name else f"{name}:tiny-{name}")


def plain(metric, *images):
    """What pyiqa says by itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(metric(*(to_tensor(image)[None] for image in images)))


@pytest.fixture
def theirs():
    """pyiqa's own `create_metric`, on the CPU."""
    import pyiqa

    def create(name, **options):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return pyiqa.create_metric(name, device=torch.device("cpu"), **options)

    return create


@pytest.fixture
def subjects(tmp_path):
    source = saved(noise(5, (128, 208)), tmp_path / "source.png")
    images = [drawn(tmp_path / "d.png", (128, 208)), *(picture(tmp_path, seed, (128, 208)) for seed in (1, 2))]
    return [alone(str(i), image, source=source) for i, image in enumerate(images)]


# The numbers are pyiqa's


def test_musiq_is_pyiqas_own_bit_for_bit_from_a_checkpoint_to_the_score(theirs, tmp_path):
    state = read_converted(resolve(card("tiny-musiq", "metric")) / "musiq_koniq_ckpt-e95806b9.safetensors")
    checkpoint = tmp_path / "musiq.pth"
    torch.save(state, checkpoint)
    folder = tmp_path / "fetched"
    shutil.copytree(resolve(card("tiny-musiq", "metric")), folder)
    (folder / "musiq_koniq_ckpt-e95806b9.safetensors").unlink()
    convert(checkpoint, folder / "musiq_koniq_ckpt-e95806b9.safetensors", "musiq.pth")
    own = theirs("musiq", pretrained_model_path=str(checkpoint), **_MUSIQ)
    as_it_is = PyiqaMetric("pyiqa:musiq", Weights(card("tiny-musiq", "metric"), folder, {}), "musiq")
    images = [drawing((160, 128)), noise(1, (72, 200))]
    taken = [alone(str(i), saved(image, tmp_path / f"{i}.png")) for i, image in enumerate(images)]
    assert values(as_it_is, taken) == [plain(own, image) for image in images]
    slender = noise(2, (40, 160))
    (found,) = values(tiny("musiq_koniq:tiny-musiq"), [alone("s", saved(slender, tmp_path / "s.png"))])
    assert found == plain(own, slender.resize((256, 1024), 3))
    assert found != plain(own, slender)


def test_clipiqa_is_pyiqas_own_bit_for_bit_from_an_archive_of_torchscript(theirs, tmp_path):
    from clip.model import CLIP

    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = CLIP(64, 64, (1, 1, 1, 1), 8, None, 77, 49408, 64, 1, 2).eval()
        traced = torch.jit.trace(model, (torch.rand(1, 3, 64, 64), torch.zeros(1, 77, dtype=torch.int64)))
        traced.save(tmp_path / "clip.pt")
        own = theirs("clipiqa", backbone=str(tmp_path / "clip.pt"))
    folder = tmp_path / "fetched"
    shutil.copytree(resolve(card("tiny-clipiqa", "metric")), folder)
    (folder / "RN50.safetensors").unlink()
    convert(tmp_path / "clip.pt", folder / "RN50.safetensors", "clip.pt")
    metric = PyiqaMetric("clipiqa", Weights(card("tiny-clipiqa", "metric"), folder, {}), "clipiqa")
    image = drawing((160, 128))
    assert values(metric, [alone("a", saved(image, tmp_path / "a.png"))]) == [plain(own, image)]


def test_nima_is_pyiqas_own_bit_for_bit(theirs, tmp_path, monkeypatch):
    import timm

    folder = resolve(card("tiny-nima", "metric"))
    checkpoint = tmp_path / "nima.pth"
    torch.save(read_converted(folder / "tiny-nima.safetensors"), checkpoint)
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **o: create(name, pretrained=False, **o))
    own = theirs("nima", base_model_name="mobilenetv3_small_050", pretrained_model_path=str(checkpoint))
    images = [drawing((160, 128)), noise(1, (240, 256))]
    taken = [alone(str(i), saved(image, tmp_path / f"{i}.png")) for i, image in enumerate(images)]
    assert values(tiny("nima"), taken) == [plain(own, image) for image in images]


def test_lpips_niqe_and_brisque_are_pyiqas_own(theirs, tmp_path, monkeypatch):
    from pyiqa.utils import download_util

    monkeypatch.setattr(download_util, "DEFAULT_CACHE_DIR", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    for place in (tmp_path / "hub", tmp_path / "hub/checkpoints"):
        place.mkdir()
    for name in ("lpips", "niqe", "brisque"):
        folder = resolve(card(f"tiny-{name}", "metric"))
        for url, file in read_store(folder).files.items():
            where = tmp_path / "hub" / ("checkpoints" if "pytorch.org" in url else "") / url.rpartition("/")[2]
            if file.endswith(".mat"):
                shutil.copy(folder / file, where)
            else:
                torch.save(read_converted(folder / file), where)
    image, source = drawing((256, 224)), blurred(drawing((256, 224)))
    subject = alone("a", saved(image, tmp_path / "a.png"), source=saved(source, tmp_path / "b.png"))
    assert values(tiny("lpips"), [subject]) == [plain(theirs("lpips", net="squeeze"), image, source)]
    for name in ("niqe", "brisque"):  # computed in float64, kept in float32
        assert values(tiny(name), [subject]) == [np.float32(plain(theirs(name), image))]


@pytest.mark.parametrize("name", ["piqe", "entropy", "pyiqa:psnr", "pyiqa:cw_ssim", "pyiqa:gmsd"])
def test_formulas_are_pyiqas_own(theirs, subjects, name):
    metric = make_metric(name)
    assert isinstance(metric, PyiqaFormula)
    own = theirs(name.removeprefix("pyiqa:"))
    expected = [
        plain(own, *([s.image.load(), s.source.load()] if "source" in metric.spec.needs else [s.image.load()]))
        for s in subjects
    ]
    assert values(metric, subjects) == expected


def test_what_is_compared_has_the_sources_size(theirs, tmp_path):
    image, source = drawing((96, 80)), blurred(drawing((128, 112)))
    subject = alone("a", saved(image, tmp_path / "a.png"), source=saved(source, tmp_path / "b.png"))
    expected = plain(theirs("psnr"), image.resize((128, 112), 3), source)
    assert values(make_metric("pyiqa:psnr"), [subject]) == [expected]


GOLDEN = {
    "brisque": 164.325,
    "clipiqa": 0.62075,
    "entropy": 5.25993,
    "lpips": 0.177957,
    "musiq_koniq:tiny-musiq": -12.2018,
    "nima": 6.71185,
    "niqe": 5.93404,
    "piqe": 87.0044,
}


@pytest.mark.parametrize(("name", "expected"), GOLDEN.items())
def test_a_drawing_has_the_score_that_it_always_had(tmp_path, name, expected):
    size = (64, 160) if name.startswith("musiq") else (256, 224)
    subject = alone("a", drawn(tmp_path / "a.png", size), source=saved(blurred(drawing(size)), tmp_path / "b.png"))
    (found,) = values(make_metric(name) if name in ("piqe", "entropy") else tiny(name), [subject])
    assert found == pytest.approx(expected, abs=1e-5, rel=1e-5)


# One picture's score is its own


@pytest.mark.parametrize("name", TINY)
def test_neither_order_nor_neighbours_nor_a_batch_change_a_score(subjects, name):
    if name.startswith("musiq"):
        subjects = [Subject(s.key, saved(s.image.load().resize((24, 64)), s.image.path)) for s in subjects[:2]]
    metric = tiny(name)
    found = values(metric, subjects)
    assert None not in found
    assert len(set(found)) == len(found)
    assert values(metric, subjects[::-1]) == found[::-1]
    assert values(metric, subjects[:1]) == found[:1]
    network = metric.network
    network.open("cpu")
    assert {p.dtype for p in network._model.parameters()} <= {torch.float32}
    assert network.identity["dtype"] == "float32"
    looks = [look for s in subjects for look in metric.looks(s)]
    together = network.run([network.prepare([p.load() for p in look.pictures], None) for look in looks])
    assert [metric.value([array]) for array in together] == found


def test_a_network_that_draws_gives_a_picture_one_score_and_leaves_the_random_numbers_alone(subjects):
    class Draws(torch.nn.Module):
        def forward(self, x):
            crop = np.random.randint(0, 50)
            return (x[..., crop:] * torch.rand(1) + random.random()).mean()

    network = PyiqaNetwork("test", Store("psnr"))
    network._model = Draws()
    inputs = [network.prepare([s.image.load()], None) for s in subjects]
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    found = network.run(inputs)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()
    again = network.run(inputs[::-1])[::-1]
    assert [a.tobytes() for a in found] == [a.tobytes() for a in again]
    assert len({float(a[0]) for a in found}) == len(found)
    assert Draws()(inputs[0][0]) != Draws()(inputs[0][0])


def test_the_same_picture_is_at_no_distance(tmp_path):
    same = drawn(tmp_path / "a.png", (128, 112))
    far = saved(blurred(drawing((128, 112))), tmp_path / "b.png")
    found = values(tiny("lpips"), [alone("a", same, source=same), alone("b", far, source=same)])
    assert found[0] == 0
    assert found[1] > 0.01


# What has no score has a reason


def test_what_pyiqa_refuses_is_unscored_with_its_reason(tmp_path):
    small = picture(tmp_path, 1, (24, 16))
    (of_niqe,) = score(tiny("niqe"), [alone("a", small)])
    assert of_niqe.value is None
    assert of_niqe.unscored.startswith("pyiqa cannot measure it (")
    (of_piqe,) = score(make_metric("piqe"), [alone("a", small)])
    assert of_piqe.unscored == "the image is smaller than 32 pixels on a side"
    (slender,) = score(tiny("musiq_koniq:tiny-musiq"), [alone("a", saved(noise(1, (8, 16384)), tmp_path / "s.png"))])
    assert slender.unscored == "the image is too slender to be brought to a height of 1024 pixels"
    (wide,) = score(tiny("musiq_koniq:tiny-musiq"), [alone("a", saved(noise(1, (2048, 8)), tmp_path / "w.png"))])
    assert "262144x1024 pixels, more than the 16,000,000 allowed" in wide.unscored
    (no_source,) = score(tiny("lpips"), [alone("a", small)])
    assert no_source.unscored == "there is no source picture to compare it with"


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (AssertionError("Short side is less than 224"), r"pyiqa cannot measure it \(Short side is less than 224\)"),
        (RuntimeError("first line\nsecond line"), r"\(first line\)$"),
        (ValueError(""), r"\(ValueError\)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), "there is not enough memory"),
    ],
)
def test_a_fault_in_pyiqas_call_is_a_reason(error, says):
    def model(*_):
        raise error

    with pytest.raises(Unscorable, match=says):
        called(model, [])


def test_a_full_device_is_left_to_the_reader():
    def model(*_):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        called(model, [])


def test_what_is_not_finite_is_no_number():
    metric = tiny("nima")
    with pytest.raises(Unscorable, match="no finite number"):
        metric.value([np.array([np.nan], np.float32)])
