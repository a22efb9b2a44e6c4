"""Poses: the network equal to one put together here from its description, people found on maps made by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image, ImageDraw
from safetensors.torch import load_file, save_file
from torch import nn

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics import condition_maps
from local_bench.judges.metrics.base import FeatureInput, Subject, Unscorable
from local_bench.judges.metrics.condition_maps import POSE_WEIGHTS, PoseNetwork, forward
from local_bench.judges.metrics.registry import make_metric
from local_bench.testing.condition_models import FIGURE, joint_colour

from .helpers import assert_the_same_bytes_in_any_batch, make_image, noise, saved, score, values, weights_of

SIDE = 184


@pytest.fixture
def metric():
    return make_metric("l1_pose:tiny-pose")


def dots(size=(SIDE, SIDE), left_out=()):
    """An image that the tiny network sees a person in."""
    image = Image.new("RGB", (SIDE, SIDE))
    for joint, (x, y) in FIGURE.items():
        if joint not in left_out:
            ImageDraw.Draw(image).ellipse((x - 3, y - 3, x + 2, y + 2), fill=joint_colour(joint))
    return image.resize(size, Image.Resampling.BILINEAR)


BLOCKS = [(block, layer) for block, layers in ((1, 2), (2, 2), (3, 4), (4, 2)) for layer in range(1, layers + 1)]


class Body(nn.Module):
    """OpenPose's body network as its paper draws it: ten layers of VGG-19, two more, six stages of two branches."""

    def __init__(self, width=5):
        super().__init__()
        wide = [3, *[width] * 11, 18]
        self.trunk = nn.ModuleDict()
        for n, (block, layer) in enumerate([*BLOCKS, (4, "3_CPM"), (4, "4_CPM")]):
            self.trunk[f"conv{block}_{layer}"] = nn.Conv2d(wide[n], wide[n + 1], 3, padding=1)
        self.stages = nn.ModuleList()
        for stage in range(1, 7):
            sides = [3, 3, 3, 1, 1] if stage == 1 else [7, 7, 7, 7, 7, 1, 1]
            both = nn.ModuleList()
            for branch, out in ((1, 38), (2, 19)):
                widths = [18 if stage == 1 else 18 + 57, *[width] * (len(sides) - 1), out]
                layers = nn.ModuleDict()
                for n, side in enumerate(sides):
                    name = f"conv5_{n + 1}_CPM_L{branch}" if stage == 1 else f"Mconv{n + 1}_stage{stage}_L{branch}"
                    layers[name] = nn.Conv2d(widths[n], widths[n + 1], side, padding=side // 2)
                both.append(layers)
            self.stages.append(both)

    def weights(self):
        """By the names of the released file, which knows no modules."""
        return {".".join(name.split(".")[-2:]): tensor for name, tensor in self.state_dict().items()}

    def forward(self, x):
        for name, layer in self.trunk.items():
            x = layer(x).relu()
            if name in ("conv1_2", "conv2_2", "conv3_4"):
                x = nn.MaxPool2d(2, 2)(x)
        seen, trunk = x, x
        for both in self.stages:
            ends = []
            for layers in both:
                y = seen
                for n, layer in enumerate(layers.values(), 1):
                    y = layer(y) if n == len(layers) else layer(y).relu()
                ends.append(y)
            seen = torch.cat([*ends, trunk], 1)
        return ends[0], ends[1].clamp(min=0)


def test_the_network_is_the_one_described():
    torch.manual_seed(7)
    body = Body().eval()
    with torch.no_grad():
        for tensor in body.parameters():
            tensor.copy_(torch.randn_like(tensor) / max(1, tensor[0].numel()) ** 0.5)
        x = torch.rand(1, 3, 48, 72) - 0.5
        theirs, ours = body(x), forward(body.weights(), x)
    for computed, other in zip(ours, theirs, strict=True):
        assert computed.dtype == torch.float32
        torch.testing.assert_close(computed, other, rtol=1e-5, atol=1e-6)
    assert ours[0].shape == (1, 38, 6, 9)
    assert ours[1].shape == (1, 19, 6, 9)
    assert float(ours[1].std()) > 1e-3
    assert set(load_file(weights_of("tiny-pose").folder / POSE_WEIGHTS)) == set(body.weights())


def maps(*people, size=(SIDE, SIDE)):
    """Confidence (18, height, width) and affinity (38, ...) of people, each {joint: (x, y)}."""
    width, height = size
    y, x = np.mgrid[:height, :width]
    confidence, affinity = np.zeros((18, height, width), np.float32), np.zeros((38, height, width), np.float32)
    for person in people:
        for joint, (px, py) in person.items():
            bump = 0.9 * np.exp(-((x - px) ** 2 + (y - py) ** 2) / 50)
            confidence[joint] = np.maximum(confidence[joint], bump)
        for (start, end), field in zip(condition_maps.LIMBS, condition_maps.FIELDS, strict=True):
            if start in person and end in person:
                a, b = np.array(person[start], float), np.array(person[end], float)
                ahead = (b - a) / np.linalg.norm(b - a)
                t = (x - a[0]) * ahead[0] + (y - a[1]) * ahead[1]
                distance = np.abs((y - a[1]) * ahead[0] - (x - a[0]) * ahead[1])
                on = (t > -3) & (t < np.linalg.norm(b - a) + 3) & (distance < 4)
                affinity[field][on], affinity[field + 1][on] = ahead
    return confidence, affinity


def detected(*people, size=(SIDE, SIDE)):
    confidence, affinity = maps(*people, size=size)
    joints = condition_maps.joints(lambda n: confidence[n])
    return joints, condition_maps.people(joints, lambda n: affinity[n], size[1])


def places(joints, person):
    return {n: tuple(joints[n].positions[at].tolist()) for n, at in enumerate(person) if at is not None}


def test_every_joint_is_found_at_its_position():
    other = {joint: (x + 150, y) for joint, (x, y) in FIGURE.items() if joint not in (4, 16)}
    joints, everyone = detected(FIGURE, other, size=(340, SIDE))
    assert sorted((places(joints, person) for person in everyone), key=lambda p: p[0]) == [FIGURE, other]


def test_limbs_need_affinity_and_people_four_joints():
    confidence, affinity = maps(FIGURE)
    joints = condition_maps.joints(lambda n: confidence[n])
    assert condition_maps.people(joints, lambda n: affinity[n], SIDE)
    assert condition_maps.people(joints, lambda n: -affinity[n], SIDE) == []
    assert detected({joint: FIGURE[joint] for joint in (1, 2, 3)})[1] == []
    four = {joint: FIGURE[joint] for joint in (1, 2, 3, 4)}
    joints, everyone = detected(four)
    assert [places(joints, person) for person in everyone] == [four]


def test_two_halves_of_a_person_are_joined_by_a_limb():
    """An arm without its shoulder-to-neck limb comes in by the ear, the last limb but one."""
    confidence, affinity = maps(FIGURE)
    affinity[condition_maps.FIELDS[0] : condition_maps.FIELDS[0] + 2] = 0
    joints = condition_maps.joints(lambda n: confidence[n])
    everyone = condition_maps.people(joints, lambda n: affinity[n], SIDE)
    assert [places(joints, person) for person in everyone] == [FIGURE]
    halves = {joint: FIGURE[joint] for joint in (2, 3, 14, 16)}  # two joints each, enough only together
    joints, everyone = detected(halves)
    assert [places(joints, person) for person in everyone] == [halves]


def test_the_skeleton_drawn():
    joints, everyone = detected(FIGURE)
    canvas = condition_maps.draw(joints, everyone, SIDE, SIDE)
    assert canvas.dtype == np.uint8
    assert canvas.shape == (SIDE, SIDE, 3)
    for start, end, limb in ((1, 8, 6), (8, 9, 7), (12, 13, 11)):
        x, y = ((FIGURE[start][axis] + FIGURE[end][axis]) // 2 for axis in (0, 1))
        expected = np.array(condition_maps.COLOURS[limb]) * 0.6
        np.testing.assert_allclose(canvas[y, x], expected, atol=1)  # black below it
    x, y = FIGURE[10]
    assert canvas[y + 4, x].tolist() == list(condition_maps.COLOURS[10])  # the end of a joint's dot, beyond its limb
    ears = {(2, 16), (5, 17)}
    assert set(condition_maps.LIMBS[condition_maps.DRAWN :]) == ears
    assert not condition_maps.draw(joints, [], SIDE, SIDE).any()


def test_peaks_are_above_the_threshold_and_ties_are_all_peaks():
    faint = np.zeros((18, 60, 60), np.float32)
    faint[0, 30, 30] = 1
    assert all(len(joint.positions) == 0 for joint in condition_maps.joints(lambda n: faint[n]))
    flat = np.zeros((18, 9, 9), np.float32)
    flat[3] = 0.5
    assert len(condition_maps.joints(lambda n: flat[n])[3].positions) == 81


def test_flat_maps_are_unscored(metric, monkeypatch):
    flat = np.full((38, 60, 60), 0.5, np.float32)
    joints = condition_maps.joints(lambda n: flat[n])
    assert len(joints[1].positions) == 3600
    with pytest.raises(condition_maps.TooMany):
        condition_maps.people(joints, lambda n: flat[n], 60)
    monkeypatch.setattr(condition_maps, "joints", lambda maps: joints)
    metric.network.open("cpu")
    results = metric.network.run([metric.network.prepare([dots(), noise(1)], None)])
    metric.network.close()
    with pytest.raises(Unscorable, match="more joints"):
        metric.value(results)


def test_a_drawn_figure_is_scored_by_the_complete_network(metric, tmp_path):
    skeletons = []
    metric.network.open("cpu")
    for size in ((SIDE, SIDE), (2 * SIDE, 2 * SIDE), (300, 211)):
        image = dots(size)
        pixels, _ = metric.network.prepare([image, Image.new("RGB", size)], None)
        skeleton = metric.network.feature_map(pixels, size)
        scaled = {joint: (x * size[0] / SIDE, y * size[1] / SIDE) for joint, (x, y) in FIGURE.items()}
        dot = {joint: int(skeleton[int(y), int(x)]) for joint, (x, y) in scaled.items()}
        assert all(dot.values()), (size, dot)
        skeletons.append(skeleton)
    metric.network.close()
    assert 0.02 < (skeletons[0] > 0).mean() < 0.3
    file = saved(dots(), tmp_path / "image.png")
    skeleton_file = saved(Image.fromarray(skeletons[0]).convert("RGB"), tmp_path / "own.png")
    black = saved(Image.new("RGB", (SIDE, SIDE)), tmp_path / "black.png")
    followed, missed, empty = values(
        metric, [Subject("a", file, skeleton_file), Subject("b", black, skeleton_file), Subject("c", black, black)]
    )
    assert followed == 1
    assert missed == pytest.approx(1 - skeletons[0].mean() / 255, abs=1e-6)
    assert missed < 0.99
    assert empty == 1


def test_the_image_is_brought_to_the_conditions_size_first(metric, tmp_path):
    image, condition = noise(1, (250, 190)), make_image(tmp_path, 2, (SIDE, SIDE))
    image.paste(dots((190, 190)), (30, 0))
    before = image.resize((SIDE, SIDE), Image.Resampling.BICUBIC)
    resized_later, other = (saved(image, tmp_path / name) for image, name in ((image, "a.png"), (before, "b.png")))
    first, second = values(metric, [Subject("a", resized_later, condition), Subject("b", other, condition)])
    assert first == second


def test_neighbours_and_order_change_nothing(metric, tmp_path):
    condition = make_image(tmp_path, 9, (SIDE, SIDE))
    samples = [dots(), dots(left_out=(3, 4)), noise(4, (SIDE, SIDE)), dots(left_out=range(2, 18))]
    inputs = [FeatureInput((saved(image, tmp_path / f"{n}.png"), condition)) for n, image in enumerate(samples)]
    first, second, *_ = assert_the_same_bytes_in_any_batch(metric.network, inputs)
    assert first != second


def test_golden(metric, tmp_path):
    subject = Subject("golden", saved(dots((300, 211)), tmp_path / "a.png"), make_image(tmp_path, 5, (300, 211)))
    assert values(metric, [subject]) == [pytest.approx(0.520069, abs=1e-4)]


def test_different_aspect_ratios_are_unscored(metric, tmp_path):
    sizes = [(8, 2000), (4000, 8)]
    samples = [Subject(str(n), make_image(tmp_path, n), make_image(tmp_path, 10 + n, sizes[n])) for n in (0, 1)]
    assert [(each.value, "too unlike" in str(each.unscored)) for each in score(metric, samples)] == [(None, True)] * 2


def test_another_network_is_refused(tmp_path):
    network = PoseNetwork(replace(weights_of("tiny-pose"), folder=tmp_path))
    with pytest.raises(WeightsError, match="does not exist"):
        network.open("cpu")
    save_file({"conv1_1.weight": torch.zeros(1)}, tmp_path / POSE_WEIGHTS)
    with pytest.raises(WeightsError, match="not OpenPose's body network"):
        network.open("cpu")
