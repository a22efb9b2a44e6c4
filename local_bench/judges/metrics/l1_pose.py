"""Agreement of an image with a pose: 1 - mean |OpenPose(image) - L(condition)| / 255, skeletons drawn on black.

ICE-Bench B.6 (eq. 9) for Pose-guided Generation, with OpenPose as in its code (evaluators/l1_dist.py). In [0, 1],
higher is better, 1 if the skeletons equal those of the condition. A skeleton covers a small part of the image, so a
result without a person has the high score of a black image.
"""

import math
from collections.abc import Sequence

from local_bench.judges.metrics.base import Array, FeatureInput, MetricSpec, NetworkMetric, Subject, Unscorable
from local_bench.judges.metrics.pose_network import PREPROCESSING, PoseNetwork
from local_bench.judges.metrics.registry import Weights

L1_POSE = "l1_pose"


class L1Pose(NetworkMetric):
    """`l1_pose`."""

    def __init__(self, name: str, weights: Weights) -> None:
        source = "ICE-Bench eq. 9 (ali-vilab/ICE-Bench l1_dist); OpenPose, arXiv 1611.08050"
        self.spec = MetricSpec(name, True, PREPROCESSING, source, ("source",), 0.0, 1.0)
        self.network = PoseNetwork(weights)

    def inputs(self, subject: Subject) -> tuple[FeatureInput, ...]:
        assert subject.source
        return (FeatureInput((subject.image, subject.source)),)

    def value(self, arrays: Sequence[Array]) -> float:
        likeness = float(arrays[0][0])
        if math.isnan(likeness):
            raise Unscorable("it has more joints than people can be made of")
        return likeness


def make(name: str, weights: Weights) -> L1Pose:
    return L1Pose(name, weights)
