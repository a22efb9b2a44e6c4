"""What pyiqa's metrics share: loading without a network, one image a call, faults as unscored rows."""

import math
from collections.abc import Sequence

import pyiqa
import torch
from PIL import Image
from torchvision.transforms.functional import to_tensor

from local_bench.core.nouns import Score
from local_bench.judges.metrics.base import MetricSpec


class PyiqaMetric:
    """A no-reference metric of pyiqa that needs no weights, on the CPU, in float32."""

    def __init__(self, spec: MetricSpec, min_side: int) -> None:
        self.spec = spec
        self._min_side = min_side
        self._metric = pyiqa.create_metric(spec.name, device=torch.device("cpu"))

    def score(self, images: Sequence[Image.Image], captions: Sequence[str | None]) -> list[Score]:
        return [self._one(image) for image in images]

    def _one(self, image: Image.Image) -> Score:
        if min(image.size) < self._min_side:
            return Score(self.spec.name, None, f"the image is smaller than {self._min_side} pixels on a side")
        with torch.inference_mode():
            value = float(self._metric(to_tensor(image).unsqueeze(0)))  # x_1CHW in [0, 1]
        if not math.isfinite(value):
            return Score(self.spec.name, None, "the metric gave no finite number")
        return Score(self.spec.name, value)
