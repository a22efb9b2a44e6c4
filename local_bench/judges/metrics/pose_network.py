"""Skeletons of an image by OpenPose's body network (Cao et al. 2016, arXiv 1611.08050), and their similarity to a
condition.

The steps are those of scepter 1.4's OpenposeAnnotator as configured by ICE-Bench's evaluator: one scale, and the body
only; that evaluator loads the hand network too but does not use it (USE_HAND is off by default). An image without
people has a black map, which is compared like any other, as in the evaluator.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from local_bench.core.errors import WeightsError
from local_bench.core.tensors import load_tensors
from local_bench.judges.metrics.base import Array, Unscorable, Weights, WeightsNetwork
from local_bench.judges.metrics.pixels import COMPARED, TO_CONDITION, as_condition, likeness

WEIGHTS = "body_pose_model.safetensors"
HEIGHT = 184
"""Height of the network's input: half of the 368 pixels used in training."""
STRIDE = 8
GREY = 128
"""Padding value of the input up to a multiple of the stride."""
MAX_INPUT = 1024 * 1024
STAGES = 6
POOLED = ("conv1_2", "conv2_2", "conv3_4")
TRUNK = (
    *("conv1_1", "conv1_2", "conv2_1", "conv2_2", "conv3_1", "conv3_2", "conv3_3", "conv3_4", "conv4_1", "conv4_2"),
    *("conv4_3_CPM", "conv4_4_CPM"),
)
"""The first ten layers are VGG-19's."""
FIELDS, CONFIDENCES = 38, 19
PREPROCESSING = (
    f"{TO_CONDITION}; BGR, to height {HEIGHT} (bicubic, no antialiasing, OpenCV), {GREY} right and below up to a "
    f"multiple of {STRIDE}, x / 256 - 0.5; confidence and affinity maps x {STRIDE}, cut, to the condition's size "
    "(bicubic, OpenCV); Gaussian of 3 pixels, peaks over 0.1, limbs over 0.05 at 9 of 10 points, people of 4 joints "
    "and a mean of 0.4; body alone, drawn in 18 colours on black, grey by 0.299 R + 0.587 G + 0.114 B (OpenCV); "
    f"{COMPARED}; float32"
)


def stage(number: int, branch: int) -> tuple[str, ...]:
    """The layers of a stage (1 to 6) and branch (1 affinity, 2 confidence); all but the last are rectified."""
    if number == 1:
        return tuple(f"conv5_{i}_CPM_L{branch}" for i in range(1, 6))
    return tuple(f"Mconv{i}_stage{number}_L{branch}" for i in range(1, 8))


@dataclass(frozen=True)
class _Pair:
    pixels: np.ndarray
    """(height, width, 3) uint8 BGR in the network's size, not yet filled up."""
    condition: Image.Image


class PoseNetwork(WeightsNetwork):
    """Similarity of the first image's skeletons to the second image: float32 (1,) in [0, 1]; NaN if there are too many
    joints to match."""

    max_pixels: ClassVar[int] = 16 * 1024 * 1024
    description = PREPROCESSING

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.model = weights.card.name
        self._state: dict[str, Any] = {}
        self._device = "cpu"

    def open(self, device: str) -> None:
        """WeightsError if the folder does not contain such a network."""
        path = self._weights.folder / WEIGHTS
        if not path.is_file():
            raise WeightsError(f"{path} does not exist: fetch its model again (`local-bench models fetch NAME`)")
        state = {name: tensor.float() for name, tensor in load_tensors(path, device).items()}
        branches = [layer for number in range(1, STAGES + 1) for branch in (1, 2) for layer in stage(number, branch)]
        if not {f"{layer}.{kind}" for layer in (*TRUNK, *branches) for kind in ("weight", "bias")} <= state.keys():
            raise WeightsError(f"{path} is not OpenPose's body network: give the folder of that model")
        self._state, self._device = state, device

    def close(self) -> None:
        self._state = {}

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> _Pair:
        import cv2

        image, condition = images[0], images[-1]
        scale = HEIGHT / condition.height
        if not 1 <= condition.width * scale <= MAX_INPUT / HEIGHT:
            raise Unscorable(f"the sides of a condition of {condition.width}x{condition.height} pixels are too unlike")
        pixels = np.ascontiguousarray(np.asarray(as_condition(image, condition))[..., ::-1])
        return _Pair(cv2.resize(pixels, (0, 0), fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC), condition)

    def run(self, prepared: Sequence[_Pair]) -> list[Array]:
        skeletons = [(pair, self._skeleton(pair)) for pair in prepared]
        likenesses = [math.nan if drawn is None else likeness(drawn, pair.condition) for pair, drawn in skeletons]
        return [np.array([value], np.float32) for value in likenesses]

    def _skeleton(self, pair: _Pair) -> np.ndarray | None:
        """(height, width) uint8, in the condition's size; None if there are too many joints."""
        import cv2
        import torch

        from local_bench.judges.metrics import pose_decoding

        height, width = pair.pixels.shape[:2]
        filled = np.full((-(-height // STRIDE) * STRIDE, -(-width // STRIDE) * STRIDE, 3), GREY, np.uint8)
        filled[:height, :width] = pair.pixels
        with torch.inference_mode():
            x_1CHW = torch.from_numpy(filled).to(self._device, torch.float32).permute(2, 0, 1)[None] / 256 - 0.5
            fields, confidences = (maps[0].cpu().numpy() for maps in forward(self._state, x_1CHW))

        def in_full(maps: np.ndarray) -> pose_decoding.Maps:
            return lambda n: _enlarged(maps[n], (width, height), pair.condition.size)

        joints = pose_decoding.joints(in_full(confidences))
        try:
            people = pose_decoding.people(joints, in_full(fields), pair.condition.height)
        except pose_decoding.TooMany:
            return None
        canvas = pose_decoding.draw(joints, people, pair.condition.height, pair.condition.width)
        return cv2.cvtColor(canvas, cv2.COLOR_RGB2GRAY)


def forward(state: Mapping[str, Any], x_1CHW: Any) -> tuple[Any, Any]:
    """Affinity fields (1, 38, H/8, W/8) and confidences (1, 19, H/8, W/8) of the last stage.

    The confidences of the last stage are rectified, as in the code with which the published numbers were computed (an
    error in its list of layers, without effect on peaks).
    """
    import torch

    trunk = x_1CHW
    for layer in TRUNK:
        trunk = torch.relu(_convolved(state, layer, trunk))
        if layer in POOLED:
            trunk = torch.nn.functional.max_pool2d(trunk, 2, 2)
    x = trunk
    for number in range(1, STAGES + 1):
        fields, confidences = (_branch(state, stage(number, branch), x) for branch in (1, 2))
        x = torch.cat([fields, confidences, trunk], 1)
    return fields, torch.relu(confidences)


def _branch(state: Mapping[str, Any], layers: Sequence[str], x: Any) -> Any:
    import torch

    for layer in layers[:-1]:
        x = torch.relu(_convolved(state, layer, x))
    return _convolved(state, layers[-1], x)


def _convolved(state: Mapping[str, Any], layer: str, x: Any) -> Any:
    import torch

    kernel = state[f"{layer}.weight"]
    return torch.nn.functional.conv2d(x, kernel, state[f"{layer}.bias"], padding=kernel.shape[-1] // 2)


def _enlarged(map_hw: np.ndarray, used: tuple[int, int], size: tuple[int, int]) -> np.ndarray:
    """A map of the network in the image's size (width, height); only `used` of the input is image."""
    import cv2

    whole = cv2.resize(map_hw, (0, 0), fx=STRIDE, fy=STRIDE, interpolation=cv2.INTER_CUBIC)
    enlarged: np.ndarray = cv2.resize(whole[: used[1], : used[0]], size, interpolation=cv2.INTER_CUBIC)
    return enlarged
