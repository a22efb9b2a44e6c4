"""LAION's aesthetic score: predicted human rating of an image's appearance, from a linear head on CLIP embeddings.

Schuhmann et al. 2022 (LAION-5B), the "improved aesthetic predictor" sac+logos+ava1-l14-linearMSE: CLIP ViT-L/14 at 224
px, normalised embedding, five linear layers without activation functions. Trained on ratings from 1 to 10 and intended
for that scale, which a linear head may slightly exceed; higher is better. The authors' script runs CLIP in float16 on a
GPU; here everything is float32.
"""

from collections.abc import Sequence
from functools import cached_property
from typing import Any, ClassVar

import torch

from local_bench.judges.metrics.aesthetic import linear_head
from local_bench.judges.metrics.base import Array, FeatureInput, MetricSpec, NetworkMetric, Subject
from local_bench.judges.metrics.clip_network import ClipNetwork, rows
from local_bench.judges.metrics.registry import Weights

LAION_AES = "laion_aes"
HEAD = "sac+logos+ava1-l14-linearMSE.safetensors"


def make(name: str, weights: Weights) -> "LaionAesthetic":
    return LaionAesthetic(name, LaionNetwork(weights))


class LaionNetwork(ClipNetwork):
    """CLIP and the head; arrays are (1,), the score. Each feature input is one image."""

    reads_text: ClassVar[bool] = False

    @cached_property
    def identity(self) -> dict[str, Any]:
        return super().identity | {"output": "score of the head on the normalised embedding"}

    def open(self, device: str) -> None:
        super().open(device)
        self._head = linear_head(self._weights, HEAD, "layers")

    def close(self) -> None:
        super().close()
        del self._head

    @torch.inference_mode()
    def run(self, prepared: Sequence[Any]) -> list[Array]:
        embeddings = super().run(prepared)
        scores = [
            self._head(torch.from_numpy(one)) for one in embeddings
        ]  # on the host: it is small, and its result is the same on every device
        return rows(torch.stack(scores))


class LaionAesthetic(NetworkMetric):
    """The head's score of the image."""

    def __init__(self, name: str, network: LaionNetwork) -> None:
        self.network = network
        self.spec = MetricSpec(
            name=name,
            higher_is_better=True,
            preprocessing=network.description,
            source="LAION, sac+logos+ava1-l14-linearMSE: five linear layers on CLIP's normalised embedding",
            lowest=0.0,
            highest=10.0,
        )

    def inputs(self, subject: Subject) -> tuple[FeatureInput, ...]:
        return (FeatureInput((subject.image,)),)

    def value(self, arrays: Sequence[Array]) -> float:
        return float(arrays[0][0])
