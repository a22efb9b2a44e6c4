"""CLIP-ref: similarity of an image to its reference, as the cosine of their CLIP embeddings.

Radford et al. 2021; ICE-Bench (arXiv 2503.14482), section B.5, eq. 8, with ViT-L/14 at 336 px; only the first of
several references is used. In [-1, 1], higher is better, 1 for equal images.
"""

from collections.abc import Sequence

from local_bench.judges.metrics.base import Array, FeatureInput, MetricSpec, NetworkMetric, Subject
from local_bench.judges.metrics.clip_network import ClipNetwork, cosine
from local_bench.judges.metrics.registry import Weights

CLIP_REF = "clip_ref"


def make(name: str, weights: Weights) -> "ClipRef":
    return ClipRef(name, ClipNetwork(weights))


class ClipRef(NetworkMetric):
    """Cosine similarity of image and first reference."""

    def __init__(self, name: str, network: ClipNetwork) -> None:
        self.network = network
        self.spec = MetricSpec(
            name=name,
            higher_is_better=True,
            preprocessing=f"image and first reference: {network.description}",
            source="Radford et al. 2021, open_clip; ICE-Bench section B.5: cos(f(image), f(reference))",
            needs=("reference",),
            lowest=-1.0,
            highest=1.0,
        )

    def inputs(self, subject: Subject) -> tuple[FeatureInput, ...]:
        return FeatureInput((subject.image,)), FeatureInput((subject.references[0],))

    def value(self, arrays: Sequence[Array]) -> float:
        return cosine(arrays[0], arrays[1])
