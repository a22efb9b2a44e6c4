"""Aesthetic predictor v2.5 on a small SigLIP with a small head."""

import functools
import json

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import SiglipModel

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.aesthetic import HEAD, AestheticNetwork, to_height
from local_bench.judges.metrics.base import FeatureInput, Subject, Unscorable
from local_bench.judges.metrics.registry import Weights, make_metric
from local_bench.models.cards import card
from local_bench.models.weights import resolve, resolve_parts

from .helpers import drawn, make_image, noise, read, values

NAME = "aes_v2.5:tiny-aesthetic"
metric_of = functools.cache(make_metric)


@functools.cache
def card_of():
    return card("tiny-aesthetic", "metric")


def by_hand(image):
    """The vision tower of the complete SigLIP, the preprocessing by PIL and numpy, the head as it is trained."""
    described = card_of()
    tall = image.resize((int(image.width * 1024 / image.height), 1024), Image.Resampling.BICUBIC)
    small = np.asarray(tall.resize((56, 56), Image.Resampling.BICUBIC), np.float64)
    pixels = torch.from_numpy(((small / 255 - 0.5) / 0.5).transpose(2, 0, 1)).float().unsqueeze(0)
    head = torch.nn.Sequential(
        torch.nn.Linear(64, 128),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(128, 64),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(64, 32),
        torch.nn.Dropout(0.5),
        torch.nn.Linear(32, 16),
        torch.nn.Dropout(0.2),
        torch.nn.Linear(16, 1),
    )
    state = load_file(resolve_parts(described)["head"] / HEAD)
    head.load_state_dict({name.removeprefix("scoring_head."): tensor for name, tensor in state.items()})
    with torch.no_grad():
        seen = SiglipModel.from_pretrained(resolve(described)).eval().vision_model(pixel_values=pixels).pooler_output
        return float(head.eval()(seen / seen.norm(dim=-1, keepdim=True)))


def subjects(folder, n):
    return [Subject(str(i), make_image(folder, i, (96 + 16 * i, 80))) for i in range(n)]


def test_it_is_siglips_own_embedding_and_the_head_by_hand(tmp_path):
    made = subjects(tmp_path, 3)
    found = values(metric_of(NAME), made)
    assert found == [pytest.approx(by_hand(subject.image.load()), abs=1e-5) for subject in made]
    assert max(found) - min(found) > 0.05


def test_its_array_is_the_score_in_float32(tmp_path):
    network = metric_of(NAME).network
    (array,) = read(network, [FeatureInput((make_image(tmp_path, 1),))])
    assert array.dtype == np.float32
    assert array.shape == (1,)
    assert network.identity["dtype"] == "float32"
    assert network.prepare([noise(1)], None).dtype == torch.float32


def test_the_image_is_resized_to_height_1024_first(tmp_path):
    assert to_height(noise(1, (96, 80))).size == (1228, 1024)
    high = noise(1, (120, 1024))
    assert to_height(high) is high
    network = metric_of(NAME).network
    network.open("cpu")
    fine = Image.fromarray(np.random.default_rng(0).integers(0, 256, (2048, 2048, 3), dtype=np.uint8))
    direct = network._processor(images=fine, return_tensors="pt").pixel_values[0]
    assert (direct - network.prepare([fine], None)).abs().max() > 1 / 255
    network.close()


@pytest.mark.parametrize("size", [(1, 1100), (100000, 8)])
def test_an_extreme_aspect_ratio_is_unscored(size):
    with pytest.raises(Unscorable, match="too slender"):
        to_height(Image.new("RGB", size))


def test_a_missing_weight_is_refused(tmp_path):
    described = card_of()
    for file in resolve(described).iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    state = load_file(tmp_path / "model.safetensors")
    state.pop("vision_model.post_layernorm.weight")
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    network = AestheticNetwork(Weights(described, tmp_path, resolve_parts(described)))
    with pytest.raises(WeightsError, match=r"lacks .*post_layernorm.weight of a SiglipVisionModel"):
        network.open("cpu")


@pytest.mark.parametrize("change", [{"resample": 2}, {"do_resize": False}, {"rescale_factor": 1.0}, {"size": {"a": 1}}])
def test_other_preprocessing_than_siglips_is_refused(tmp_path, change):
    described = card_of()
    config = json.loads((resolve(described) / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config | change))
    with pytest.raises(WeightsError, match="specifies preprocessing other than"):
        AestheticNetwork(Weights(described, tmp_path, {}))


def test_golden_value(tmp_path):
    assert values(metric_of(NAME), [Subject("a", drawn(tmp_path / "a.png"))]) == [pytest.approx(GOLDEN, abs=1e-4)]


GOLDEN = 5.556586
