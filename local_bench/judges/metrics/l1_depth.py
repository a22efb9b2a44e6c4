"""Depth map of an image by MiDaS 3.0 DPT-hybrid (Ranftl et al. 2021, arXiv 2103.13413), and its similarity to a
condition.

The steps are those of scepter 1.4's MidasDetector, which ICE-Bench's evaluator uses; the network is the implementation
in transformers with Intel's conversion of dpt_hybrid-midas-501f0c75. transformers rejects image sizes other than the
training size and non-square images, for which MiDaS interpolates its position embeddings; both checks are overridden
here.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
from PIL import Image

from local_bench.core.errors import WeightsError
from local_bench.core.tensors import load_tensors
from local_bench.judges.metrics.base import Array, Unscorable, Weights, WeightsNetwork
from local_bench.judges.metrics.pixels import COMPARED, TO_CONDITION, as_condition, likeness

MULTIPLE = 64
LONGEST_SHORT_SIDE = 1024
MAX_INPUT = 4 * 1024 * 1024
"""Maximum pixels of the network's input; a million pixels need about 2 GB."""
UNUSED = "neck.fusion_stage.layers.0.residual_layer1."
"""Unused weights, which some conversions omit."""
PREPROCESSING = (
    f"{TO_CONDITION}; shorter side to at most {LONGEST_SHORT_SIDE}, each side to the nearest multiple of {MULTIPLE} "
    "(area, OpenCV); x / 127.5 - 1, RGB; inverse depth - its minimum, / its maximum, * 255 cut to 8 bits, back to the "
    f"condition's size (area, OpenCV); {COMPARED}; float32"
)


@dataclass(frozen=True)
class _Pair:
    pixels: np.ndarray
    """(H, W, 3) uint8, sides multiples of 64."""
    condition: Image.Image


class DepthNetwork(WeightsNetwork):
    """Similarity of the first image's depth map to the second image: float32 (1,) in [0, 1]; NaN if the map is
    constant."""

    max_pixels: ClassVar[int] = 16 * 1024 * 1024
    description = PREPROCESSING

    def __init__(self, weights: Weights) -> None:
        super().__init__(weights)
        self.model = weights.card.name
        self._model: Any = None
        self._device = "cpu"

    def open(self, device: str) -> None:
        """WeightsError if the folder does not contain such a network."""
        self._device = device
        self._model = load(self._weights.folder).to(device)

    def close(self) -> None:
        self._model = None

    def prepare(self, images: Sequence[Image.Image], text: str | None) -> _Pair:
        import cv2

        image, condition = images[0], images[-1]
        width, height = _input_size(*condition.size)
        pixels = np.asarray(as_condition(image, condition))
        return _Pair(cv2.resize(pixels, (width, height), interpolation=cv2.INTER_AREA), condition)

    def run(self, prepared: Sequence[_Pair]) -> list[Array]:
        depths = [(pair, self._depth(pair)) for pair in prepared]
        likenesses = [math.nan if depth is None else likeness(depth, pair.condition) for pair, depth in depths]
        return [np.array([value], np.float32) for value in likenesses]

    def _depth(self, pair: _Pair) -> np.ndarray | None:
        """(height, width) uint8 in the condition's size, near is bright; None if the map is constant."""
        import cv2
        import torch

        with torch.inference_mode():
            x_1CHW = torch.from_numpy(pair.pixels).to(self._device, torch.float32).permute(2, 0, 1)[None] / 127.5 - 1
            depth_HW = self._model(x_1CHW).predicted_depth[0]
            depth_HW = depth_HW - depth_HW.min()
            highest = depth_HW.max()
            if not highest > 0:
                return None
            map_HW = (depth_HW / highest * 255).clamp(0, 255).to(torch.uint8).cpu().numpy()
        resized: np.ndarray = cv2.resize(map_HW, pair.condition.size, interpolation=cv2.INTER_AREA)
        return resized


def load(folder: Path) -> Any:
    """transformers' DPTForDepthEstimation in float32, accepting all sides that are multiples of 32. WeightsError if the
    folder contains no such model."""
    from transformers import DPTConfig, DPTForDepthEstimation

    files = sorted(folder.glob("*.safetensors"))
    if len(files) != 1 or not (folder / "config.json").is_file():
        raise WeightsError(f"{folder} must contain config.json and one .safetensors file: fetch its model again")
    config = DPTConfig.from_json_file(folder / "config.json")
    model = DPTForDepthEstimation(config).float().eval()
    missing, _ = model.load_state_dict(load_tensors(files[0]), strict=False)
    if not config.is_hybrid or any(not name.startswith(UNUSED) for name in missing):
        raise WeightsError(f"{folder} contains a network other than DPT-hybrid: give the folder of that model")
    model.dpt.embeddings.register_forward_pre_hook(_any_size, with_kwargs=True)
    model.neck.register_forward_pre_hook(_any_aspect)
    return model


def _any_size(_: Any, args: Any, kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    return args, kwargs | {"interpolate_pos_encoding": True}


def _any_aspect(_: Any, args: tuple[Any, ...]) -> tuple[Any, int, int]:
    """Passes the number of patch rows and columns to the neck, from the first stage's map (a quarter of the size)."""
    features = args[0]
    height, width = features[0].shape[-2:]
    return features, height // 4, width // 4


def _input_size(width: int, height: int) -> tuple[int, int]:
    """The network's input (width, height) for a condition's size; Unscorable if there is none."""
    scale = min(LONGEST_SHORT_SIDE, width, height) / min(width, height)
    wide, high = (int(np.round(side * scale / MULTIPLE)) * MULTIPLE for side in (width, height))
    if not wide or not high:
        raise Unscorable(f"a condition of {width}x{height} pixels is too small for a depth map")
    if wide * high > MAX_INPUT:
        raise Unscorable(f"a condition of {width}x{height} pixels is too long for a depth map")
    return wide, high
