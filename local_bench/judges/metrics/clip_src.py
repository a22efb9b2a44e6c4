"""CLIP-src: similarity of an edited image to its source, as the cosine of their CLIP embeddings.

Radford et al. 2021; ICE-Bench (arXiv 2503.14482), section B.4, eq. 7, with ViT-L/14 at 336 px. In [-1, 1], higher is
better, 1 for equal images.
"""

from collections.abc import Sequence

from local_bench.judges.metrics.base import Array, FeatureInput, MetricSpec, NetworkMetric, Subject
from local_bench.judges.metrics.clip_network import ClipNetwork, cosine
from local_bench.judges.metrics.registry import Weights

CLIP_SRC = "clip_src"


def make(name: str, weights: Weights) -> "ClipSrc":
    return ClipSrc(name, ClipNetwork(weights))


class ClipSrc(NetworkMetric):
    """Cosine similarity of image and source; they are preprocessed independently, neither is resized to the other."""

    def __init__(self, name: str, network: ClipNetwork) -> None:
        self.network = network
        self.spec = MetricSpec(
            name=name,
            higher_is_better=True,
            preprocessing=f"image and source: {network.description}",
            source="Radford et al. 2021, open_clip; ICE-Bench section B.4: cos(f(image), f(source))",
            needs=("source",),
            lowest=-1.0,
            highest=1.0,
        )

    def inputs(self, subject: Subject) -> tuple[FeatureInput, ...]:
        assert subject.source
        return FeatureInput((subject.image,)), FeatureInput((subject.source,))

    def value(self, arrays: Sequence[Array]) -> float:
        return cosine(arrays[0], arrays[1])
