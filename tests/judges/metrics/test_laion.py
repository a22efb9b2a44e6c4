"""LAION's aesthetic score on a small CLIP with a small head."""

from dataclasses import replace

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

from .helpers import make_image, metric_of, read, values, weights_of

NAME = "laion_aes:tiny-laion"
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def by_hand(image):
    """The authors' path: OpenAI's own tower, its transformation, the embedding at length 1, the layers one by one."""
    weights = weights_of("tiny-laion")
    state = load_file(weights.folder / "open_clip_model.safetensors")
    tower = VisionTransformer(56, 14, 64, 2, 2, 64)  # QuickGELU, as OpenAI's
    tower.load_state_dict({k.removeprefix("visual."): v for k, v in state.items() if k.startswith("visual.")})
    prepare = Compose([Resize(56, InterpolationMode.BICUBIC), CenterCrop(56), ToTensor(), Normalize(MEAN, STD)])
    with torch.no_grad():
        x = tower.eval()(prepare(image).unsqueeze(0))[0].numpy()
    x = x / np.linalg.norm(x)
    head = load_file(weights.parts["head"] / HEAD)
    for place in (0, 2, 4, 6, 7):
        x = head[f"layers.{place}.weight"].numpy() @ x + head[f"layers.{place}.bias"].numpy()
    return float(x[0])


def test_the_score_equals_that_of_the_authors(tmp_path):
    made = [Subject(str(i), make_image(tmp_path, i, (96, 80 + 8 * i))) for i in range(3)]
    found = values(metric_of(NAME), made)
    assert found == [pytest.approx(by_hand(subject.image.load()), abs=1e-5) for subject in made]
    assert max(found) - min(found) > 0.05


def test_its_array_is_the_score_and_its_identity_includes_the_head(tmp_path):
    network, weights = metric_of(NAME).network, weights_of("tiny-laion")
    inputs = [FeatureInput((make_image(tmp_path, 1),))]
    bent = load_file(weights.parts["head"] / HEAD)
    bent["layers.7.bias"] += 1
    save_file(bent, tmp_path / HEAD)
    other = type(network)(replace(weights, parts={"head": tmp_path}))
    assert other.identity != network.identity
    assert other.key != network.key
    assert read(other, inputs)[0] == pytest.approx(read(network, inputs)[0] + 1, abs=1e-5)


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
    weights = weights_of("tiny-laion")
    state = load_file(weights.parts["head"] / HEAD)
    change(state)
    save_file(state, tmp_path / HEAD)
    with pytest.raises(WeightsError, match="is not the expected head"):
        linear_head(replace(weights, parts={"head": tmp_path}), HEAD, "layers")
