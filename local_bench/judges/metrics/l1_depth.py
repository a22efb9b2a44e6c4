"""How well an image follows a depth map: 1 - mean |MiDaS(image) - L(condition)| / 255.

ICE-Bench B.6 (eq. 9) for Depth-guided Generation, MiDaS DPT-hybrid as its code (evaluators/l1_dist.py) has it. In
[0, 1], higher is better, 1 where the depth map is the condition's.
"""

import math
from collections.abc import Sequence

from local_bench.judges.metrics.base import Array, FeatureInput, MetricSpec, NetworkMetric, Subject, Unscorable
from local_bench.judges.metrics.depth_network import PREPROCESSING, DepthNetwork
from local_bench.judges.metrics.registry import Weights

L1_DEPTH = "l1_depth"


class L1Depth(NetworkMetric):
    """`l1_depth`."""

    def __init__(self, name: str, weights: Weights) -> None:
        source = "ICE-Bench eq. 9 (ali-vilab/ICE-Bench l1_dist); MiDaS DPT-hybrid, arXiv 2103.13413"
        self.spec = MetricSpec(name, True, PREPROCESSING, source, ("source",), 0.0, 1.0)
        self.network = DepthNetwork(weights)

    def looks(self, subject: Subject) -> tuple[FeatureInput, ...]:
        assert subject.source
        return (FeatureInput((subject.image, subject.source)),)

    def value(self, arrays: Sequence[Array]) -> float:
        likeness = float(arrays[0][0])
        if math.isnan(likeness):
            raise Unscorable("its depth map is the same everywhere")
        return likeness


def make(name: str, weights: Weights) -> L1Depth:
    return L1Depth(name, weights)
