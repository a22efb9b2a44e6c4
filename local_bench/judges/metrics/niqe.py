"""NIQE: how far a picture's statistics are from those of natural, undistorted ones.

Mittal, Soundararajan and Bovik, "Making a 'completely blind' image quality analyzer", IEEE SPL 2013, eq. 10; pyiqa's
`niqe` with the original parameters. Not negative, lower is better. The image as it is: luma (YIQ), blocks of 96 pixels
and of 48 after halving; computed in float64 and kept as float32.
"""

from local_bench.judges.metrics.pyiqa_metric import PyiqaMetric
from local_bench.judges.metrics.registry import Weights

NIQE = "niqe"
_SOURCE = "Mittal et al. 2013, eq. 10"


def make(name: str, weights: Weights) -> PyiqaMetric:
    return PyiqaMetric(name, weights, NIQE, _SOURCE, bounds=(0.0, None))
