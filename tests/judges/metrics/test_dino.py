"""DINO-ref on a small DINOv2."""

import functools

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import AutoImageProcessor, AutoModel

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.base import FeatureInput, Subject
from local_bench.judges.metrics.dino_ref import DinoNetwork, paint_outside
from local_bench.judges.metrics.registry import Weights, make_metric
from local_bench.models.cards import card
from local_bench.models.weights import resolve

from .helpers import drawn, make_image, noise, read, saved, values

NAME = "dino_ref:tiny-dinov2"
metric_of = functools.cache(make_metric)


@functools.cache
def card_of():
    return card("tiny-dinov2", "metric")


def by_library(image, reference):
    """transformers' own path: what its Auto classes make of the folder, the mean of all tokens."""
    folder = resolve(card_of())
    processor, model = AutoImageProcessor.from_pretrained(folder, use_fast=False), AutoModel.from_pretrained(folder)
    with torch.no_grad():
        one, other = (
            model.eval()(**processor(images=each, return_tensors="pt")).last_hidden_state.mean(1)
            for each in (image, reference)
        )
    return torch.nn.functional.cosine_similarity(one, other).item()


def mask_of(size, box):
    mask = Image.new("L", size, 0)
    mask.paste(255, box)
    return mask


def subjects(folder, n):
    mask = saved(mask_of((96, 80), (20, 10, 70, 60)), folder / "mask.png")
    return [
        Subject(
            str(i),
            make_image(folder, i, (96, 80)),
            mask=mask if i % 2 else None,
            references=(make_image(folder, 200 + i, (64, 120)), make_image(folder, 300 + i)),
        )
        for i in range(n)
    ]


def test_it_is_transformers_own_embedding(tmp_path):
    made = subjects(tmp_path, 3)[::2]
    expected = [by_library(subject.image.load(), subject.references[0].load()) for subject in made]
    assert values(metric_of(NAME), made) == pytest.approx(expected, abs=1e-6)


def test_the_image_is_white_outside_the_mask_and_the_reference_is_complete(tmp_path):
    subject = subjects(tmp_path, 2)[1]
    by_hand = np.array(subject.image.load())
    white = np.ones(by_hand.shape[:2], bool)
    white[10:60, 20:70] = False
    by_hand[white] = 255
    expected = by_library(Image.fromarray(by_hand), subject.references[0].load())
    metric = metric_of(NAME)
    assert values(metric, [subject]) == [pytest.approx(expected, abs=1e-6)]
    bare = Subject("bare", subject.image, references=subject.references)
    assert values(metric, [bare]) != [pytest.approx(expected, abs=1e-3)]
    assert metric.inputs(subject)[0].key != metric.inputs(bare)[0].key
    assert metric.inputs(subject)[1] == metric.inputs(bare)[1]


def test_a_mask_of_another_size_is_resized():
    image, small = noise(1, (96, 80)), mask_of((48, 40), (10, 5, 30, 25))
    resized = np.asarray(small.resize((96, 80), Image.Resampling.BICUBIC))
    expected = np.where(resized[..., None] > 128, np.asarray(image), 255)
    assert np.array_equal(np.asarray(paint_outside(image, small.convert("RGB"))), expected)
    edge = np.asarray(paint_outside(image, Image.fromarray(np.tile(np.uint8([[128, 129]]), (80, 48)))))
    assert (edge[:, ::2] == 255).all()
    assert np.array_equal(edge[:, 1::2], np.asarray(image)[:, 1::2])


def test_an_embedding_is_float32_of_length_1(tmp_path):
    network = metric_of(NAME).network
    inputs = [FeatureInput((make_image(tmp_path, i),)) for i in range(3)]
    for array, alone in zip(read(network, inputs, 2), read(network, inputs, 1), strict=True):
        assert array.dtype == np.float32
        assert array.shape == (48,)
        assert np.linalg.norm(array) == pytest.approx(1, abs=1e-6)
        np.testing.assert_allclose(array, alone, atol=1e-5)
    assert network.identity["dtype"] == "float32"
    assert "shortest side to 64 px (PIL bicubic, antialiased), centre crop 56x56" in network.description


def test_a_processor_that_does_not_crop_is_refused(tmp_path):
    described = card_of()
    text = (resolve(described) / "preprocessor_config.json").read_text()
    (tmp_path / "preprocessor_config.json").write_text(
        text.replace('"do_center_crop": true', '"do_center_crop": false')
    )
    with pytest.raises(WeightsError, match="specifies preprocessing other than"):
        DinoNetwork(Weights(described, tmp_path, {}))


def test_golden_value(tmp_path):
    mask = saved(mask_of((160, 128), (70, 20, 150, 120)), tmp_path / "m.png")
    one, other = drawn(tmp_path / "a.png"), saved(noise(7), tmp_path / "b.png")
    found = values(
        metric_of(NAME), [Subject("a", one, references=(other,)), Subject("b", one, mask=mask, references=(other,))]
    )
    assert found == pytest.approx(GOLDEN, abs=1e-4)


GOLDEN = [0.569098, 0.541063]
