"""MUSIQ as its authors run it: on the image in its own size, read off any weights of its kind.

Ke et al., "MUSIQ: Multi-scale Image Quality Transformer", ICCV 2021; pyiqa's `musiq` (its own weights: KonIQ-10k), so
the same as `pyiqa:musiq`, but `musiq:NAME` takes the weights of that card. On KonIQ's scale, about 0 to 100, higher is
better. For ICE-Bench's, which enlarges the image first, see `musiq_koniq`.
"""

from local_bench.judges.metrics.pyiqa_metric import PyiqaMetric
from local_bench.judges.metrics.registry import Weights

MUSIQ = "musiq"
_SOURCE = "Ke et al. 2021"


def make(name: str, weights: Weights) -> PyiqaMetric:
    return PyiqaMetric(name, weights, MUSIQ, _SOURCE)
