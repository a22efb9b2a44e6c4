"""Feature maps of an image that are compared with a condition image: depth by MiDaS, skeletons by OpenPose.

The steps and numbers are those of scepter 1.4's MidasDetector and OpenposeAnnotator as ICE-Bench's evaluator uses them.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from scipy.ndimage import gaussian_filter

from local_bench.core.errors import WeightsError
from local_bench.judges.metrics.base import Array, Unscorable, Weights, WeightsNetwork
from local_bench.judges.metrics.pixels import COMPARED, TO_CONDITION, as_condition, likeness
from local_bench.models.tensors import load_tensors

MULTIPLE = 64
LONGEST_SHORT_SIDE = 1024
DEPTH_MAX_INPUT = 4 * 1024 * 1024
"""Maximum pixels of the depth network's input; a million pixels need about 2 GB."""
UNUSED = "neck.fusion_stage.layers.0.residual_layer1."
"""Unused weights of the depth network, which some conversions omit."""

POSE_WEIGHTS = "body_pose_model.safetensors"
HEIGHT = 184
"""Height of the body network's input: half of the 368 pixels used in training."""
STRIDE = 8
GREY = 128
"""Padding value of its input up to a multiple of the stride."""
POSE_MAX_INPUT = 1024 * 1024
STAGES = 6
POOLED = ("conv1_2", "conv2_2", "conv3_4")
TRUNK = (
    *("conv1_1", "conv1_2", "conv2_1", "conv2_2", "conv3_1", "conv3_2", "conv3_3", "conv3_4", "conv4_1", "conv4_2"),
    *("conv4_3_CPM", "conv4_4_CPM"),
)
"""The first ten layers are VGG-19's."""
N_FIELDS, N_CONFIDENCES = 38, 19

JOINTS = 18
"""Nose, neck; shoulder, elbow, wrist of the right and the left; hip, knee, ankle likewise; eyes, ears."""
LIMBS = (
    (1, 2), (1, 5), (2, 3), (3, 4), (5, 6), (6, 7), (1, 8), (8, 9), (9, 10), (1, 11), (11, 12), (12, 13),
    (1, 0), (0, 14), (14, 16), (0, 15), (15, 17), (2, 16), (5, 17),
)  # fmt: skip
"""The two joints of each limb; the last two limbs only extend existing people."""
FIELDS = (12, 20, 14, 16, 22, 24, 0, 2, 4, 6, 8, 10, 28, 30, 34, 32, 36, 18, 26)
"""The first of the two affinity maps of each limb; the second follows it."""
DRAWN = BEGINNING = 17
COLOURS = (
    (255, 0, 0), (255, 85, 0), (255, 170, 0), (255, 255, 0), (170, 255, 0), (85, 255, 0), (0, 255, 0), (0, 255, 85),
    (0, 255, 170), (0, 255, 255), (0, 170, 255), (0, 85, 255), (0, 0, 255), (85, 0, 255), (170, 0, 255), (255, 0, 255),
    (255, 0, 170), (255, 0, 85),
)  # fmt: skip
"""RGB, by joint and by limb."""
SIGMA, PEAK, ALONG, POINTS, ENOUGH = 3, 0.1, 0.05, 10, 8
RADIUS = HALF_WIDTH = 4
FEWEST, LEAST_MEAN = 4, 0.4
MOST_PAIRS = 1_000_000
"""Of the two joints of one limb; there are thousands of peaks only if a map is flat."""
Maps = Callable[[int], NDArray[np.float32]]
"""The n-th map in the image's size, (height, width)."""


class ConditionNetwork(WeightsNetwork):
    """Similarity of the first image's feature map to the second image, the condition: float32 (1,) in [0, 1]; NaN if
    there is no such map."""

    max_pixels: ClassVar[int] = 16 * 1024 * 1024

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.model = weights.card.name

    @abstractmethod
    def prepare(self, images: Sequence[Image.Image], text: str | None) -> tuple[np.ndarray, Image.Image]:
        """The image in the network's size, (height, width, 3) uint8, and the condition."""

    @abstractmethod
    def feature_map(self, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray | None:
        """(height, width) uint8 in the condition's size (width, height)."""

    def run(self, prepared: Sequence[tuple[np.ndarray, Image.Image]]) -> list[Array]:
        maps = ((self.feature_map(pixels, condition.size), condition) for pixels, condition in prepared)
        values = (math.nan if drawn is None else likeness(drawn, condition) for drawn, condition in maps)
        return [np.array([value], np.float32) for value in values]


class DepthNetwork(ConditionNetwork):
    """Depth maps by MiDaS 3.0 DPT-hybrid (Ranftl et al. 2021, arXiv 2103.13413); None for a constant map.

    The network is the implementation in transformers with Intel's conversion of dpt_hybrid-midas-501f0c75. transformers
    rejects image sizes other than the training size and non-square images, for which MiDaS interpolates its position
    embeddings; both checks are overridden here.
    """

    description = (
        f"{TO_CONDITION}; shorter side to at most {LONGEST_SHORT_SIDE}, each side to the nearest multiple of "
        f"{MULTIPLE} (area, OpenCV); x / 127.5 - 1, RGB; inverse depth - its minimum, / its maximum, * 255 cut to 8 "
        f"bits, back to the condition's size (area, OpenCV); {COMPARED}; float32"
    )

    def load(self, device: str) -> Any:
        """transformers' DPTForDepthEstimation in float32, accepting all sides that are multiples of 32."""
        from transformers import DPTConfig, DPTForDepthEstimation

        folder = self._weights.folder
        files = sorted(folder.glob("*.safetensors"))
        if len(files) != 1 or not (folder / "config.json").is_file():
            raise WeightsError(f"{folder} must contain config.json and one .safetensors file: fetch its model again")
        config = DPTConfig.from_json_file(folder / "config.json")
        model = DPTForDepthEstimation(config).float().eval()
        missing, _ = model.load_state_dict(load_tensors(files[0]), strict=False)
        if not config.is_hybrid or any(not name.startswith(UNUSED) for name in missing):
            raise WeightsError(f"{folder} contains a network other than DPT-hybrid: give the folder of that model")

        any_size = {"interpolate_pos_encoding": True}
        model.dpt.embeddings.register_forward_pre_hook(lambda _, args, kw: (args, kw | any_size), with_kwargs=True)
        # The neck gets the number of patch rows and columns, from the first stage's map (a quarter of the size).
        model.neck.register_forward_pre_hook(lambda _, args: (args[0], *(n // 4 for n in args[0][0].shape[-2:])))
        return model.to(device)

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> tuple[np.ndarray, Image.Image]:
        image, condition = images[0], images[-1]
        pixels = np.asarray(as_condition(image, condition))
        return cv2.resize(pixels, depth_input_size(*condition.size), interpolation=cv2.INTER_AREA), condition

    @torch.inference_mode()
    def feature_map(self, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray | None:
        """Near is bright."""
        x_1CHW = torch.from_numpy(pixels).to(self._device, torch.float32).permute(2, 0, 1)[None] / 127.5 - 1
        depth_HW = self._model(x_1CHW).predicted_depth[0]
        depth_HW = depth_HW - depth_HW.min()
        highest = depth_HW.max()
        if not highest > 0:
            return None
        map_HW = (depth_HW / highest * 255).clamp(0, 255).to(torch.uint8).cpu().numpy()
        resized: np.ndarray = cv2.resize(map_HW, size, interpolation=cv2.INTER_AREA)
        return resized


def depth_input_size(width: int, height: int) -> tuple[int, int]:
    """The depth network's input (width, height) for a condition's size; Unscorable if there is none."""
    scale = min(LONGEST_SHORT_SIDE, width, height) / min(width, height)
    wide, high = (int(np.round(side * scale / MULTIPLE)) * MULTIPLE for side in (width, height))
    if not wide or not high:
        raise Unscorable(f"a condition of {width}x{height} pixels is too small for a depth map")
    if wide * high > DEPTH_MAX_INPUT:
        raise Unscorable(f"a condition of {width}x{height} pixels is too long for a depth map")
    return wide, high


class PoseNetwork(ConditionNetwork):
    """Skeletons by OpenPose's body network (Cao et al. 2016, arXiv 1611.08050); None if there are too many joints to
    match.

    As configured by ICE-Bench's evaluator: one scale, and the body only; that evaluator loads the hand network too but
    does not use it (USE_HAND is off by default). An image without people has a black map, which is compared like any
    other, as in the evaluator.
    """

    description = (
        f"{TO_CONDITION}; BGR, to height {HEIGHT} (bicubic, no antialiasing, OpenCV), {GREY} right and below up to a "
        f"multiple of {STRIDE}, x / 256 - 0.5; confidence and affinity maps x {STRIDE}, cut, to the condition's size "
        "(bicubic, OpenCV); Gaussian of 3 pixels, peaks over 0.1, limbs over 0.05 at 9 of 10 points, people of 4 "
        "joints and a mean of 0.4; body alone, drawn in 18 colours on black, grey by 0.299 R + 0.587 G + 0.114 B "
        f"(OpenCV); {COMPARED}; float32"
    )

    def load(self, device: str) -> dict[str, torch.Tensor]:
        path = self._weights.folder / POSE_WEIGHTS
        if not path.is_file():
            raise WeightsError(f"{path} does not exist: fetch its model again (`local-bench models fetch NAME`)")
        state = {name: tensor.float() for name, tensor in load_tensors(path, device).items()}
        branches = [layer for number in range(1, STAGES + 1) for branch in (1, 2) for layer in stage(number, branch)]
        if not {f"{layer}.{kind}" for layer in (*TRUNK, *branches) for kind in ("weight", "bias")} <= state.keys():
            raise WeightsError(f"{path} is not OpenPose's body network: give the folder of that model")
        return state

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> tuple[np.ndarray, Image.Image]:
        """The pixels are BGR and not yet filled up."""
        image, condition = images[0], images[-1]
        scale = HEIGHT / condition.height
        if not 1 <= condition.width * scale <= POSE_MAX_INPUT / HEIGHT:
            raise Unscorable(f"the sides of a condition of {condition.width}x{condition.height} pixels are too unlike")
        pixels = np.ascontiguousarray(np.asarray(as_condition(image, condition))[..., ::-1])
        return cv2.resize(pixels, (0, 0), fx=scale, fy=scale, interpolation=cv2.INTER_CUBIC), condition

    def feature_map(self, pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray | None:
        height, width = pixels.shape[:2]
        filled = np.full((-(-height // STRIDE) * STRIDE, -(-width // STRIDE) * STRIDE, 3), GREY, np.uint8)
        filled[:height, :width] = pixels
        with torch.inference_mode():
            x_1CHW = torch.from_numpy(filled).to(self._device, torch.float32).permute(2, 0, 1)[None] / 256 - 0.5
            fields, confidences = (maps[0].cpu().numpy() for maps in forward(self._model, x_1CHW))

        def in_full(maps: np.ndarray, n: int) -> NDArray[np.float32]:
            """A map in the condition's size; only a part of the network's input is image."""
            whole = cv2.resize(maps[n], (0, 0), fx=STRIDE, fy=STRIDE, interpolation=cv2.INTER_CUBIC)
            in_size: NDArray[np.float32] = cv2.resize(whole[:height, :width], size, interpolation=cv2.INTER_CUBIC)
            return in_size

        found = joints(partial(in_full, confidences))
        try:
            everyone = people(found, partial(in_full, fields), size[1])
        except TooMany:
            return None
        return cv2.cvtColor(draw(found, everyone, size[1], size[0]), cv2.COLOR_RGB2GRAY)


def stage(number: int, branch: int) -> tuple[str, ...]:
    """The layers of a stage (1 to 6) and branch (1 affinity, 2 confidence); all but the last are rectified."""
    if number == 1:
        return tuple(f"conv5_{i}_CPM_L{branch}" for i in range(1, 6))
    return tuple(f"Mconv{i}_stage{number}_L{branch}" for i in range(1, 8))


def forward(state: Mapping[str, torch.Tensor], x_1CHW: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Affinity fields (1, 38, H/8, W/8) and confidences (1, 19, H/8, W/8) of the last stage.

    The confidences of the last stage are rectified, as in the code with which the published numbers were computed (an
    error in its list of layers, without effect on peaks).
    """

    def convolved(layer: str, x: torch.Tensor) -> torch.Tensor:
        kernel = state[f"{layer}.weight"]
        return torch.nn.functional.conv2d(x, kernel, state[f"{layer}.bias"], padding=kernel.shape[-1] // 2)

    trunk = x_1CHW
    for layer in TRUNK:
        trunk = torch.relu(convolved(layer, trunk))
        if layer in POOLED:
            trunk = torch.nn.functional.max_pool2d(trunk, 2, 2)
    x = trunk
    for number in range(1, STAGES + 1):
        maps = []
        for branch in (1, 2):
            *rectified, last = stage(number, branch)
            y = x
            for layer in rectified:
                y = torch.relu(convolved(layer, y))
            maps.append(convolved(last, y))
        x = torch.cat([*maps, trunk], 1)
    return maps[0], torch.relu(maps[1])


# ---- people from the maps: joints are the peaks of smoothed confidence maps, limbs are pairs of joints along which the
# affinity fields point, matched greedily by score, and people are limbs that share joints


class TooMany(Exception):
    """The maps have more peaks than can be matched to limbs."""


@dataclass(frozen=True)
class Joints:
    """All peaks of one joint's map, row by row."""

    positions: NDArray[np.int64]
    """(n, 2), x and y in pixels."""
    scores: NDArray[np.float64]
    """(n,)"""


@dataclass
class _Person:
    joints: list[int | None]
    """The index of the peak in each of the 18 maps."""
    score: float
    count: int
    """The number of joints added; a joint that replaces another is counted again."""


def joints(confidence: Maps) -> list[Joints]:
    """The peaks of the 18 confidence maps."""
    found = []
    for part in range(JOINTS):
        map_HW = confidence(part).astype(np.float64)
        smooth = gaussian_filter(map_HW, sigma=SIGMA)
        framed = np.pad(smooth, 1)
        sides = (framed[:-2, 1:-1], framed[2:, 1:-1], framed[1:-1, :-2], framed[1:-1, 2:])
        rows, columns = np.nonzero(np.logical_and.reduce([smooth > PEAK, *(smooth >= side for side in sides)]))
        found.append(Joints(np.stack([columns, rows], 1), map_HW[rows, columns]))
    return found


def people(joints: Sequence[Joints], affinity: Maps, height: int) -> list[list[int | None]]:
    """For each person the index of the peak of each joint; `height` of the image in pixels. TooMany if there are too
    many peaks."""
    everyone: list[_Person] = []
    for limb in range(len(LIMBS)):
        _join(everyone, joints, limb, _connections(joints, affinity, limb, height))
    return [p.joints for p in everyone if p.count >= FEWEST and p.score / p.count >= LEAST_MEAN]


def _connections(joints: Sequence[Joints], affinity: Maps, limb: int, height: int) -> list[tuple[int, int, float]]:
    """(start, end, score) of this limb, best first; no joint occurs in two of them."""
    start, end = (joints[joint] for joint in LIMBS[limb])
    if not len(start.positions) or not len(end.positions):
        return []
    if len(start.positions) * len(end.positions) > MOST_PAIRS:
        raise TooMany
    field = np.stack([affinity(FIELDS[limb]), affinity(FIELDS[limb] + 1)], -1).astype(np.float64)
    away = (end.positions[None] - start.positions[:, None]).astype(np.float64)  # (starts, ends, 2)
    length = np.maximum(np.hypot(away[..., 0], away[..., 1]), 0.001)
    steps = np.linspace(start.positions[:, None].repeat(len(end.positions), 1), end.positions[None], POINTS)
    steps = np.rint(steps).astype(np.int64)  # (points, starts, ends, 2)
    along = (field[steps[..., 1], steps[..., 0]] * (away / length[..., None])).sum(-1)
    scores = along.mean(0) + np.minimum(0.5 * height / length - 1, 0)
    fit = ((along > ALONG).sum(0) > ENOUGH) & (scores > 0)
    candidates = [(int(i), int(j), float(scores[i, j])) for i, j in np.argwhere(fit)]
    chosen: list[tuple[int, int, float]] = []
    used: tuple[set[int], set[int]] = (set(), set())
    for i, j, score in sorted(candidates, key=lambda candidate: -candidate[2]):
        if i not in used[0] and j not in used[1]:
            chosen.append((i, j, score))
            used[0].add(i)
            used[1].add(j)
    return chosen


def _join(
    everyone: list[_Person], joints: Sequence[Joints], limb: int, connections: Sequence[tuple[int, int, float]]
) -> None:
    start, end = LIMBS[limb]
    for a, b, score in connections:
        theirs = [person for person in everyone if person.joints[start] == a or person.joints[end] == b]
        gain = float(joints[end].scores[b]) + score
        if not theirs:
            if limb < BEGINNING:
                new = _Person([None] * JOINTS, float(joints[start].scores[a]) + gain, 2)
                new.joints[start], new.joints[end] = a, b
                everyone.append(new)
            continue
        first, others = theirs[0], theirs[1:]
        both = list(zip(first.joints, others[0].joints, strict=True)) if others else []
        if others and all(i is None or j is None for i, j in both):  # two parts of one person, without a common joint
            first.joints = [i if i is not None else j for i, j in both]
            first.count += others[0].count
            first.score += others[0].score + score
            everyone[:] = [person for person in everyone if person is not others[0]]
        elif others or first.joints[end] != b:
            first.joints[end] = b
            first.count += 1
            first.score += gain


def draw(joints: Sequence[Joints], everyone: Sequence[Sequence[int | None]], height: int, width: int) -> np.ndarray:
    """The skeletons on black, (height, width, 3) uint8 RGB: a dot for each joint, and for each limb a filled ellipse
    from joint to joint, blended with weight 0.6."""
    canvas: np.ndarray = np.zeros((height, width, 3), np.uint8)
    for part, colour in enumerate(COLOURS):
        for person in everyone:
            if (at := person[part]) is not None:
                x, y = (int(v) for v in joints[part].positions[at])
                cv2.circle(canvas, (x, y), RADIUS, colour, thickness=-1)
    for (start, end), colour in zip(LIMBS[:DRAWN], COLOURS, strict=False):
        for person in everyone:
            if (first := person[start]) is None or (second := person[end]) is None:
                continue
            a, b = joints[start].positions[first], joints[end].positions[second]
            x, y = a - b
            middle = (int((a[0] + b[0]) / 2), int((a[1] + b[1]) / 2))
            axes = (int(math.hypot(x, y) / 2), HALF_WIDTH)
            outline = np.array(cv2.ellipse2Poly(middle, axes, int(math.degrees(math.atan2(y, x))), 0, 360, 1))
            over = cv2.fillConvexPoly(canvas.copy(), outline, colour)
            canvas = cv2.addWeighted(canvas, 0.4, over, 0.6, 0)
    return canvas
