"""Depth: equal to transformers' own call where it takes an image, and to its pieces put together by hand elsewhere."""

from dataclasses import replace

import cv2
import numpy as np
import pytest
import torch
from transformers import DPTForDepthEstimation

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.base import FeatureInput, Subject, Unscorable
from local_bench.judges.metrics.condition_maps import DepthNetwork, depth_input_size
from local_bench.judges.metrics.registry import make_metric

from .helpers import assert_the_same_bytes_in_any_batch, drawn, make_image, noise, score, values, weights_of


@pytest.fixture
def metric():
    return make_metric("l1_depth:tiny-depth")


@pytest.fixture(scope="module")
def dpt_model(cache):
    folder = weights_of("tiny-depth").folder
    return DPTForDepthEstimation.from_pretrained(folder, local_files_only=True).eval()


def inverse_depth(reference, pixels):
    """(H, W) float32 of (H, W, 3) uint8, by the model's pieces."""
    x = (torch.from_numpy(pixels.astype(np.float32)) / 127.5 - 1.0).permute(2, 0, 1)[None]
    with torch.no_grad():
        if pixels.shape[:2] == (64, 64):
            return reference(x).predicted_depth[0].numpy()
        embedded = reference.dpt.embeddings(x, interpolate_pos_encoding=True)
        features, hidden = list(embedded.intermediate_activations), embedded.last_hidden_states
        for n, layer in enumerate(reference.dpt.encoder.layer):
            hidden = layer(hidden)
            if n in (8, 11):
                features.append(hidden)
        return reference.head(reference.neck(features, pixels.shape[0] // 16, pixels.shape[1] // 16))[0].numpy()


def official(reference, image, condition):
    """The evaluator's own steps, with OpenCV and numpy."""
    pixels = np.array(image if image.size == condition.size else image.resize(condition.size))
    height, width = pixels.shape[:2]
    resolution = min(height, width, 1024)
    k = resolution / min(height, width)
    size = (int(np.round(width * k / 64)) * 64, int(np.round(height * k / 64)) * 64)
    depth = inverse_depth(reference, cv2.resize(pixels, size, interpolation=cv2.INTER_AREA))
    depth = depth - depth.min()
    depth = (depth / depth.max() * 255.0).clip(0, 255).astype(np.uint8)
    depth = cv2.resize(depth[..., None].repeat(3, 2), (width, height), interpolation=cv2.INTER_AREA)
    grey = cv2.cvtColor(depth, cv2.COLOR_RGB2GRAY)
    return 1 - np.abs(grey.astype(np.float64) - np.asarray(condition.convert("L"), np.float64)).mean() / 255


SIZES = [
    ((64, 64), (64, 64)),
    ((96, 80), (64, 64)),
    ((160, 120), (200, 130)),
    ((70, 200), (90, 260)),
    ((64, 64), (33, 97)),
]


def test_equals_the_evaluators_steps_whatever_the_order_and_the_neighbours(metric, dpt_model, tmp_path):
    inputs = [
        FeatureInput((make_image(tmp_path, n, of_image), make_image(tmp_path, 100 + n, of_condition)))
        for n, (of_image, of_condition) in enumerate(SIZES)
    ]
    arrays = assert_the_same_bytes_in_any_batch(metric.network, inputs)
    for feature_input, array in zip(inputs, arrays, strict=True):
        image, condition = (item.load() for item in feature_input.images)
        assert float(array[0]) == pytest.approx(official(dpt_model, image, condition), abs=1e-4)


def test_golden(metric, tmp_path):
    subject = Subject("golden", drawn(tmp_path / "drawn.png"), make_image(tmp_path, 5, (160, 128)))
    assert values(metric, [subject]) == [pytest.approx(0.733645, abs=2e-4)]


def test_unreadable_inputs_are_unscored(metric, tmp_path):
    small = score(metric, [Subject("small", make_image(tmp_path, 1), make_image(tmp_path, 2, (300, 32)))])[0]
    assert small.value is None
    assert "300x32 pixels is too small" in str(small.unscored)
    assert depth_input_size(300, 33) == (320, 64)
    assert depth_input_size(4096, 3072) == (1344, 1024)
    assert depth_input_size(4096, 1024) == (4096, 1024)
    with pytest.raises(Unscorable, match="too long"):
        depth_input_size(66_000, 64)


def test_a_flat_depth_map_is_unscored(metric, tmp_path):
    metric.network.open("cpu")
    torch.nn.init.zeros_(metric.network._model.head.head[4].weight)
    pair = metric.network.prepare([noise(1), noise(2)], None)
    flat = metric.network.run([pair])
    metric.network.close()
    with pytest.raises(Unscorable, match="the same everywhere"):
        metric.value(flat)


def test_another_network_is_refused(tmp_path):
    with pytest.raises(WeightsError, match=r"config\.json"):
        DepthNetwork(replace(weights_of("tiny-depth"), folder=tmp_path)).open("cpu")
