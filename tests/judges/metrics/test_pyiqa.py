"""pyiqa's metrics through our loading: the numbers of pyiqa's own, and nothing left behind by the way they are got."""

import random
import shutil
import warnings
from contextlib import contextmanager
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torchvision.transforms.functional import to_tensor

from local_bench.judges.metrics.base import NO_MEMORY, LoadedSubject, Subject, Unscorable
from local_bench.judges.metrics.pyiqa_cards import FORMULAS
from local_bench.judges.metrics.pyiqa_metric import Float64, PyiqaNetwork, called, make
from local_bench.judges.metrics.pyiqa_store import Store, read_store, seeded
from local_bench.judges.metrics.registry import make_metric
from local_bench.models.convert import convert, read_converted
from local_bench.testing.pyiqa_models import _MUSIQ

from .helpers import alone, blurred, drawing, drawn, make_image, noise, saved, score, values, weights_of, without_halves

TINY = ("brisque", "clipiqa", "lpips", "musiq_koniq:tiny-musiq", "nima", "niqe")


def tiny(name):
    return make_metric(name if ":" in name else f"{name}:tiny-{name}")


def plain(metric, *images):
    """The result of pyiqa itself."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return float(metric(*(to_tensor(image)[None] for image in images)))


def copied(name, folder, without):
    """The files of a small model but one, which is converted again."""
    shutil.copytree(weights_of(name).folder, folder)
    (folder / without).unlink()
    return replace(weights_of(name), folder=folder)


def alone_of(folder, images):
    return [alone(str(i), saved(image, folder / f"{i}.png")) for i, image in enumerate(images)]


@contextmanager
def float64_by_default(monkeypatch):
    """torch makes float64, and pyiqa's `imresize` leaves it as it is."""
    before = torch.get_default_dtype()
    with monkeypatch.context() as patch:
        patch.setattr("pyiqa.matlab_utils.resize.cast_input", lambda x: (x, None))
        torch.set_default_dtype(torch.float64)
        try:
            yield
        finally:
            torch.set_default_dtype(before)


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
    images = [drawn(tmp_path / "d.png", (128, 208)), *(make_image(tmp_path, seed, (128, 208)) for seed in (1, 2))]
    return [alone(str(i), image, source=source) for i, image in enumerate(images)]


# The numbers are pyiqa's


def test_musiq_is_pyiqas_own_bit_for_bit_from_a_checkpoint_to_the_score(theirs, tmp_path):
    file, checkpoint = "musiq_koniq_ckpt-e95806b9.safetensors", tmp_path / "musiq.pth"
    torch.save(read_converted(weights_of("tiny-musiq").folder / file), checkpoint)
    weights = copied("tiny-musiq", tmp_path / "fetched", file)
    convert(checkpoint, weights.folder / file, "musiq.pth")
    original = theirs("musiq", pretrained_model_path=str(checkpoint), **_MUSIQ)
    images = [drawing((160, 128)), noise(1, (72, 200))]
    assert values(make("pyiqa:musiq", weights), alone_of(tmp_path, images)) == [
        plain(original, image) for image in images
    ]
    slender = noise(2, (40, 160))
    (results,) = values(tiny("musiq_koniq:tiny-musiq"), alone_of(tmp_path, [slender]))
    assert results == plain(original, slender.resize((256, 1024), 3))
    assert results != plain(original, slender)


def test_clipiqa_is_pyiqas_own_bit_for_bit_from_an_archive_of_torchscript(theirs, tmp_path):
    from clip.model import CLIP

    with seeded(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = CLIP(64, 64, (1, 1, 1, 1), 8, None, 77, 49408, 64, 1, 2).eval()
        traced = torch.jit.trace(model, (torch.rand(1, 3, 64, 64), torch.zeros(1, 77, dtype=torch.int64)))
        traced.save(tmp_path / "clip.pt")
        original = theirs("clipiqa", backbone=str(tmp_path / "clip.pt"))
    weights = copied("tiny-clipiqa", tmp_path / "fetched", "RN50.safetensors")
    convert(tmp_path / "clip.pt", weights.folder / "RN50.safetensors", "clip.pt")
    image = drawing((160, 128))
    assert values(make("clipiqa", weights), alone_of(tmp_path, [image])) == [plain(original, image)]


def test_nima_is_pyiqas_own_bit_for_bit(theirs, tmp_path, monkeypatch):
    import timm

    checkpoint = tmp_path / "nima.pth"
    torch.save(read_converted(weights_of("tiny-nima").folder / "tiny-nima.safetensors"), checkpoint)
    create = timm.create_model
    monkeypatch.setattr(timm, "create_model", lambda name, pretrained, **o: create(name, pretrained=False, **o))
    original = theirs("nima", base_model_name="mobilenetv3_small_050", pretrained_model_path=str(checkpoint))
    images = [drawing((160, 128)), noise(1, (240, 256))]
    assert values(tiny("nima"), alone_of(tmp_path, images)) == [plain(original, image) for image in images]
    with pytest.raises(Unscorable, match="no finite number"):
        tiny("nima").value([np.array([np.nan], np.float32)])


def test_lpips_niqe_and_brisque_are_pyiqas_own(theirs, tmp_path, monkeypatch):
    from pyiqa.utils import download_util

    monkeypatch.setattr(download_util, "DEFAULT_CACHE_DIR", str(tmp_path / "hub"))
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    for place in (tmp_path / "hub", tmp_path / "hub/checkpoints"):
        place.mkdir()
    for name in ("lpips", "niqe", "brisque"):
        folder = weights_of(f"tiny-{name}").folder
        for url, file in read_store(folder).files.items():
            where = tmp_path / "hub" / ("checkpoints" if "pytorch.org" in url else "") / url.rpartition("/")[2]
            if file.endswith(".mat"):
                shutil.copy(folder / file, where)
            else:
                torch.save(read_converted(folder / file), where)
    image, source = drawing((256, 224)), blurred(drawing((256, 224)))
    subject = alone("a", saved(image, tmp_path / "a.png"), source=saved(source, tmp_path / "b.png"))
    same = alone("same", subject.source, source=subject.source)
    assert values(tiny("lpips"), [subject, same]) == [plain(theirs("lpips", net="squeeze"), image, source), 0]
    # Theirs, forced to float64 by other means. Kernels that they round to float32 are off by 2^-24, and 8-bit luma is
    # divided by a local deviation of at least 1, so normalised luma is off by less than 255 * 2^-24.
    textured = Image.fromarray(without_halves(np.asarray(noise(3, (256, 224)))))
    subject = alone("b", saved(textured, tmp_path / "c.png"))
    for name in ("niqe", "brisque"):
        with float64_by_default(monkeypatch):
            expected = float(theirs(name).double()(to_tensor(textured)[None].double()))
        assert values(tiny(name), [subject])[0] == pytest.approx(expected, rel=255 * 2**-24)


@pytest.mark.parametrize("name", ["piqe", "entropy", "pyiqa:psnr", "pyiqa:cw_ssim", "pyiqa:gmsd"])
def test_formulas_are_pyiqas_own(theirs, tmp_path, name):
    """Up to float32: no luma is .5 and nothing is flat here, so all that is left is its rounding. A pixel goes through
    fewer than 200 operations in a row (sums are of blocks), each off by 2^-24. What is compared has the source's size.
    """
    metric, original = make_metric(name), theirs(name.removeprefix("pyiqa:"))
    source, *images = (Image.fromarray(without_halves(np.asarray(noise(seed, (128, 208))))) for seed in (5, 1, 2))
    if name == "pyiqa:psnr":
        images.append(drawing((96, 80)))
    subjects = [replace(item, source=saved(source, tmp_path / "source.png")) for item in alone_of(tmp_path, images)]
    pairs = [(image.resize(source.size, 3), source) for image in images]
    expected = [plain(original, *pair[: 1 + ("source" in metric.spec.needs)]) for pair in pairs]
    assert values(metric, subjects) == pytest.approx(expected, rel=200 * 2**-24)


@pytest.mark.parametrize("name", sorted(FORMULAS))
def test_no_formula_computes_in_float32(tmp_path, name):
    class Watched(TorchDispatchMode):
        """Notes the kernels that read float32; literals of pyiqa's are made in it, and only widened."""

        seen = frozenset()

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if any(isinstance(x, torch.Tensor) and x.dtype == torch.float32 for x in tree_leaves(args)):
                self.seen |= {func.overloadpacket}
            return func(*args, **kwargs or {})

    moves = {torch.ops.aten._to_copy, torch.ops.aten.detach, torch.ops.aten.detach_, torch.ops.aten.lift_fresh}
    metric = make_metric(f"pyiqa:{name}")
    images = [
        saved(image, tmp_path / f"{i}.png") for i, image in enumerate([drawing((256, 208)), noise(5, (256, 208))])
    ]
    seen = LoadedSubject(Subject("a", *images))
    metric.measure(seen)  # made
    with Watched() as watched:
        metric.measure(seen)
    assert not watched.seen - moves
    with Watched() as watched:
        torch.ones(1) + 1
    assert watched.seen - moves


def test_a_comparison_with_zero_and_a_half_are_decided_by_rule():
    near = torch.tensor([-1e-6, -1e-12, 0.0, 1e-12, 1e-6], dtype=torch.float64)
    with Float64():
        assert (near < 0).tolist() == [True, False, False, False, False]
        assert (near > 0).tolist() == [False, False, False, False, True]
        assert (near + 1.5).round().tolist() == [1, 2, 2, 2, 2]
        assert (near + 2.5).round().tolist() == [2, 2, 2, 2, 3]
        assert torch.arange(0.2, 1, 0.1).tolist() == torch.arange(0.2, 1, 0.1, dtype=torch.float64).tolist()
        assert (torch.tensor([1]) / torch.tensor([3])).item() == 1 / 3
        assert torch.ones(2).float().dtype == torch.ones(2).to(torch.float32).dtype == torch.float64
    assert torch.arange(0.2, 1, 0.1).dtype == torch.float32
    assert (near > 0).tolist() == [False, False, False, True, True]


GOLDEN = {"clipiqa": 0.62075, "lpips": 0.177957, "musiq_koniq:tiny-musiq": -12.2018, "nima": 6.71185}
# Of float32 networks: `scripts/instruction_sets.py` finds up to 4e-7 for these three kinds (1.6e-5 for musiq on a
# grey image, where its score is near 0); the weights are made where the test runs and add as much.
FLOAT32_NETWORK = 1e-5
IN_FLOAT64 = {"brisque": 161.57089233398438, "niqe": 5.942986965179443, "entropy": 5.259928186650901}
IN_FLOAT64 |= {"piqe": 86.89926739859037}


@pytest.mark.every_cpu
@pytest.mark.parametrize(("name", "expected"), (GOLDEN | IN_FLOAT64).items())
def test_a_fixed_drawing_has_its_golden_score(tmp_path, name, expected):
    size = (64, 160) if name.startswith("musiq") else (256, 224)
    subject = alone("a", drawn(tmp_path / "a.png", size), source=saved(blurred(drawing(size)), tmp_path / "b.png"))
    (results,) = values(make_metric(name) if name in ("piqe", "entropy") else tiny(name), [subject])
    # Stored in float32 where it is an array: two float64 results on both sides of a rounding are one step (2^-23)
    # apart. The stand-in for BRISQUE's weights is made where the test runs, by torch.randn, whose last bits differ
    # between instruction sets: 32 coefficients of about 200, each off by up to 4 steps, times a kernel of at most 1.
    of_weights = 32 * 200 * 4 * 2**-24 if name == "brisque" else 0
    tolerance = max(2**-23 * expected, of_weights) if name in IN_FLOAT64 else FLOAT32_NETWORK * abs(expected)
    assert results == pytest.approx(expected, rel=0, abs=tolerance)


# One image's score is its own


@pytest.mark.parametrize("name", TINY)
def test_neither_order_nor_neighbours_nor_a_batch_change_a_score(subjects, name):
    if name.startswith("musiq"):
        subjects = [Subject(s.key, saved(s.image.load().resize((24, 64)), s.image.path)) for s in subjects[:2]]
    metric = tiny(name)
    results = values(metric, subjects)
    assert None not in results
    assert len(set(results)) == len(results)
    assert values(metric, subjects[::-1]) == results[::-1]
    assert values(metric, subjects[:1]) == results[:1]
    network = metric.network
    network.open("cpu")
    assert {p.dtype for p in network._model.parameters()} <= {torch.float32}
    assert network.identity["dtype"] == ("float64" if name in ("brisque", "niqe") else "float32")
    inputs = [feature_input for s in subjects for feature_input in metric.inputs(s)]
    together = network.run(
        [network.prepare([p.load() for p in feature_input.images], None) for feature_input in inputs]
    )
    assert [metric.value([array]) for array in together] == results


def test_a_random_network_is_deterministic_and_restores_the_random_state(subjects):
    class Draws(torch.nn.Module):
        def forward(self, x):
            crop = np.random.randint(0, 50)
            return (x[..., crop:] * torch.rand(1) + random.random()).mean()

    network = PyiqaNetwork("test", Store("psnr"))
    network._model = Draws()
    inputs = [network.prepare([s.image.load()], None) for s in subjects]
    torch.manual_seed(1)
    before = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    results = network.run(inputs)
    assert torch.equal(before[0], torch.get_rng_state())
    assert (before[1] == np.random.get_state()[1]).all()
    assert before[2] == random.getstate()
    again = network.run(inputs[::-1])[::-1]
    assert [a.tobytes() for a in results] == [a.tobytes() for a in again]
    assert len({float(a[0]) for a in results}) == len(results)
    assert Draws()(inputs[0][0]) != Draws()(inputs[0][0])


# What has no score has a reason


@pytest.mark.parametrize(
    ("name", "size", "reason"),
    [
        ("niqe", (24, 16), "pyiqa cannot measure it ("),
        ("piqe", (24, 16), "the image is smaller than 32 pixels on a side"),
        ("lpips", (24, 16), "there is no source picture to compare it with"),
        ("musiq_koniq:tiny-musiq", (8, 16384), "the image is too slender to be brought to a height of 1024 pixels"),
        ("musiq_koniq:tiny-musiq", (2048, 8), "262144x1024 pixels, more than the 16,000,000 allowed"),
    ],
)
def test_images_that_pyiqa_refuses_are_unscored_with_a_reason(tmp_path, name, size, reason):
    metric = make_metric(name) if name == "piqe" else tiny(name)
    (refused,) = score(metric, alone_of(tmp_path, [noise(1, size)]))
    assert refused.value is None
    assert reason in refused.unscored


def test_specs_describe_the_metric():
    musiq = tiny("musiq_koniq:tiny-musiq").spec
    assert (musiq.name, musiq.higher_is_better) == ("musiq_koniq:tiny-musiq", True)
    assert musiq.preprocessing.startswith("to height 1024 and width int(width * 1024 / height) by Pillow bicubic")
    assert (tiny("nima").spec.lowest, tiny("nima").spec.highest) == (1, 10)
    assert (tiny("lpips").spec.higher_is_better, tiny("lpips").spec.needs) == (False, ("source",))


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (AssertionError("Short side is less than 224"), r"pyiqa cannot measure it \(Short side is less than 224\)"),
        (RuntimeError("first line\nsecond line"), r"\(first line\)$"),
        (ValueError(""), r"\(ValueError\)"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried"), NO_MEMORY),
        (torch.OutOfMemoryError("CUDA out of memory"), NO_MEMORY),
        (RuntimeError("CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"), NO_MEMORY),
    ],
)
def test_an_error_of_pyiqa_is_a_reason(error, message):
    def model(*_):
        raise error

    with pytest.raises(Unscorable, match=message):
        called(model, [])


@pytest.mark.parametrize(
    ("name", "on_cpu"), [("tres", True), ("tres-flive", True), ("uranker", True), ("brisque", True), ("nima", False)]
)
def test_networks_without_deterministic_cuda_kernels_run_on_the_cpu(monkeypatch, name, on_cpu):
    went = []

    class Network(torch.nn.Module):
        net = None

        def to(self, device, dtype):
            went.append(device)
            return self

    monkeypatch.setattr(Store, "load", lambda self, card: Network())
    network = PyiqaNetwork("test", Store(name))
    network.open("cuda:1")
    assert network.on_cpu == on_cpu
    assert went == ["cpu" if on_cpu else "cuda:1"]
    assert network._device == went[0]


def test_other_pyiqa_networks_call_deterministic_cuda_operations_only():
    """By pyiqa's source: `histc` anywhere, and `cumsum` of what is not an integer's."""
    import inspect
    import re
    from pathlib import Path

    import pyiqa.archs

    folder = Path(inspect.getfile(pyiqa.archs)).parent
    calls = re.compile(r"torch\.histc\(|\.histc\(|cumsum\(.*float|kthvalue\(|bincount\(.*weights")
    assert {p.stem for p in folder.glob("*.py") if calls.search(p.read_text())} == {"tres_arch", "uranker_arch"}
