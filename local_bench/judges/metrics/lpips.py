"""LPIPS: how far an image is from its source, by calibrated distances between a network's features.

Zhang et al., "The Unreasonable Effectiveness of Deep Features as a Perceptual Metric", CVPR 2018, eq. 1: AlexNet,
version 0.1, pyiqa's `lpips`. Not negative, 0 for the same picture, lower is better. The image in the source's size.
"""

from local_bench.judges.metrics.pyiqa_metric import PyiqaMetric
from local_bench.judges.metrics.registry import Weights

LPIPS = "lpips"
_SOURCE = "Zhang et al. 2018, eq. 1, AlexNet, v0.1"


def make(name: str, weights: Weights) -> PyiqaMetric:
    return PyiqaMetric(name, weights, LPIPS, _SOURCE, bounds=(0.0, None))
