"""Style-ref on a small CSD, saved under the names of the published checkpoint."""

import functools

import numpy as np
import pytest
import torch
from clip.model import VisionTransformer
from safetensors.torch import load_file, save_file
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.base import FeatureInput, Subject
from local_bench.judges.metrics.registry import Weights, make_metric
from local_bench.judges.metrics.style_ref import CsdNetwork
from local_bench.models.cards import card
from local_bench.models.weights import resolve

from .helpers import drawn, make_image, noise, read, saved, values

NAME = "style_ref:tiny-csd"
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
metric_of = functools.cache(make_metric)


@functools.cache
def card_of():
    return card("tiny-csd", "metric")


def checkpoint():
    """The checkpoint as its authors load it: without what its training left."""
    state = load_file(resolve(card_of()) / "pytorch_model.safetensors")
    of_model = "model_state_dict.module."
    return {name.removeprefix(of_model): t for name, t in state.items() if name.startswith(of_model)}


def by_hand(image):
    """OpenAI's own tower without its projection, then the one for style."""
    state = checkpoint()
    tower = VisionTransformer(224, 32, 128, 2, 2, 64)
    tower.proj = None
    tower.load_state_dict({k.removeprefix("backbone."): v for k, v in state.items() if k.startswith("backbone.")})
    prepare = Compose([Resize(224, InterpolationMode.BICUBIC), CenterCrop(224), ToTensor(), Normalize(MEAN, STD)])
    with torch.no_grad():
        style = tower.eval()(prepare(image).unsqueeze(0)) @ state["last_layer_style"]
    return torch.nn.functional.normalize(style, dim=1)[0].numpy()


def subjects(folder, n):
    return [
        Subject(
            str(i),
            make_image(folder, i, (96, 80)),
            references=(make_image(folder, 200 + i, (64, 120)), make_image(folder, 300 + i)),
        )
        for i in range(n)
    ]


def test_it_is_the_openai_tower_with_the_style_projection(tmp_path):
    network = metric_of(NAME).network
    images = [make_image(tmp_path, 1, (96, 80)), make_image(tmp_path, 2, (40, 96)), drawn(tmp_path / "a.png")]
    for array, image in zip(read(network, [FeatureInput((image,)) for image in images]), images, strict=True):
        assert array.dtype == np.float32
        assert array.shape == (64,)
        np.testing.assert_allclose(array, by_hand(image.load()), atol=1e-6)


def test_it_is_the_cosine_with_the_first_reference(tmp_path):
    made = subjects(tmp_path, 2)
    expected = [float(by_hand(s.image.load()) @ by_hand(s.references[0].load())) for s in made]
    assert values(metric_of(NAME), made) == pytest.approx(expected, abs=1e-6)


def test_the_checkpoint_is_laid_out_as_the_published_one():
    state = checkpoint()
    assert {"last_layer_style", "last_layer_content", "backbone.conv1.weight", "backbone.ln_post.bias"} <= set(state)
    assert "backbone.proj" not in state
    assert not torch.equal(state["last_layer_style"], state["last_layer_content"])


@pytest.mark.parametrize(
    "change",
    [
        lambda s: s.pop("model_state_dict.module.last_layer_style"),
        lambda s: s.pop("model_state_dict.module.backbone.ln_post.bias"),
        lambda s: s.update({"model_state_dict.module.backbone.stranger": torch.ones(1)}),
        lambda s: s.update({"model_state_dict.module.backbone.positional_embedding": torch.ones(10, 128)}),
        lambda s: s.clear(),
    ],
)
def test_a_checkpoint_of_another_kind_is_refused(tmp_path, change):
    described = card_of()
    state = load_file(resolve(described) / "pytorch_model.safetensors")
    change(state)
    save_file(state, tmp_path / "pytorch_model.safetensors")
    with pytest.raises(WeightsError, match="is not CSD's checkpoint"):
        CsdNetwork(Weights(described, tmp_path, {})).open("cpu")


def test_golden_value(tmp_path):
    one, other = drawn(tmp_path / "a.png"), saved(noise(7), tmp_path / "b.png")
    assert values(metric_of(NAME), [Subject("a", one, references=(other,))]) == [pytest.approx(GOLDEN, abs=1e-4)]


GOLDEN = 0.602147
