"""DINO-ref: how close what a picture shows is to its reference, as the cosine of DINOv2's embeddings of both.

Oquab et al. 2023; ICE-Bench (arXiv 2503.14482), section B.5, eq. 8, with DINOv2 giant: the mean over all tokens. Where
a mask says what was to be changed, only that part of the image counts; the reference is never masked, and of several
the first counts. In [-1, 1], higher is better, 1 for the same picture.
"""

from collections.abc import Sequence

from local_bench.judges.metrics.base import Array, FeatureInput, MetricSpec, NetworkMetric, Subject
from local_bench.judges.metrics.clip_network import cosine
from local_bench.judges.metrics.dino_network import DinoNetwork
from local_bench.judges.metrics.registry import Weights

DINO_REF = "dino_ref"


def make(name: str, weights: Weights) -> "DinoRef":
    return DinoRef(name, DinoNetwork(weights))


class DinoRef(NetworkMetric):
    """Cosine of image, or of what the mask leaves of it, and first reference."""

    def __init__(self, name: str, network: DinoNetwork) -> None:
        self.network = network
        self.spec = MetricSpec(
            name=name,
            higher_is_better=True,
            preprocessing=f"{network.words_of_mask}; then image and first reference: {network.words}",
            source="Oquab et al. 2023; ICE-Bench section B.5: cosine of the means of all tokens",
            needs=("reference",),
            lowest=-1.0,
            highest=1.0,
        )

    def looks(self, subject: Subject) -> tuple[FeatureInput, ...]:
        image = (subject.image, subject.mask) if subject.mask else (subject.image,)
        return FeatureInput(image), FeatureInput((subject.references[0],))

    def value(self, arrays: Sequence[Array]) -> float:
        return cosine(arrays[0], arrays[1])
