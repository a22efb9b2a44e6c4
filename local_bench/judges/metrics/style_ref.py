"""Style-ref: how close a picture's style is to its reference's, as the cosine of CSD's embeddings of both.

Somepalli et al. 2024, "Measuring Style Similarity in Diffusion Models"; ICE-Bench (arXiv 2503.14482), section B.5, eq.
8, with CSD ViT-L; of several references the first counts. In [-1, 1], higher is better, 1 for the same picture.
"""

from collections.abc import Sequence

from local_bench.judges.metrics.base import Array, FeatureInput, MetricSpec, NetworkMetric, Subject
from local_bench.judges.metrics.clip_network import cosine
from local_bench.judges.metrics.csd_network import CsdNetwork
from local_bench.judges.metrics.registry import Weights

STYLE_REF = "style_ref"


def make(name: str, weights: Weights) -> "StyleRef":
    return StyleRef(name, CsdNetwork(weights))


class StyleRef(NetworkMetric):
    """Cosine of the styles of image and first reference."""

    def __init__(self, name: str, network: CsdNetwork) -> None:
        self.network = network
        self.spec = MetricSpec(
            name=name,
            higher_is_better=True,
            preprocessing=f"image and first reference: {network.words}",
            source="Somepalli et al. 2024 (CSD); ICE-Bench section B.5: cos(style(image), style(reference))",
            needs=("reference",),
            lowest=-1.0,
            highest=1.0,
        )

    def looks(self, subject: Subject) -> tuple[FeatureInput, ...]:
        return FeatureInput((subject.image,)), FeatureInput((subject.references[0],))

    def value(self, arrays: Sequence[Array]) -> float:
        return cosine(arrays[0], arrays[1])
