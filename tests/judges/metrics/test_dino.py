"""DINO-ref on a small DINOv2."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.base import Subject
from local_bench.judges.metrics.dino_ref import DinoNetwork, paint_outside

from .helpers import make_image, metric_of, noise, saved, values, weights_of

NAME = "dino_ref:tiny-dinov2"


def by_library(image, reference):
    """transformers' own path: what its Auto classes make of the folder, the mean of all tokens."""
    folder = weights_of("tiny-dinov2").folder
    processor, model = AutoImageProcessor.from_pretrained(folder, use_fast=False), AutoModel.from_pretrained(folder)
    with torch.no_grad():
        one, other = (
            model.eval()(**processor(images=each, return_tensors="pt")).last_hidden_state.mean(1)
            for each in (image, reference)
        )
    return torch.nn.functional.cosine_similarity(one, other).item()


def test_it_is_transformers_own_embedding_with_the_image_white_outside_the_mask(tmp_path):
    """The reference is complete, and the first counts."""
    image, *references = (make_image(tmp_path, i, size) for i, size in enumerate([(96, 80), (64, 120), (96, 80)]))
    mask = Image.new("L", (96, 80), 0)
    mask.paste(255, (20, 10, 70, 60))
    bare = Subject("bare", image, references=tuple(references))
    masked = Subject("masked", image, mask=saved(mask, tmp_path / "m.png"), references=bare.references)
    pixels = np.array(image.load())
    pixels[np.asarray(mask) == 0] = 255
    expected = [by_library(shown, references[0].load()) for shown in (image.load(), Image.fromarray(pixels))]
    metric = metric_of(NAME)
    assert values(metric, [bare, masked]) == pytest.approx(expected, abs=1e-6)
    assert abs(expected[0] - expected[1]) > 1e-3
    assert metric.inputs(masked)[0].key != metric.inputs(bare)[0].key
    assert metric.inputs(masked)[1] == metric.inputs(bare)[1]


def test_a_mask_of_another_size_is_resized():
    image, small = noise(1, (96, 80)), Image.new("L", (48, 40), 0)
    small.paste(255, (10, 5, 30, 25))
    resized = np.asarray(small.resize((96, 80), Image.Resampling.BICUBIC))
    expected = np.where(resized[..., None] > 128, np.asarray(image), 255)
    assert np.array_equal(np.asarray(paint_outside(image, small.convert("RGB"))), expected)
    edge = np.asarray(paint_outside(image, Image.fromarray(np.tile(np.uint8([[128, 129]]), (80, 48)))))
    assert (edge[:, ::2] == 255).all()
    assert np.array_equal(edge[:, 1::2], np.asarray(image)[:, 1::2])


def test_a_processor_that_does_not_crop_is_refused(tmp_path):
    weights = weights_of("tiny-dinov2")
    text = (weights.folder / "preprocessor_config.json").read_text()
    assert '"do_center_crop": true' in text
    (tmp_path / "preprocessor_config.json").write_text(
        text.replace('"do_center_crop": true', '"do_center_crop": false')
    )
    with pytest.raises(WeightsError, match="specifies preprocessing other than"):
        DinoNetwork(replace(weights, folder=tmp_path))
