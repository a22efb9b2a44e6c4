"""How well the reference's face is kept: the cosine of its ArcFace embedding with the likest face of the result.

ICE-Bench B.5 (eq. 8) as its code (evaluators/face_sim.py) has it: InsightFace buffalo_l; of the reference the first
face in the detector's order, of the result all. In [-1, 1], higher is better; 0 where the result has no face. A
reference without a face says nothing of the result: that is unscored here and 0 there.
"""

from collections.abc import Sequence

import numpy as np

from local_bench.judges.metrics.base import Array, FeatureInput, MetricSpec, NetworkMetric, Subject, Unscorable
from local_bench.judges.metrics.face_network import PREPARED, FaceNetwork
from local_bench.judges.metrics.registry import Weights

FACE_REF = "face_ref"


class FaceRef(NetworkMetric):
    """`face_ref`."""

    def __init__(self, name: str, weights: Weights) -> None:
        self.spec = MetricSpec(
            name=name,
            higher_is_better=True,
            preprocessing=f"{PREPARED}; the highest cosine of a face of the image with the reference's first face",
            source="ICE-Bench eq. 8; InsightFace buffalo_l (SCRFD, arXiv 2105.04714; ArcFace, arXiv 1801.07698)",
            needs=("reference",),
            lowest=-1.0,
            highest=1.0,
        )
        self.network = FaceNetwork(weights)

    def looks(self, subject: Subject) -> tuple[FeatureInput, ...]:
        return FeatureInput((subject.image,)), FeatureInput((subject.references[0],))

    def value(self, arrays: Sequence[Array]) -> float:
        ours, theirs = (array.astype(np.float64) for array in arrays)
        if not len(theirs):
            raise Unscorable("no face was found in the reference")
        return float((ours @ theirs[0]).max()) if len(ours) else 0.0


def make(name: str, weights: Weights) -> FaceRef:
    return FaceRef(name, weights)
