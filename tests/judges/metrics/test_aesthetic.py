"""Aesthetic predictor v2.5 on a small SigLIP with a small head."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from transformers import SiglipModel

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.aesthetic import HEAD, AestheticNetwork
from local_bench.judges.metrics.base import Subject, Unscorable

from .helpers import make_image, metric_of, saved, values, weights_of

NAME = "aes_v2.5:tiny-aesthetic"
FINE = np.random.default_rng(0).integers(0, 256, (2048, 2048, 3), dtype=np.uint8)


def by_hand(image):
    """The vision tower of the complete SigLIP, the preprocessing by PIL and numpy, the head as it is trained."""
    weights = weights_of("tiny-aesthetic")
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
    state = load_file(weights.parts["head"] / HEAD)
    head.load_state_dict({name.removeprefix("scoring_head."): tensor for name, tensor in state.items()})
    with torch.no_grad():
        seen = SiglipModel.from_pretrained(weights.folder).eval().vision_model(pixel_values=pixels).pooler_output
        return float(head.eval()(seen / seen.norm(dim=-1, keepdim=True)))


def test_it_is_siglips_own_embedding_and_the_head_by_hand(tmp_path):
    made = [Subject(str(i), make_image(tmp_path, i, (96 + 16 * i, 80))) for i in range(3)]
    made.append(Subject("fine", saved(Image.fromarray(FINE), tmp_path / "fine.png")))  # to height 1024 first
    found = values(metric_of(NAME), made)
    assert found == [pytest.approx(by_hand(subject.image.load()), abs=1e-5) for subject in made]
    assert max(found) - min(found) > 0.05


@pytest.mark.parametrize("size", [(1, 1100), (100000, 8)])
def test_an_extreme_aspect_ratio_is_unscored(size):
    with pytest.raises(Unscorable, match="too slender"):
        metric_of(NAME).network.prepare([Image.new("RGB", size)], None)


def test_a_missing_weight_is_refused(tmp_path):
    weights = weights_of("tiny-aesthetic")
    shutil.copytree(weights.folder, tmp_path, dirs_exist_ok=True)
    state = load_file(tmp_path / "model.safetensors")
    state.pop("vision_model.post_layernorm.weight")
    save_file(state, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match=r"lacks .*post_layernorm.weight of a SiglipVisionModel"):
        AestheticNetwork(replace(weights, folder=tmp_path)).open("cpu")


@pytest.mark.parametrize("change", [{"resample": 2}, {"do_resize": False}, {"rescale_factor": 1.0}, {"size": {"a": 1}}])
def test_other_preprocessing_than_siglips_is_refused(tmp_path, change):
    weights = weights_of("tiny-aesthetic")
    config = json.loads((weights.folder / "preprocessor_config.json").read_text())
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(config | change))
    with pytest.raises(WeightsError, match="specifies preprocessing other than"):
        AestheticNetwork(replace(weights, folder=tmp_path))
