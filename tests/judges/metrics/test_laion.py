"""LAION's aesthetic score on a small CLIP with a small head."""

import functools
import json

import numpy as np
import pytest
import torch
from clip.model import VisionTransformer
from safetensors.torch import load_file, save_file
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.aesthetic import LAION_HEAD as HEAD
from local_bench.judges.metrics.aesthetic import linear_head
from local_bench.judges.metrics.base import FeatureInput, Subject
from local_bench.judges.metrics.registry import Weights, make_metric
from local_bench.models.cards import card
from local_bench.models.weights import resolve, resolve_parts

from .helpers import drawn, make_image, read, values

NAME = "laion_aes:tiny-laion"
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
metric_of = functools.cache(make_metric)


@functools.cache
def card_of():
    return card("tiny-laion", "metric")


def by_hand(image):
    """The authors' path: OpenAI's own tower, its transformation, the embedding at length 1, the layers one by one."""
    described = card_of()
    state = load_file(resolve(described) / "open_clip_model.safetensors")
    tower = VisionTransformer(56, 14, 64, 2, 2, 64)  # QuickGELU, as OpenAI's
    tower.load_state_dict({k.removeprefix("visual."): v for k, v in state.items() if k.startswith("visual.")})
    prepare = Compose([Resize(56, InterpolationMode.BICUBIC), CenterCrop(56), ToTensor(), Normalize(MEAN, STD)])
    with torch.no_grad():
        x = tower.eval()(prepare(image).unsqueeze(0))[0].numpy()
    x = x / np.linalg.norm(x)
    head = load_file(resolve_parts(described)["head"] / HEAD)
    for place in (0, 2, 4, 6, 7):
        x = head[f"layers.{place}.weight"].numpy() @ x + head[f"layers.{place}.bias"].numpy()
    return float(x[0])


def subjects(folder, n):
    return [Subject(str(i), make_image(folder, i, (96, 80 + 8 * i))) for i in range(n)]


def test_the_score_equals_that_of_the_authors(tmp_path):
    made = subjects(tmp_path, 3)
    found = values(metric_of(NAME), made)
    assert found == [pytest.approx(by_hand(subject.image.load()), abs=1e-5) for subject in made]
    assert max(found) - min(found) > 0.05


def test_its_array_is_the_score_and_its_identity_includes_the_head(tmp_path):
    network = metric_of(NAME).network
    (array,) = read(network, [FeatureInput((make_image(tmp_path, 1),))])
    assert array.dtype == np.float32
    assert array.shape == (1,)
    described = card_of()
    bent = load_file(resolve_parts(described)["head"] / HEAD)
    bent["layers.7.bias"] += 1
    save_file(bent, tmp_path / HEAD)
    other = type(network)(Weights(described, resolve(described), {"head": tmp_path}))
    assert other.identity != network.identity
    assert other.key != network.key
    assert network.identity["dtype"] == "float32"
    assert read(other, [FeatureInput((make_image(tmp_path, 1),))])[0] == pytest.approx(array + 1, abs=1e-5)


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.pop("layers.7.bias"),
        lambda s: s.update({"layers.9.weight": torch.ones(1, 1), "layers.9.bias": torch.ones(1)}),
        lambda s: s.update({"layers.7.weight": torch.ones(2, 16), "layers.7.bias": torch.ones(2)}),
        lambda s: s.update({"stranger": torch.ones(1)}),
        lambda s: s.clear(),
    ],
)
def test_a_head_of_another_kind_is_refused(tmp_path, change):
    described = card_of()
    state = load_file(resolve_parts(described)["head"] / HEAD)
    change(state)
    save_file(state, tmp_path / HEAD)
    with pytest.raises(WeightsError, match="is not the expected head"):
        linear_head(Weights(described, tmp_path, {"head": tmp_path}), HEAD, "layers")


def test_the_small_one_is_built_as_openais_are(cache):
    config = json.loads((resolve(card_of()) / "open_clip_config.json").read_text())
    assert config["model_cfg"]["quick_gelu"] is True


def test_golden_value(tmp_path):
    assert values(metric_of(NAME), [Subject("a", drawn(tmp_path / "a.png"))]) == [pytest.approx(GOLDEN, abs=1e-4)]


GOLDEN = 4.016817
