"""CLIP-ref: how close a picture is to what it was to refer to, as the cosine of CLIP's embeddings of both pictures.

Radford et al. 2021; ICE-Bench (arXiv 2503.14482), section B.5, eq. 8, with ViT-L/14 at 336 px; of several references
the first counts. In [-1, 1], higher is better, 1 for the same picture.
"""

from collections.abc import Sequence

from local_bench.judges.metrics.base import Array, FeatureInput, MetricSpec, NetworkMetric, Subject
from local_bench.judges.metrics.clip_network import ClipNetwork, cosine
from local_bench.judges.metrics.registry import Weights

CLIP_REF = "clip_ref"


def make(name: str, weights: Weights) -> "ClipRef":
    return ClipRef(name, ClipNetwork(weights))


class ClipRef(NetworkMetric):
    """Cosine of image and first reference."""

    def __init__(self, name: str, network: ClipNetwork) -> None:
        self.network = network
        self.spec = MetricSpec(
            name=name,
            higher_is_better=True,
            preprocessing=f"image and first reference: {network.words}",
            source="Radford et al. 2021, open_clip; ICE-Bench section B.5: cos(f(image), f(reference))",
            needs=("reference",),
            lowest=-1.0,
            highest=1.0,
        )

    def looks(self, subject: Subject) -> tuple[FeatureInput, ...]:
        return FeatureInput((subject.image,)), FeatureInput((subject.references[0],))

    def value(self, arrays: Sequence[Array]) -> float:
        return cosine(arrays[0], arrays[1])
