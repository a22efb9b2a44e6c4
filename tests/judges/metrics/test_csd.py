"""Style-ref on a small CSD, saved under the names of the published checkpoint."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from clip.model import VisionTransformer
from safetensors.torch import load_file, save_file
from torchvision.transforms import CenterCrop, Compose, InterpolationMode, Normalize, Resize, ToTensor

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.base import FeatureInput, Subject
from local_bench.judges.metrics.style_ref import CsdNetwork

from .helpers import drawn, make_image, metric_of, read, values, weights_of

NAME = "style_ref:tiny-csd"
MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def checkpoint():
    """The checkpoint as its authors load it: without what its training left."""
    state = load_file(weights_of("tiny-csd").folder / "pytorch_model.safetensors")
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


def test_it_is_the_openai_tower_with_the_style_projection(tmp_path):
    state = checkpoint()
    assert {"last_layer_style", "last_layer_content", "backbone.conv1.weight", "backbone.ln_post.bias"} <= set(state)
    assert not torch.equal(state["last_layer_style"], state["last_layer_content"])
    images = [make_image(tmp_path, 1, (96, 80)), make_image(tmp_path, 2, (40, 96)), drawn(tmp_path / "a.png")]
    arrays = read(metric_of(NAME).network, [FeatureInput((image,)) for image in images])
    np.testing.assert_allclose(arrays, [by_hand(image.load()) for image in images], atol=1e-6)


def test_it_is_the_cosine_with_the_first_reference(tmp_path):
    image, first, second = (make_image(tmp_path, i, size) for i, size in enumerate([(96, 80), (64, 120), (96, 80)]))
    expected = float(by_hand(image.load()) @ by_hand(first.load()))
    subject = Subject("a", image, references=(first, second))
    assert values(metric_of(NAME), [subject]) == pytest.approx([expected], abs=1e-6)


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
    weights = weights_of("tiny-csd")
    state = load_file(weights.folder / "pytorch_model.safetensors")
    change(state)
    save_file(state, tmp_path / "pytorch_model.safetensors")
    with pytest.raises(WeightsError, match="is not CSD's checkpoint"):
        CsdNetwork(replace(weights, folder=tmp_path)).open("cpu")
