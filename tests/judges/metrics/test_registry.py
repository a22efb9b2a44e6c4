"""Metrics by name: ours, pyiqa's, a lab's own; and the two that need nothing at all."""

import importlib
import re

import numpy as np
import pytest
from PIL import Image

from local_bench.core.errors import ConfigError, WeightsError
from local_bench.judges.metrics.base import Subject
from local_bench.judges.metrics.registry import check_extras, check_metric, make_metric, metric_card, metric_names

from .helpers import saved, values

PLUGIN = """
from local_bench.judges.metrics.base import HostMetric, MetricSpec


def make(name):
    return Brightness(name)


def brightness(_):
    return Brightness("brightness")


def number(_):
    return 5


def empty_range(name):
    metric = Brightness(name)
    metric.spec = MetricSpec(name, True, "", "", lowest=2, highest=1)
    return metric


def needs_more(name):
    metric = Brightness(name)
    metric.spec = MetricSpec(name, True, "", "", needs=("picture",))
    return metric


def offline(_):
    raise RuntimeError("no network")


class Brightness(HostMetric):
    def __init__(self, name):
        self.spec = MetricSpec(name, True, "RGB8 / 255, float64", "a lab of our own")

    def measure(self, seen):
        return sum(seen.image.resize((1, 1)).getpixel((0, 0))) / 765
"""


@pytest.fixture
def plugins(tmp_path, monkeypatch):
    (tmp_path / "lab_brightness.py").write_text(PLUGIN)
    about = tmp_path / "lab_brightness-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: lab-brightness\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(
        "[local_bench.metrics]\nbrightness = lab_brightness:make\nssim = lab_brightness:make\nbroken = no_such:make\n"
        "glow = lab_brightness:brightness\nnumber = lab_brightness:number\noffline = lab_brightness:offline\n"
        "typo = lab_typo:make\nrange = lab_brightness:empty_range\nneeds = lab_brightness:needs_more\n"
    )
    (tmp_path / "lab_typo.py").write_text("def make(:")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()


def test_a_metric_can_be_added_without_changing_others(plugins, tmp_path):
    assert {"brightness", "broken"} < set(metric_names())
    white = saved(Image.new("RGB", (8, 8), "white"), tmp_path / "white.png")
    assert values(make_metric("brightness"), [Subject("w", white)]) == [1]
    assert make_metric("ssim").spec.needs == ("source",)  # ours keeps its name
    with pytest.raises(ConfigError, match="'broken' cannot be loaded from no_such:make"):
        make_metric("broken")
    with pytest.raises(ConfigError, match="'glow': the metric's spec has the name 'brightness': give it 'glow'"):
        make_metric("glow")


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("number", "metrics: 'number': lab_brightness:number gives no HostMetric or NetworkMetric with a spec"),
        ("offline", "metrics: 'offline' cannot be made by lab_brightness:offline .RuntimeError: no network.: correct"),
        ("range", "metrics: 'range': the spec's range is 2 to 1: correct it"),
        ("needs", "metrics: 'needs': the metric's spec needs 'picture', which is none of caption, source, reference"),
        ("typo", "metrics: 'typo' cannot be loaded from lab_typo:make .SyntaxError: invalid syntax"),
    ],
)
def test_a_plugins_metric_that_cannot_be_made_is_named_before_a_run_begins(plugins, name, fault):
    """Each was an unexpected error, after the images had been generated."""
    for refuse in (make_metric, lambda name: check_extras([name])):
        with pytest.raises(ConfigError, match=fault):
            refuse(name)
    check_extras(["brightness"])


def test_a_metric_is_named_with_its_model():
    assert {"aes_v2.5", "clip_cap", "dino_ref", "face_ref", "l1_raw", "musiq_koniq", "ssim", "style_ref"} < set(
        metric_names()
    )
    assert metric_card("ssim") is None
    assert metric_card("clip_cap").name == "clip-vit-l-14-336"
    assert metric_card("clip_cap:tiny-clip").name == "tiny-clip"
    for wrong in ("piqe:tiny-clip", "clip_cap:tiny-flux", "clip_cap:tiny-csd", "clip-cap"):
        with pytest.raises(ConfigError):
            metric_card(wrong)
    with pytest.raises(ConfigError, match="did you mean 'piqe'"):
        check_metric("piqué")


@pytest.mark.parametrize("name", sorted({*metric_names()} - {"entropy", "piqe"}))
def test_each_default_model_has_a_card_with_its_source(name, monkeypatch, tmp_path):
    monkeypatch.setenv("LOCAL_BENCH_CACHE", str(tmp_path))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    described = metric_card(name)
    if described is None:
        make_metric(name)
        return
    assert described.licence
    with pytest.raises(WeightsError, match=f"models fetch {described.name}") as refused:
        check_metric(name)
    message = str(refused.value)
    assert "\n" not in message
    assert (described.source.repo or "https://") in message  # its source
    assert re.search(r"\.(safetensors|json|pth|pt|bin|onnx|mat)\b", message)  # and its file


def test_entropy_is_shannons(tmp_path):
    tones = Image.fromarray(np.tile(np.arange(256, dtype=np.uint8), (256, 1)), "L").convert("RGB")
    images = [saved(tones, tmp_path / "tones.png"), saved(Image.new("RGB", (64, 64), "red"), tmp_path / "red.png")]
    subjects = [Subject(str(i), image) for i, image in enumerate(images)]
    assert values(make_metric("entropy"), subjects) == [pytest.approx(8, abs=0.05), pytest.approx(0, abs=1e-6)]
