"""CLIP-cap: agreement of an image with its caption, as the cosine of their CLIP embeddings.

Radford et al. 2021; ICE-Bench (arXiv 2503.14482), section B.3, with ViT-L/14 at 336 px. In [-1, 1], higher is better;
typical pairs score between 0.1 and 0.4. The caption is normalised as by the transformers tokenizer. The benchmark's
evaluator replaces the markers <SOURCE> and <REF_1> only in the instruction, which it does not use here.
"""

from collections.abc import Sequence

from local_bench.judges.metrics.base import Array, FeatureInput, MetricSpec, NetworkMetric, Subject
from local_bench.judges.metrics.clip_network import ClipNetwork, cosine
from local_bench.judges.metrics.registry import Weights

CLIP_CAP = "clip_cap"


def make(name: str, weights: Weights) -> "ClipCap":
    return ClipCap(name, ClipNetwork(weights))


class ClipCap(NetworkMetric):
    """Cosine similarity of image and caption."""

    def __init__(self, name: str, network: ClipNetwork) -> None:
        self.network = network
        self.spec = MetricSpec(
            name=name,
            higher_is_better=True,
            preprocessing=(
                f"image: {network.description}; caption: NFC, single spaces, lower case, CLIP's BPE, cut at 77 tokens"
            ),
            source="Radford et al. 2021, open_clip; ICE-Bench section B.3 (undivided): cos(f(image), g(caption))",
            needs=("caption",),
            lowest=-1.0,
            highest=1.0,
        )

    def inputs(self, subject: Subject) -> tuple[FeatureInput, ...]:
        assert subject.caption
        return FeatureInput((subject.image,)), FeatureInput(text=subject.caption)

    def value(self, arrays: Sequence[Array]) -> float:
        return cosine(arrays[0], arrays[1])
