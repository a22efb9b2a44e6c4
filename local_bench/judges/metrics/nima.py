"""NIMA: the mean of a distribution of aesthetic opinions on AVA's scale.

Talebi and Milanfar, "NIMA: Neural Image Assessment", IEEE TIP 2018; sum of i p_i over the scores i = 1 … 10, with
InceptionResNetV2 as in pyiqa's `nima`. In [1, 10], higher is better. Inside: shortest side to 299 (bilinear with
antialiasing), centre crop, the backbone's own mean and deviation.
"""

from local_bench.judges.metrics.pyiqa_metric import PyiqaMetric
from local_bench.judges.metrics.registry import Weights

NIMA = "nima"
_SOURCE = "Talebi and Milanfar 2018"


def make(name: str, weights: Weights) -> PyiqaMetric:
    return PyiqaMetric(name, weights, NIMA, _SOURCE, bounds=(1.0, 10.0))
